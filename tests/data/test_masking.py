"""Masking: proportions, purity, whole words, spans, and what is never touched."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from mixlab.data import vocabulary
from mixlab.data.masking import UNITS, MaskingCollator, NextTokenCollator, word_joints
from mixlab.errors import MixlabError
from tests.data.conftest import TEXTS

SMALL = vocabulary.train(TEXTS, "wordpiece", 200, 64, progress=False)
COLLATORS = {unit: MaskingCollator(SMALL, 11, unit=unit) for unit in UNITS}


def example(ids: list[int], index: int = 0, epoch: int = 0) -> dict[str, Any]:
    return {"input_ids": ids, "index": index, "epoch": epoch}


ids_of_texts = st.lists(st.integers(0, len(SMALL) - 1), min_size=1, max_size=60)


@settings(max_examples=50, derandomize=True, deadline=None)
@given(st.lists(ids_of_texts, min_size=1, max_size=5), st.sampled_from(UNITS), st.integers(0, 2**40), st.integers(0, 1000))
def test_a_text_is_masked_the_same_in_any_company(texts: list[list[int]], unit: str, index: int, epoch: int) -> None:
    collate = COLLATORS[unit]
    together = collate([example(ids, index + i, epoch) for i, ids in enumerate(texts)])
    for i, ids in enumerate(texts):
        alone = collate([example(np.array(ids, np.int32), index + i, epoch)])
        for name in ("input_ids", "labels"):
            assert torch.equal(together[name][i, : len(ids)], alone[name][0])
        labels, original = alone["labels"][0], torch.tensor(ids)
        chosen = labels != -100
        assert torch.equal(labels[chosen], original[chosen])
        assert torch.equal(alone["input_ids"][0][~chosen], original[~chosen])
        ordinary = torch.tensor([i not in SMALL.all_special_ids for i in ids])
        assert not (chosen & ~ordinary).any()
        expected = max(1, round(0.15 * int(ordinary.sum()))) if ordinary.any() else 0
        assert int(chosen.sum()) == expected if unit != "word" else (int(chosen.sum()) > 0) == bool(ordinary.any())


@pytest.mark.parametrize("unit", UNITS)
def test_proportions(unit: str) -> None:
    rng = np.random.default_rng(0)
    ids = rng.integers(5, len(SMALL), (600, 100))
    batch = COLLATORS[unit]([example(row, i) for i, row in enumerate(ids)])
    chosen = (batch["labels"] != -100).numpy()
    share = chosen.mean(1)
    assert abs(share.mean() - 0.15) < (0.005 if unit == "word" else 1e-9)
    out = batch["input_ids"].numpy()
    n = chosen.sum() / (6 if unit == "span" else 1)  # a span has one fate
    masked = (out[chosen] == SMALL.mask_token_id).mean()
    kept = (out[chosen] == ids[chosen]).mean()
    assert abs(masked - 0.8) < 4 * np.sqrt(0.16 / n)
    assert abs(kept - 0.1 - 0.1 / len(SMALL)) < 4 * np.sqrt(0.09 / n)
    assert np.isin(out[chosen], [0, 1, 2, 3]).sum() == 0
    # each position is chosen about as often as any other; spans reach the first ones less, since they only grow to the right
    by_place = chosen.mean(0)[10:]
    assert np.abs(by_place - by_place.mean()).max() < 5 * np.sqrt(0.15 * 0.85 / 600)


def test_random_tokens_are_uniform() -> None:
    collate = MaskingCollator(SMALL, 0, rate=1.0, masked=0.0, random=1.0)
    out = collate([example([7] * 400, i) for i in range(100)])["input_ids"].numpy()
    counts = np.bincount(out.reshape(-1), minlength=len(SMALL))
    assert counts[SMALL.all_special_ids].sum() == 0
    mean = out.size / (len(SMALL) - 5)
    assert np.abs(counts[5:] - mean).max() < 5 * np.sqrt(mean)


def test_epochs_seeds_and_examples_differ() -> None:
    ids = list(range(5, 65))
    patterns = {tuple(COLLATORS["token"]([example(ids, i, e)])["labels"][0].tolist()) for i in range(5) for e in range(5)}
    patterns |= {tuple(MaskingCollator(SMALL, seed)([example(ids)])["labels"][0].tolist()) for seed in range(5)}
    assert len(patterns) == 30


def test_every_token_comes_up_over_epochs() -> None:
    ids = list(range(5, 45))
    seen = torch.zeros(40, dtype=torch.bool)
    for epoch in range(80):
        seen |= COLLATORS["token"]([example(ids, 0, epoch)])["labels"][0] != -100
    assert seen.all()


def words_of(tokenizer: PreTrainedTokenizerFast, text: str) -> tuple[list[int], list[int]]:
    """Ids, and for each the number of its word: a run of letters and digits in the text."""
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    numbers = [0]
    for (_, before), (start, _) in itertools.pairwise(encoded["offset_mapping"]):
        inside = start < before or (text[start - 1].isalnum() and text[start].isalnum())
        numbers.append(numbers[-1] + (not inside))
    return encoded["input_ids"], numbers


WORDS = "unreadable reading 12,345 re-reading Readers numbers"


def test_words_start_where_the_text_says(tokenizer: PreTrainedTokenizerFast) -> None:
    text = WORDS if tokenizer.tokenize("é") == ["[UNK]"] else WORDS + " Ünïcode"
    ids, words = words_of(tokenizer, text)
    goes_on, may_go_on = word_joints(tokenizer)
    joined = [bool(goes_on[after] and may_go_on[before]) for before, after in itertools.pairwise(ids)]
    assert joined == [before == after for before, after in itertools.pairwise(words)], tokenizer.convert_ids_to_tokens(ids)


def test_whole_words_are_whole(tokenizer: PreTrainedTokenizerFast) -> None:
    ids, words = words_of(tokenizer, WORDS)
    collate = MaskingCollator(tokenizer, 0, unit="word")
    for epoch in range(30):
        labelled = set(torch.nonzero(collate([example(ids, 0, epoch)])["labels"][0] != -100).flatten().tolist())
        assert labelled == {i for i, word in enumerate(words) if word in {words[i] for i in labelled}}


def test_spans_run_together() -> None:
    rng = np.random.default_rng(1)
    batch = COLLATORS["span"]([example(rng.integers(5, 150, 200), i) for i in range(50)])
    chosen = (batch["labels"] != -100).numpy()
    runs = (chosen[:, 1:] & ~chosen[:, :-1]).sum() + chosen[:, 0].sum()
    assert 3.0 < chosen.sum() / runs < 6.0  # single tokens would give 1 / 0.85


def test_next_tokens_and_prefixes(causal: PreTrainedTokenizerFast) -> None:
    rows = [example(list(range(10, 20))), example([10, 11, 12], 1)]
    plain = NextTokenCollator(causal)(rows)
    assert plain["labels"][1].tolist() == [10, 11, 12] + [-100] * 7
    assert plain["attention_mask"].sum(1).tolist() == [10, 3]
    assert "attention_mask" not in NextTokenCollator(causal)(rows[:1])
    collate = NextTokenCollator(causal, seed=1, prefix=True)
    lengths = [int((collate([example(list(range(10, 20)), i)])["labels"] == -100).sum()) for i in range(500)]
    assert set(lengths) == set(range(1, 10))
    assert int((collate([{"input_ids": [10, 11, 12], "prefix_length": 2}])["labels"] == -100).sum()) == 2


def test_what_cannot_be_masked_is_refused(causal: PreTrainedTokenizerFast) -> None:
    with pytest.raises(MixlabError, match="Keyed"):
        COLLATORS["token"]([{"input_ids": [5, 6]}])
    for options in ({"rate": 0.0}, {"rate": 1.5}, {"unit": "letter"}, {"masked": 0.9, "random": 0.2}):
        with pytest.raises(MixlabError):
            MaskingCollator(SMALL, 0, **options)
    bare = PreTrainedTokenizerFast(tokenizer_object=causal.backend_tokenizer, pad_token="[PAD]")
    with pytest.raises(MixlabError, match="mask token"):
        MaskingCollator(bare, 0)
