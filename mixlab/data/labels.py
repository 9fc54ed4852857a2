"""Labels: names learned from the training rows, so that a later row with another one is refused by its value and place.

Texts and whole numbers are classes, lists are several labels at once, other numbers are to be predicted themselves (regression).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from mixlab.errors import MixlabError, unknown

LabelKind = Literal["single", "multi", "regression"]
PROBLEMS = {
    "single": "single_label_classification",
    "multi": "multi_label_classification",
    "regression": "regression",
}
MOST = 10_000  # classes; beyond it a column of names or ids was taken for labels


@dataclass(frozen=True)
class Labels:
    """What a label can be. `names[i]` is class i; regression has none."""

    kind: LabelKind
    names: tuple[str, ...] = ()

    def config_fields(self) -> dict[str, Any]:
        """For a model's configuration."""
        if self.kind == "regression":
            return {"num_labels": 1, "problem_type": PROBLEMS[self.kind]}
        id2label = dict(enumerate(self.names))
        label2id = {name: i for i, name in id2label.items()}
        return {"id2label": id2label, "label2id": label2id, "problem_type": PROBLEMS[self.kind]}

    def encode(self, value: Any, where: str) -> int | float | list[float]:
        """A row's label as the model reads it."""
        _family(value, where)
        if self.kind == "regression":
            number = _as_number(value)
            if number is None:
                raise MixlabError(f"{where}: label {value!r} is not a number, but the other labels are")
            return number
        if (self.kind == "multi") != isinstance(value, list):
            raise MixlabError(
                f"{where}: label {value!r} is {'not ' if self.kind == 'multi' else ''}a list, unlike those of the training rows"
            )
        if self.kind == "multi":
            present = {self._index(element, where) for element in value}
            return [float(i in present) for i in range(len(self.names))]
        return self._index(value, where)

    def _index(self, value: Any, where: str) -> int:
        try:
            return self.names.index(_name(value))
        except ValueError:
            shown = ", ".join(self.names[:10]) + (", ..." if len(self.names) > 10 else "")
            raise MixlabError(f"{where}: label {value!r} is not among those of the training rows ({shown}); correct the row") from None


def learn(rows: Iterable[tuple[str, Any]], kind: LabelKind | None = None, declared: tuple[str, ...] = ()) -> Labels:
    """The labels of training rows, given as (where, value). `declared` are names that the table itself lists."""
    if kind is not None and kind not in PROBLEMS:
        raise unknown("kind of labels", kind, PROBLEMS)
    family, first, values = "", "", set()
    for where, value in rows:
        now = _family(value, where)
        if {family, now} == {"a whole number", "a number"}:
            family = now = "a number"
        if family and now != family:
            raise MixlabError(f"{where}: label {value!r} is {now}, but {first} has {family}; labels must be of one type")
        family, first = now, first or where
        values.update(value if isinstance(value, list) else [value])
        if len(values) > MOST and kind != "regression" and family in ("text", "a list"):
            raise MixlabError(f"{where}: more than {MOST} different labels; name the column that holds the labels")
    kind = kind or _kind(family, values)
    if kind == "regression":
        return _regression(values, first)
    if (kind == "multi") != (family == "a list"):
        raise MixlabError(f"{first}: labels are {family}, which does not suit {kind!r}; several labels at once are lists, one is not")
    return Labels(kind, declared or _names(values, first))


def _kind(family: str, values: set[Any]) -> LabelKind:
    if family == "a list":
        return "multi"
    if family == "a number":
        return "regression"
    numbers = [_as_number(value) for value in values] if family == "text" else []
    whole = all(_is_whole(value) for value in values)
    return "regression" if numbers and None not in numbers and not whole else "single"


def _regression(values: set[Any], where: str) -> Labels:
    odd = next((value for value in values if _as_number(value) is None), None)
    if odd is not None:
        raise MixlabError(f"{where} and on: label {odd!r} is not a number, which regression needs")
    return Labels("regression")


def _names(values: set[Any], where: str) -> tuple[str, ...]:
    if len(values) < 2:
        found = ", ".join(repr(value) for value in values) or "none"
        raise MixlabError(f"{where} and on: the only label is {found}; telling classes apart needs at least two")
    if not all(_is_whole(value) for value in values):
        return tuple(sorted(_name(value) for value in values))
    numbers = sorted({int(value) for value in values})
    for before, after in itertools.pairwise(numbers):
        if after != before + 1:
            raise MixlabError(
                f"{where} and on: labels {before} and {after} occur, but {before + 1} does not; "
                "number classes without gaps, write names, or say that they are numbers to predict (label_kind=regression)"
            )
    return tuple(map(str, numbers))


def _family(value: Any, where: str) -> str:
    """The type of a label in words; what cannot be a label is refused."""
    if value is None or (isinstance(value, str) and not value.strip()):
        raise MixlabError(f"{where}: the label is missing; fill it in or drop the row")
    if isinstance(value, list):
        for element in value:
            if isinstance(element, list) or _family(element, where) == "a number":
                raise MixlabError(f"{where}: {element!r} in a list of labels; they must be names or whole numbers")
        return "a list"
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, int):
        return "a whole number"
    if isinstance(value, float):
        if not math.isfinite(value):
            raise MixlabError(f"{where}: the label is {value}; it must be finite")
        return "a number"
    if isinstance(value, str):
        return "text"
    raise MixlabError(f"{where}: label {str(value)[:60]!r} is neither text, number nor list")


def _name(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    text = str(value).strip()
    return str(int(text)) if _is_whole(value) else text


def _is_whole(value: Any) -> bool:
    text = str(value).strip()
    return not isinstance(value, bool) and text.removeprefix("-").isdecimal() and text.isascii() and len(text) < 19


def _as_number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) and not isinstance(value, bool) else None
