"""Rows as tasks read them: one shape per kind, whatever the file called its columns; a row that cannot be read is named by its place.

texts      text, document_end
sentences  text, label, group
pairs      text, text_pair, label, group
questions  id, question, context, answers (text, answer_start)
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from mixlab.data import files
from mixlab.data.columns import Kind
from mixlab.data.labels import Labels
from mixlab.errors import MixlabError

SURROGATE = re.compile("[\ud800-\udfff]")


def convert(kind: Kind, rows: files.Rows, names: dict[str, str], labels: Labels | None) -> Iterator[dict[str, Any]]:
    """Rows of a kind; `names` says what each role is called in the table."""
    if kind == "texts":
        return _texts(rows, names["text"])
    if kind == "questions":
        return _questions(rows, names)
    assert labels is not None
    return _labelled(rows, names, labels)


def labels_of(rows: files.Rows, column: str) -> Iterator[tuple[str, Any]]:
    """Where each label is, and the label."""
    return ((where, value(row, column, where)) for where, row in rows)


def value(row: dict[str, Any], column: str, where: str) -> Any:
    if column not in row:
        raise MixlabError(f"{where}: column {column!r} is missing; this row has: {', '.join(map(repr, row)) or 'none'}"[:300])
    return row[column]


def text_of(row: dict[str, Any], column: str, where: str, empty: bool = False) -> str:
    """A column that must hold text, and more than blanks unless `empty`."""
    text = value(row, column, where)
    if not isinstance(text, str):
        kind = "nothing" if text is None else f"{str(text)[:40]!r} ({type(text).__name__})"
        raise MixlabError(f"{where}: column {column!r} holds {kind}, not text; correct the row")
    if "\0" in text or SURROGATE.search(text):
        raise MixlabError(f"{where}: column {column!r} holds a character that is not text (NUL or half of a surrogate pair); remove it")
    if not empty and not text.strip():
        raise MixlabError(f"{where}: column {column!r} is empty; fill it in or drop the row")
    return text


def _texts(rows: files.Rows, column: str) -> Iterator[dict[str, Any]]:
    """Long documents come in pieces; empty ones are passed over."""
    for where, row in rows:
        text = text_of(row, column, where, empty=True)
        ends = row.get("document_end", True)
        if "document_end" in row or text.strip():
            for piece, last in files.pieces(text):
                yield {"text": piece, "document_end": last and ends}


def _labelled(rows: files.Rows, names: dict[str, str], labels: Labels) -> Iterator[dict[str, Any]]:
    for where, row in rows:
        out: dict[str, Any] = {role: text_of(row, names[role], where) for role in ("text", "text_pair") if role in names}
        out["label"] = labels.encode(value(row, names["label"], where), where)
        if "group" in names:
            out["group"] = str(value(row, names["group"], where))
        yield out


def _questions(rows: files.Rows, names: dict[str, str]) -> Iterator[dict[str, Any]]:
    seen: dict[str, str] = {}
    for number, (where, row) in enumerate(rows):
        name = str(value(row, names["id"], where)) if "id" in names else str(number)
        if name in seen:
            raise MixlabError(f"{where}: id {name!r} was already used in {seen[name]}; ids must differ")
        seen[name] = where
        context = text_of(row, names["context"], where)
        yield {
            "id": name,
            "question": text_of(row, names["question"], where),
            "context": context,
            "answers": _answers(row, names, context, where),
        }


def _answers(row: dict[str, Any], names: dict[str, str], context: str, where: str) -> dict[str, list[Any]]:
    """Answers as lists of texts and of places in the context, checked against it; none for a question without an answer."""
    given = row.get(names["answers"]) if "answers" in names else None
    starts: Any = row.get(names["answer_start"]) if "answer_start" in names else None
    if row.get(names.get("is_impossible", "")) in (True, "true", "True", "1", 1):
        return {"text": [], "answer_start": []}
    if isinstance(given, dict):
        given, starts = given.get("text"), given.get("answer_start")
    elif isinstance(given, list) and all(isinstance(answer, dict) for answer in given):
        given, starts = [answer.get("text") for answer in given], [answer.get("answer_start") for answer in given]
    if given in (None, ""):
        given = []
    texts = given if isinstance(given, list) else [given]
    places = starts if isinstance(starts, list) else [starts] * len(texts)
    if len(places) != len(texts):
        raise MixlabError(f"{where}: {len(texts)} answers with {len(places)} places; each answer needs one")
    found = [_place(text, place, context, where) for text, place in zip(texts, places, strict=True)]
    return {"text": texts, "answer_start": found}


def _place(text: Any, place: Any, context: str, where: str) -> int:
    """Where an answer starts: as given and checked, or its first occurrence."""
    if not isinstance(text, str) or not text.strip():
        raise MixlabError(f"{where}: answer {str(text)[:60]!r} is not a text; a question without an answer has an empty list")
    if isinstance(place, str) and place.strip().isdecimal():
        place = int(place)
    if place in (None, ""):
        place = context.find(text)
        if place < 0:
            raise MixlabError(f"{where}: answer {text[:60]!r} is not in the context; answers must be copied from it")
    if not isinstance(place, int) or isinstance(place, bool):
        raise MixlabError(f"{where}: answer_start {str(place)[:40]!r} is not a whole number; give the character at which the answer starts")
    if place < 0 or context[place : place + len(text)] != text:
        remedy = (
            "it occurs elsewhere: count characters, not bytes, or leave answer_start out" if text in context else "copy it from the context"
        )
        raise MixlabError(f"{where}: answer {text[:60]!r} is not in the context at {place}; {remedy}")
    return place
