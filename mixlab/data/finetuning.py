"""Finetuning examples: sentences or pairs as tokens with their labels, and the lengths by which batches are bucketed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np

from mixlab.data import fingerprint
from mixlab.errors import MixlabError

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedTokenizerFast

LAYOUT = 1  # raised when the same rows would give other examples


def examples(data: Dataset, tokenizer: PreTrainedTokenizerFast, length: int) -> Dataset:
    """`input_ids` of at most `length` tokens (of a pair, the longer text is cut first) and `labels`; texts and groups are left behind."""
    if "text" not in data.column_names:
        raise MixlabError(f"the data have no column 'text'; columns: {', '.join(data.column_names)}")
    pair = "text_pair" in data.column_names
    fixed = tokenizer.num_special_tokens_to_add(pair=pair)
    if length <= fixed + pair:
        raise MixlabError(f"length is {length}; {'pairs' if pair else 'sentences'} need at least {fixed + 1 + pair} tokens")
    segments = "token_type_ids" in tokenizer.model_input_names

    def encode(batch: dict[str, list[Any]]) -> dict[str, Any]:
        second = batch["text_pair"] if pair else None
        done = tokenizer(
            batch["text"], second, truncation=True, max_length=length, return_attention_mask=False, return_token_type_ids=segments
        )
        labels = {"labels": batch["label"]} if "label" in batch else {}
        return {**done, **labels}

    key = fingerprint.of_settings([LAYOUT, fingerprint.of_dataset(data), fingerprint.of_tokenizer(tokenizer), length, segments])
    done = data.map(encode, batched=True, remove_columns=data.column_names, new_fingerprint=key[:16], desc="tokenising")
    return done.with_format(None)


def lengths(data: Dataset, column: str = "input_ids") -> np.ndarray:
    """Tokens of every example, without reading the tokens."""
    import pyarrow.compute as pc

    table = cast(Any, data.with_format("arrow").select_columns([column])[:])
    return pc.list_value_length(table.column(column)).to_numpy()  # pyright: ignore[reportAttributeAccessIssue]
