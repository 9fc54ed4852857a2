"""The simple methods that models are compared with: counting, against a naive loop; classification, against cases with known answers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from datasets import Dataset
from hypothesis import given
from hypothesis import strategies as st

from mixlab.data.labels import Labels
from mixlab.tasks.baselines import commonest, features, linear_on_words
from mixlab.tasks.trigram import Trigram
from tests.reference.trigram import kneser_ney

VOCABULARY = 7


@given(st.lists(st.integers(0, VOCABULARY - 2), min_size=3, max_size=80), st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=20))
def test_the_trigram_equals_a_naive_one(seen: list[int], asked: list[int]) -> None:
    found = Trigram(np.array(seen), VOCABULARY).log_probabilities(np.array(asked))
    expected = kneser_ney(seen, VOCABULARY)
    context = [0, 0, *asked]
    for place, token in enumerate(asked):
        assert found[place] == pytest.approx(math.log(expected(token, *context[place : place + 2])), abs=1e-10)


@given(st.lists(st.integers(0, VOCABULARY - 2), min_size=3, max_size=80), st.integers(0, VOCABULARY - 1), st.integers(0, VOCABULARY - 1))
def test_probabilities_of_all_next_tokens_sum_to_one(seen: list[int], a: int, b: int) -> None:
    model = Trigram(np.array(seen), VOCABULARY)
    total = sum(math.exp(model.log_probabilities(np.array([a, b, c]))[2]) for c in range(VOCABULARY))
    assert total == pytest.approx(1.0, abs=1e-10)


def test_the_trigram_finds_the_entropy_of_a_chain() -> None:
    """A stream whose next token is one of two, evenly, has a perplexity of 2."""
    generator = np.random.default_rng(0)
    steps = generator.integers(1, 3, 40_000)
    stream = np.cumsum(steps) % 11
    nats = -Trigram(stream[:30_000], 11).log_probabilities(stream[30_000:])
    assert math.exp(nats.mean()) == pytest.approx(2.0, abs=0.02)


def labelled(texts: list[Any], label: list[Any], second: list[str] | None = None) -> Dataset:
    return Dataset.from_dict({"text": texts, **({"text_pair": second} if second else {}), "label": label})


def test_the_linear_model_separates_what_words_separate() -> None:
    train = labelled(["good fun", "bad bore"] * 10, [1, 0] * 10)
    rows = labelled(["a good one", "a bad one"], [1, 0])
    labels = Labels("single", ("no", "yes"))
    assert linear_on_words(train, rows, labels).tolist() == [1, 0]
    assert commonest(labelled(["x"] * 3, [1, 1, 0]), rows, labels).tolist() == [1, 1]


def test_the_linear_model_of_pairs_sees_which_words_both_have() -> None:
    words = ["tree", "house", "river", "stone"]
    pairs = [(a, b, int(a == b)) for a in words for b in words] * 4
    first, second, label = (list(column) for column in zip(*pairs, strict=True))
    train = labelled(first, label, second)
    assert linear_on_words(train, train, Labels("single", ("differ", "same"))).tolist() == label
    assert "both:tree" in features("a tree", "tree")
    assert "first:tree" in features("a tree", "house")


def test_several_labels_and_numbers() -> None:
    texts = ["red", "blue", "red blue", "green"] * 6
    several = [[1, 0], [0, 1], [1, 1], [0, 0]] * 6
    found = linear_on_words(labelled(texts, several), labelled(texts, several), Labels("multi", ("red", "blue")))
    assert found.tolist() == several
    assert commonest(labelled(texts, several), labelled(["x"], [[0, 0]]), Labels("multi", ("red", "blue"))).tolist() == [[0, 0]]
    numbers = labelled(texts, [1.0, 2.0, 3.0, 0.0] * 6)
    assert commonest(numbers, numbers, Labels("regression", ())).tolist() == [1.5] * 24
    assert np.corrcoef(linear_on_words(numbers, numbers, Labels("regression", ())), numbers["label"])[0, 1] > 0.9
