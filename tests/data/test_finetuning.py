"""Finetuning examples and their batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from torch.utils.data import DataLoader
from transformers import PreTrainedTokenizerFast

from mixlab.data import finetuning, vocabulary
from mixlab.data.collating import PaddingCollator
from mixlab.data.sampling import BucketSampler, Keyed
from mixlab.data.sources import read
from mixlab.errors import MixlabError
from tests.data.conftest import TEXTS

PAIRS = Dataset.from_dict({"text": TEXTS[:8], "text_pair": ["short"] * 8, "label": [0, 1] * 4, "group": ["x"] * 8})


def test_pairs_are_cut_to_length(tokenizer: PreTrainedTokenizerFast) -> None:
    made = finetuning.examples(PAIRS, tokenizer, 20)
    assert set(made.column_names) == {"input_ids", "labels"}
    for row, ids in zip(PAIRS, made["input_ids"], strict=True):
        assert len(ids) <= 20
        whole = tokenizer(row["text"], row["text_pair"])["input_ids"]
        assert ids == whole or len(whole) > 20
        assert ids[-1] == 3
        assert ids.count(3) == 2
    assert finetuning.lengths(made).tolist() == [len(ids) for ids in made["input_ids"]]
    assert finetuning.examples(PAIRS.remove_columns("label"), tokenizer, 20).column_names == ["input_ids"]


def test_batches_are_padded_on_the_right(wordpiece: PreTrainedTokenizerFast) -> None:
    rows = [
        {"input_ids": [2, 9, 3], "labels": 1, "id": "a", "index": 0, "epoch": 0},
        {"input_ids": [2, 9, 8, 7, 3], "labels": 0, "id": "b"},
    ]
    batch = PaddingCollator(wordpiece)(rows)
    assert set(batch) == {"input_ids", "labels", "attention_mask"}
    assert batch["input_ids"].tolist() == [[2, 9, 3, 0, 0], [2, 9, 8, 7, 3]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 0, 0], [1] * 5]
    assert batch["labels"].tolist() == [1, 0]
    assert PaddingCollator(wordpiece, multiple=4)(rows)["input_ids"].shape == (2, 8)


@pytest.mark.parametrize(
    ("labels", "dtype", "shape"),
    [
        ([0.5, 1.0], torch.float32, (2,)),
        ([[1.0, 0.0], [0.0, 0.0]], torch.float32, (2, 2)),
        ([[5, 6], [7, 8, 9]], torch.int64, (2, 3)),
        ([np.int64(1), np.int64(0)], torch.int64, (2,)),
    ],
)
def test_labels_keep_their_kind(wordpiece: PreTrainedTokenizerFast, labels: list[Any], dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    rows = [{"input_ids": ids, "labels": label} for ids, label in zip(([2, 3], [2, 9, 3]), labels, strict=True)]
    made = PaddingCollator(wordpiece)(rows)["labels"]
    assert (made.dtype, tuple(made.shape)) == (dtype, shape)
    if shape == (2, 3):
        assert made.tolist() == [[5, 6, -100], [7, 8, 9]]


def test_segments_are_padded_with_the_first(wordpiece: PreTrainedTokenizerFast) -> None:
    rows = [{"input_ids": [2, 3], "token_type_ids": [0, 1]}, {"input_ids": [2, 9, 3], "token_type_ids": [0, 0, 1]}]
    assert PaddingCollator(wordpiece)(rows)["token_type_ids"].tolist() == [[0, 1, 0], [0, 0, 1]]


def test_from_a_file_to_a_loss(tmp_path: Path) -> None:
    """A csv file, a tokenizer, bucketed batches and a model: the pieces fit."""
    import mixlab

    place = tmp_path / "a.csv"
    place.write_text("text,label\n" + "".join(f"{'word ' * (i % 9 + 1)}{i},{'ab'[i % 2]}\n" for i in range(40)))
    source = read(place, "sentences")
    assert source.labels is not None
    tokenizer = vocabulary.train(source.data["text"], "bpe", 400, 32, progress=False)
    data = finetuning.examples(source.data, tokenizer, 32)
    sampler = BucketSampler(finetuning.lengths(data).tolist(), 8, 0)
    loader = DataLoader(Keyed(data), 8, sampler=sampler, collate_fn=PaddingCollator(tokenizer))
    fields = {**vocabulary.config_fields(tokenizer), **source.labels.config_fields()}
    model = mixlab.create("gmlp-tiny", task="sequence-classification", **fields)
    losses = [model(**batch).loss for batch in loader]
    assert len(losses) == 5
    assert all(torch.isfinite(loss) for loss in losses)


def test_what_does_not_fit_is_refused(wordpiece: PreTrainedTokenizerFast, causal: PreTrainedTokenizerFast) -> None:
    with pytest.raises(MixlabError, match="need at least 5"):
        finetuning.examples(PAIRS, wordpiece, 4)
    with pytest.raises(MixlabError, match="no column 'text'"):
        finetuning.examples(PAIRS.remove_columns("text"), wordpiece, 20)
    with pytest.raises(MixlabError, match="multiple"):
        PaddingCollator(wordpiece, multiple=0)
    bare = PreTrainedTokenizerFast(tokenizer_object=causal.backend_tokenizer)
    with pytest.raises(MixlabError, match="padding token"):
        PaddingCollator(bare)
