"""Batches of examples of different lengths: padded on the right to the longest, labels as the kind of number that they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor

from mixlab.errors import MixlabError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

IGNORED = -100  # a label that no loss reads
KEYS = ("index", "epoch")  # added by `Keyed`; for the collator, not for the model
FILL = {"attention_mask": 0, "token_type_ids": 0, "special_tokens_mask": 1, "labels": IGNORED}


class PaddingCollator:
    """Finetuning batches. Columns of numbers are kept; texts, ids and whatever else a model cannot read are left out."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, multiple: int = 1) -> None:
        if multiple < 1:
            raise MixlabError(f"multiple is {multiple}; it must be at least 1")
        self.pad, self.multiple = pad_id(tokenizer), multiple

    def __call__(self, examples: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        columns = [name for name in examples[0] if name not in KEYS and _is_numeric(examples[0][name])]
        width = max(len(example["input_ids"]) for example in examples)
        width = -(-width // self.multiple) * self.multiple
        batch = {}
        for name in columns:
            values = [example[name] for example in examples]
            target = "labels" if name in ("label", "labels") else name
            if np.ndim(values[0]) == 0 or _is_vector_of_labels(target, values[0]):
                batch[target] = torch.from_numpy(_column(values))
            else:
                batch[target] = torch.from_numpy(pad(values, width, FILL.get(name, self.pad)))
        if "attention_mask" not in batch:
            batch["attention_mask"] = attention_mask([len(example["input_ids"]) for example in examples], width)
        return batch


def pad_id(tokenizer: PreTrainedTokenizerFast) -> int:
    if tokenizer.pad_token_id is None:
        raise MixlabError("the tokenizer has no padding token; set tokenizer.pad_token, for example to its eos token")
    return cast(int, tokenizer.pad_token_id)


def pad(rows: Sequence[Any], width: int, value: int) -> np.ndarray:
    """Rows of whole numbers as one int64 matrix, filled up on the right."""
    out = np.full((len(rows), width), value, np.int64)
    for target, row in zip(out, rows, strict=True):
        target[: len(row)] = row
    return out


def attention_mask(lengths: Sequence[int], width: int) -> Tensor:
    return (torch.arange(width)[None, :] < torch.tensor(lengths)[:, None]).long()


def _is_numeric(value: Any) -> bool:
    kind = np.asarray(value).dtype.kind
    return kind in "iufb" and np.ndim(value) <= 1


def _is_vector_of_labels(name: str, value: Any) -> bool:
    """Several labels at once are a row of floats; labels of tokens are whole numbers."""
    return name == "labels" and np.asarray(value).dtype.kind == "f"


def _column(values: Sequence[Any]) -> np.ndarray:
    array = np.asarray(values)
    return array.astype(np.float32 if array.dtype.kind == "f" else np.int64)
