"""What data, a tokenizer or settings are, as 64 hexadecimal digits: equal for equal content, wherever and however it is stored."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedTokenizerFast

ROWS = 1000  # hashed at a time


def of_dataset(dataset: Dataset) -> str:
    """Names, types and values of all columns, in order; file layout, cache state and output format do not count."""
    import numpy as np
    import pyarrow as pa

    digest = hashlib.sha256()
    plain = dataset.with_format("arrow")
    for start in range(0, len(dataset), ROWS):
        table: Any = plain[start : start + ROWS]
        # A copy of the rows: its buffers hold these values alone, however they were sliced and joined before.
        table = table.replace_schema_metadata(None).take(np.arange(len(table))).combine_chunks()
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        digest.update(sink.getvalue())
    return digest.hexdigest()


def of_tokenizer(tokenizer: PreTrainedTokenizerFast) -> str:
    """The vocabulary and its rules; not the truncation and padding that earlier calls left behind."""
    rules = json.loads(tokenizer.backend_tokenizer.to_str())
    return of_settings({name: value for name, value in rules.items() if name not in ("truncation", "padding")})


def of_settings(settings: Any) -> str:
    """Anything that JSON can write; the order of keys does not count."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True, ensure_ascii=True).encode()).hexdigest()
