"""Which columns of a table hold what: given by name, or guessed from the usual names; the guess is always told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Literal

from mixlab.errors import MixlabError, unknown

Kind = Literal["texts", "sentences", "pairs", "questions"]
KINDS = ("texts", "sentences", "pairs", "questions")

TEXT = ("text", "sentence", "content", "document", "review", "tweet", "comment", "body", "article", "sentence1", "utterance", "title")
LABEL = ("label", "labels", "gold_label", "target", "class", "category", "sentiment", "score", "rating", "stars", "relatedness", "y")
GROUP = ("source", "genre", "domain", "group")
PAIRS = (
    ("premise", "hypothesis"),
    ("sentence1", "sentence2"),
    ("question1", "question2"),
    ("sentence_A", "sentence_B"),
    ("text_a", "text_b"),
    ("text1", "text2"),
    ("text", "text_pair"),
    ("question", "sentence"),
    ("query", "passage"),
)
USUAL = {
    "text": TEXT,
    "label": LABEL,
    "group": GROUP,
    "answers": ("answers", "answer", "answer_text"),
    "id": ("id", "qid", "question_id"),
}
NEEDED = {"texts": ("text",), "sentences": ("text", "label"), "pairs": ("text", "text_pair", "label"), "questions": ("question", "context")}
OPTIONAL = {"texts": (), "sentences": ("group",), "pairs": ("group",), "questions": ("id", "answers", "answer_start", "is_impossible")}


@dataclass(frozen=True)
class Columns:
    """Names of columns; None is guessed. `group` names where a row comes from, for scores by source."""

    text: str | None = None
    text_pair: str | None = None
    label: str | None = None
    group: str | None = None
    question: str | None = None
    context: str | None = None
    answers: str | None = None
    answer_start: str | None = None
    is_impossible: str | None = None
    id: str | None = None

    def given(self) -> dict[str, str]:
        return {field.name: value for field in fields(self) if (value := getattr(self, field.name)) is not None}


def resolve(kind: Kind, asked: Columns, found: Sequence[str], place: str) -> tuple[dict[str, str], str]:
    """What each role is called in this table, and the sentence that tells which names were guessed."""
    roles = (*NEEDED[kind], *OPTIONAL[kind])
    given = asked.given()
    for role, name in given.items():
        if role not in roles:
            raise MixlabError(f"{place}: a column for {role!r} was given, but {kind} have none; they have: {', '.join(roles)}")
        if name not in found:
            raise unknown("column", name, found, hint=f"({place})")
    guessed = {role: name for role, name in _guess(kind, given, found).items() if role not in given}
    chosen = {**guessed, **given}
    missing = [role for role in NEEDED[kind] if role not in chosen]
    if missing:
        raise MixlabError(
            f"{place}: no column for {' and '.join(missing)} among: {', '.join(map(repr, found)) or 'none'}; "
            f"{kind} need {' and '.join(NEEDED[kind])}, so name the column or correct the file"
        )
    if len(set(chosen.values())) < len(chosen):
        raise MixlabError(f"{place}: one column cannot be two things: {_told(chosen)}; name the columns")
    return chosen, f"{place}: {_told(guessed)} (guessed)" if guessed else ""


def _guess(kind: Kind, given: dict[str, str], found: Sequence[str]) -> dict[str, str]:
    free = [name for name in found if name not in given.values()]
    actual = {name.lower(): name for name in reversed(free)}  # the first of two that differ in case
    guess: dict[str, str] = {}
    if kind == "pairs" and not {"text", "text_pair"} & set(given):
        pair = next((pair for pair in PAIRS if all(name.lower() in actual for name in pair)), ())
        guess.update(zip(("text", "text_pair"), (actual[name.lower()] for name in pair), strict=False))
    for role in (*NEEDED[kind], *OPTIONAL[kind]):
        if kind == "pairs" and role in ("text", "text_pair"):
            continue
        name = next((actual[name.lower()] for name in USUAL.get(role, (role,)) if name.lower() in actual), None)
        if name is None and kind == "texts" and len(free) == 1:
            name = free[0]
        if name is not None:
            guess[role] = name
    return guess


def _told(chosen: dict[str, str]) -> str:
    return ", ".join(f"{role} = {name!r}" for role, name in chosen.items())
