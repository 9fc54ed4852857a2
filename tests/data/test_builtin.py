"""Built-in sources: pure functions of their seed, and best scores that an oracle reaches and cannot pass."""

from __future__ import annotations

import hashlib
import itertools
import math
import subprocess
import sys
from collections import Counter
from typing import Any

import numpy as np
import pytest

from mixlab.data import builtin, languages, pydocs
from mixlab.errors import MixlabError

SIZES = {"train": 300, "validation": 100, "test": 200}
GENERATED = {"sentences": builtin.sentences, "pairs": builtin.pairs, "language": builtin.language, "brackets": builtin.brackets}


def texts(made: builtin.Builtin, split: str) -> list[str]:
    return list(made.split(split)["text"])


@pytest.mark.parametrize("name", GENERATED)
def test_the_seed_decides(name: str) -> None:
    make: Any = GENERATED[name]
    first, again, other = make(3, SIZES), make(3, SIZES), make(4, SIZES)
    for split, size in SIZES.items():
        assert list(first.split(split)) == list(again.split(split))
        assert len(first.split(split)) == size
        assert texts(first, split) != texts(other, split)
    assert not set(texts(first, "train")) & set(texts(first, "test")) or name == "sentences"
    assert texts(make(3, {**SIZES, "train": 400}), "train")[:300] == texts(first, "train")


def verdict(text: str) -> int:
    """Reads a review as a person would: which clause counts, and what it says."""
    if text.startswith("although"):
        clause = text.split(" , ")[1]
    elif " but " in text:
        clause = text.split(" but ")[1]
    else:
        clause = text.split(" although ")[0]
    return int(any(word in builtin.GOOD for word in clause.split()) != ("not" in clause.split()))


def held(row: dict[str, Any]) -> int:
    return int(row["text_pair"].removesuffix(" .") in row["text"].removesuffix(" .").split(" , "))


@pytest.mark.parametrize("split", SIZES)
def test_the_best_accuracy_is_what_an_oracle_reaches(split: str) -> None:
    reviews, facts = builtin.sentences(1, SIZES), builtin.pairs(1, SIZES)
    right = np.mean([verdict(row["text"]) == row["label"] for row in reviews.split(split)])
    assert right == pytest.approx(reviews.description.best)
    right = np.mean([held(row) == row["label"] for row in facts.split(split)])
    assert right == pytest.approx(facts.description.best)


def test_labels_are_balanced_and_not_given_away() -> None:
    """Neither words, nor the claim alone, nor the overlap of the two sentences tells the label of a pair."""
    rows = list(builtin.pairs(0).split("train"))
    labels = np.array([row["label"] for row in rows])
    assert abs(labels.mean() - 0.5) < 0.04
    for row in rows:
        assert set(row["text_pair"].split()) <= set(row["text"].split())
    for words in (builtin.PEOPLE, builtin.COLOURS, builtin.THINGS):
        for word in words:
            share = labels[[word in row["text_pair"].split() for row in rows]].mean()
            assert abs(share - 0.5) < 0.13, word
    reviews = list(builtin.sentences(0).split("train"))
    assert abs(np.mean([row["label"] for row in reviews]) - 0.5) < 0.04


def test_one_clause_alone_does_not_decide() -> None:
    rows = list(builtin.sentences(0, SIZES, noise=0.0).split("train"))
    counted = [
        sum(word in builtin.GOOD for word in row["text"].split()) - sum(w in builtin.BAD for w in row["text"].split()) for row in rows
    ]
    guess = [int(count > 0) for count in counted]
    assert np.mean([g == row["label"] for g, row in zip(guess, rows, strict=True)]) < 0.75


@pytest.mark.parametrize(("symbols", "order"), [(5, 1), (6, 2), (24, 2), (3, 4)])
def test_the_entropy_of_the_markov_source_is_that_of_its_texts(symbols: int, order: int) -> None:
    """Cross-entropy of the source on its own texts, with its table; the stationary start by solving for it instead of iterating."""
    source = languages.Markov(0, symbols, order)
    assert source.next.sum(1) == pytest.approx(1.0)
    move = np.zeros((source.states, source.states))
    for state in range(source.states):
        for symbol in range(symbols):
            move[state, state * symbols % source.states + symbol] += source.next[state, symbol]
    solved = np.linalg.lstsq(np.vstack([move.T - np.eye(source.states), np.ones(source.states)]), np.r_[np.zeros(source.states), 1.0])[0]
    assert source.start == pytest.approx(solved, abs=1e-9)
    rng, nats = np.random.default_rng(0), []
    for _ in range(150):
        seen = source.symbols_of(rng.random(64))
        state = int("".join(map(str, seen[:order])), symbols) if symbols <= 10 else seen[0] * symbols + seen[1]
        total = -math.log(source.start[state])
        for symbol in seen[order:]:
            total -= math.log(source.next[state, symbol])
            state = state * symbols % source.states + symbol
        nats.append(total / 64)
    error = np.std(nats) / math.sqrt(len(nats))
    assert abs(np.mean(nats) - math.log(source.perplexity(64))) < 4 * error
    assert 1.5 < source.perplexity(64) < symbols


def test_counting_finds_the_entropy_too() -> None:
    """Frequencies of a long text, knowing nothing of the table."""
    source = languages.Markov(0, 4, 1)
    seen = source.symbols_of(np.random.default_rng(1).random(100_000))
    pairs, singles = Counter(itertools.pairwise(seen)), Counter(seen[:-1])
    measured = -sum(count * math.log(count / singles[first]) for (first, _), count in pairs.items()) / (len(seen) - 1)
    assert measured == pytest.approx(source.entropy_rate(), abs=0.01)


def test_brackets_close_and_their_entropy_is_exact() -> None:
    source = languages.Brackets(3, 4)
    rng, nats = np.random.default_rng(0), []
    closes = {close: open_ for open_, close in source.SHAPES}
    for _ in range(400):
        total, open_ = 0.0, []
        for symbol in source.text(rng.random(40)).split():
            total += math.log(2) if 0 < len(open_) < 4 else 0.0
            if symbol in closes:
                assert open_.pop() == closes[symbol]
            else:
                total += math.log(3)
                open_.append(symbol)
                assert len(open_) <= 4
        nats.append(total / 40)
    assert abs(np.mean(nats) - math.log(source.perplexity(40))) < 4 * np.std(nats) / 20


def test_words_are_distinct() -> None:
    assert len({languages.word(i) for i in range(700)}) == 700


def test_python_documentation() -> None:
    made = builtin.load("pydocs")
    sizes = {split: sum(map(len, texts(made, split))) for split in made.data}
    assert sizes["train"] > 10 * sizes["validation"] > 0
    assert sum(sizes.values()) > 500_000
    everything = [text for split in made.data for text in texts(made, split)]
    assert len(set(everything)) == len(everything)
    for text in everything:
        assert text == text.strip()
        assert "\n\n\n" not in text
        assert text.replace("\n", "").replace("\t", "").isprintable() or not any(
            ord(c) < 32 for c in text.replace("\n", "").replace("\t", "")
        )


def test_python_documentation_imports_nothing_and_repeats() -> None:
    code = (
        "import sys, hashlib; from mixlab.data import pydocs; before = set(sys.modules); s = str(pydocs.splits());"
        "print(hashlib.sha256(s.encode()).hexdigest(), *sorted(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    digest, *imported = done.stdout.split()
    assert digest == hashlib.sha256(str(pydocs.splits()).encode()).hexdigest()
    assert not {"antigravity", "this", "tkinter", "turtle", "idlelib"} & set(imported)
    assert done.stderr == ""


def test_cleaning() -> None:
    assert pydocs.clean("Title\n=====\n\n\n\nUse :func:`~os.path` and ``x``.  \n  +---+---+\n") == "Title\n\nUse os.path and `x`."


def test_what_cannot_be_made_is_refused() -> None:
    for wrong in (
        lambda: builtin.load("sentence"),
        lambda: builtin.sentences(0, SIZES).split("dev"),
        lambda: builtin.sentences(0, SIZES).split(None),
        lambda: builtin.sentences(0, SIZES, noise=0.5),
        lambda: languages.Markov(0, 1, 1),
        lambda: languages.Markov(0, 100, 4),
        lambda: languages.Markov(0, 4, 2).perplexity(2),
        lambda: languages.Brackets(9, 2),
        lambda: builtin.sentences(-1, SIZES),
    ):
        with pytest.raises(MixlabError):
            wrong()


def test_names_without_torch() -> None:
    code = "import sys; from mixlab.data import builtin; print(builtin.names(), 'torch' in sys.modules, 'datasets' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split("] ")[1].split() == ["False", "False"]
