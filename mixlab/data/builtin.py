"""Sources that need no network: the documentation that Python carries, and generated tasks whose best possible score is known.

Each is a pure function of a seed (`pydocs`: of the Python version) and comes with what the best possible model reaches on it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mixlab.data import draws, languages, pydocs, stories
from mixlab.errors import MixlabError, unknown

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

SIZES = {"train": 4000, "validation": 500, "test": 1000}


@dataclass(frozen=True)
class Description:
    """What a source is, and the score that no model can beat (None: unknown)."""

    name: str
    about: str
    kind: str
    measure: str
    best: float | None


@dataclass(frozen=True)
class Builtin:
    """Splits with their description."""

    data: DatasetDict
    description: Description

    def split(self, name: str | None) -> Dataset:
        if name is None:
            raise MixlabError(f"{self.description.name} has splits: {', '.join(map(str, self.data))}; say which, for example split='train'")
        if name not in self.data:
            raise unknown("split", name, map(str, self.data))
        return self.data[name]


def names() -> list[str]:
    return sorted(SOURCES)


def load(name: str, seed: int = 0) -> Builtin:
    """A built-in source by its name."""
    if name not in SOURCES:
        raise unknown("built-in dataset", name, SOURCES)
    return SOURCES[name](seed)


@functools.cache
def python_documentation(seed: int = 0) -> Builtin:
    """Help topics and docstrings of the standard library, split by the hash of the document; the seed changes nothing."""
    description = Description("pydocs", "help topics and docstrings of Python's standard library", "texts", "perplexity", None)
    return Builtin(_dict(pydocs.splits()), description)


def sentences(seed: int = 0, sizes: dict[str, int] = SIZES, noise: float = 0.1) -> Builtin:
    """Verdicts of two clauses, of which "but" and "although" say which one counts, and "not" turns it; `noise` of the labels are wrong."""

    def row(u: np.ndarray) -> tuple[dict[str, str], int]:
        clauses, goods = zip(_clause(u[1:6]), _clause(u[6:11]), strict=True)
        form = int(u[0] * 3)
        text = ("{} but {}", "although {} , {}", "{} although {}")[form].format(*clauses) + " ."
        return {"text": text}, int(goods[0 if form == 2 else 1])

    about = "generated reviews of two clauses; the conjunction says which one counts"
    return _noisy("sentences", about, row, ("negative", "positive"), seed, sizes, noise)


def pairs(seed: int = 0, sizes: dict[str, int] = SIZES, noise: float = 0.05) -> Builtin:
    """Who has which thing, and a claim made of the same words: only aligning the two sentences tells whether it is true."""

    def row(u: np.ndarray) -> tuple[dict[str, str], int]:
        people, colours, things = (_some(words, 4, part) for words, part in ((PEOPLE, u[:12]), (COLOURS, u[12:22]), (THINGS, u[22:32])))
        facts = [f"{person} has the {colour} {thing}" for person, colour, thing in zip(people, colours, things, strict=True)]
        who, true = int(u[32] * 4), u[33] < 0.5
        other = who if true else (who + 1 + int(u[34] * 3)) % 4
        return {"text": " , ".join(facts) + " .", "text_pair": f"{people[who]} has the {colours[other]} {things[other]} ."}, int(true)

    return _noisy("pairs", "generated facts and a claim of the same words", row, ("false", "true"), seed, sizes, noise)


def language(seed: int = 0, sizes: dict[str, int] = SIZES, symbols: int = 24, order: int = 2, length: int = 64) -> Builtin:
    """Words drawn by a Markov source of the given order; no model's perplexity per word is below the description's."""
    source = languages.Markov(seed, symbols, order)
    description = Description("language", f"a Markov language of order {order}", "texts", "perplexity per word", source.perplexity(length))
    return Builtin(_texts(seed, sizes, lambda u: source.text(u), length), description)


def brackets(seed: int = 0, sizes: dict[str, int] = SIZES, kinds: int = 4, depth: int = 6, length: int = 64) -> Builtin:
    """Nested brackets: what closes depends on what was opened, however long ago."""
    source = languages.Brackets(kinds, depth)
    description = Description("brackets", f"nested brackets of {kinds} kinds", "texts", "perplexity per bracket", source.perplexity(length))
    return Builtin(_texts(seed, sizes, lambda u: source.text(u), length), description)


def questions(seed: int = 0, sizes: dict[str, int] = SIZES, unanswerable: float = 0.2) -> Builtin:
    """Reports on shipments, longer than a window, and a question about each; the answer is told once, or (`unanswerable`) not at all."""
    if not 0.0 <= unanswerable < 1.0:
        raise MixlabError(f"unanswerable is {unanswerable}; it must be at least 0 and below 1")
    splits = {
        split: [
            {"id": f"{split}-{i}", **stories.row(draws.uniform(seed, draws.BUILTIN, number, i, stories.DRAWS), unanswerable)}
            for i in range(size)
        ]
        for number, (split, size) in enumerate(sizes.items())
    }
    about = "generated reports that answer a question once, or not at all"
    return Builtin(_dict(splits), Description("questions", about, "questions", "exact match", 1.0))


SOURCES: dict[str, Callable[[int], Builtin]] = {
    "pydocs": python_documentation,
    "sentences": sentences,
    "pairs": pairs,
    "language": language,
    "brackets": brackets,
    "questions": questions,
}
PEOPLE = ("anna", "ben", "clara", "david", "emma", "felix", "grace", "henry", "iris", "jack", "kate", "leo")
COLOURS = ("red", "blue", "green", "yellow", "black", "white", "brown", "pink", "grey", "orange")
THINGS = ("ball", "cup", "book", "hat", "lamp", "chair", "key", "coat", "clock", "box")
NOUNS = ("film", "story", "music", "cast", "ending", "dialogue", "pace", "picture", "book", "plot", "food", "service", "room", "view")
ADVERBS = ("", "very ", "really ", "quite ", "rather ")
GOOD = ("good", "great", "fine", "lovely", "clever", "bright", "warm", "fresh", "moving", "funny")
BAD = ("bad", "poor", "dull", "awful", "boring", "weak", "cold", "stale", "clumsy", "silly")


def _clause(u: np.ndarray) -> tuple[str, bool]:
    good, negated = bool(u[0] < 0.5), bool(u[1] < 0.3)
    noun, adverb = NOUNS[int(u[2] * len(NOUNS))], ADVERBS[int(u[4] * len(ADVERBS))]
    adjective = (GOOD if good else BAD)[int(u[3] * len(GOOD))]
    return f"the {noun} was {'not ' if negated else ''}{adverb}{adjective}", good != negated


def _some(words: tuple[str, ...], count: int, u: np.ndarray) -> list[str]:
    return [words[i] for i in np.argsort(u[: len(words)], kind="stable")[:count]]


def _noisy(
    name: str,
    about: str,
    row: Callable[[np.ndarray], tuple[dict[str, str], int]],
    classes: tuple[str, str],
    seed: int,
    sizes: dict[str, int],
    noise: float,
) -> Builtin:
    """Rows with exactly `noise` of the labels of each split turned, so that the best accuracy is 1 - noise on each of them."""
    if not 0.0 <= noise < 0.5:
        raise MixlabError(f"noise is {noise}; it must be at least 0 and below 0.5")
    splits = {}
    for number, (split, size) in enumerate(sizes.items()):
        made = [row(draws.uniform(seed, draws.BUILTIN, number, i, 40)) for i in range(size)]
        wrong = set(draws.permutation(seed, draws.BUILTIN, number, size, size)[: round(noise * size)].tolist())
        splits[split] = [{**texts, "label": label ^ (i in wrong)} for i, (texts, label) in enumerate(made)]
    return Builtin(_dict(splits, classes), Description(name, about, name, "accuracy", 1.0 - noise))


def _texts(seed: int, sizes: dict[str, int], text: Callable[[np.ndarray], str], length: int) -> DatasetDict:
    return _dict(
        {
            split: [{"text": text(draws.uniform(seed, draws.BUILTIN, number, i, length))} for i in range(size)]
            for number, (split, size) in enumerate(sizes.items())
        }
    )


def _dict(splits: dict[str, list[dict[str, Any]]], classes: tuple[str, ...] = ()) -> DatasetDict:
    from datasets import ClassLabel, Dataset, DatasetDict, Features, List, Value

    known = {"label": ClassLabel(names=list(classes)), "answers": {"text": List(Value("string")), "answer_start": List(Value("int32"))}}

    def built(rows: list[dict[str, Any]]) -> Dataset:
        types = {column: known.get(column, Value("string")) for column in rows[0]}
        return Dataset.from_list(rows, features=Features(types))

    return DatasetDict({split: built(rows) for split, rows in splits.items()})
