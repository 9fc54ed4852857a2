"""Reads an expression from left to right: sizes, arrows, options. Every complaint names its character."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from mixlab.accounting.lexing import ExpressionError, Token, tokens

Kind = Literal["number", "size", "sizes", "flag"]  # sizes: one, and perhaps another behind an arrow


@dataclass(frozen=True)
class Size:
    """`256x256`, and where it stands."""

    sides: tuple[int, ...]
    position: int
    text: str

    @property
    def product(self) -> int:
        return math.prod(self.sides)


@dataclass(frozen=True)
class Option:
    """What was given for an option: one size or two (a number is a size of one side), or none for a flag."""

    name: str
    sizes: tuple[Size, ...]
    position: int


class Options:
    """The options of an expression; a missing one that is needed is an error."""

    def __init__(self, reader: Reader, given: Mapping[str, Option]) -> None:
        self.reader, self.given = reader, given

    def __contains__(self, name: str) -> bool:
        return name in self.given

    def size(self, name: str) -> Size | None:
        return self.given[name].sizes[0] if name in self.given else None

    def number(self, name: str, what: str, default: int | None = None) -> int:
        if name in self.given:
            return self.given[name].sizes[0].sides[0]
        if default is None:
            raise self.reader.error(f"{name}= is missing: {what}")
        return default

    def choice(self, *names: str) -> str:
        """Which of several flags was given; the first is the default, and two are one too many."""
        given = [name for name in names if name in self.given]
        if len(given) > 1:
            raise self.refuse(given[1], f"{given[0]} and {given[1]} exclude each other; give one of them")
        return given[0] if given else names[0]

    def refuse(self, name: str, message: str) -> ExpressionError:
        """An error at the value of an option."""
        option = self.given[name]
        return self.reader.error_at(option.sizes[-1].position if option.sizes else option.position, message)

    def divides(self, part: str, whole: int, what: str) -> None:
        """That an option is a divisor."""
        if part in self.given and whole % self.number(part, ""):
            raise self.refuse(part, f"{what} {whole} cannot be split into {part}={self.number(part, '')}; use a divisor")


class Reader:
    def __init__(self, expression: str) -> None:
        self.expression = expression
        self.tokens, self.place = tokens(expression), 0

    @property
    def next(self) -> Token:
        return self.tokens[self.place]

    def error(self, message: str) -> ExpressionError:
        return ExpressionError(self.expression, self.next.position, self.next.text, message)

    def error_at(self, position: int, message: str) -> ExpressionError:
        found = next((token.text for token in self.tokens if token.position == position), "")
        return ExpressionError(self.expression, position, found, message)

    def take(self, kind: str) -> Token | None:
        if self.next.kind != kind:
            return None
        self.place += 1
        return self.tokens[self.place - 1]

    def word(self, expected: str) -> Token:
        found = self.take("word")
        if found is None:
            raise self.error(f"expected {expected}")
        return found

    def keyword(self, word: str) -> None:
        if self.next.text != word:
            raise self.error(f"expected {word!r}")
        self.place += 1

    def size(self, what: str, sides: Sequence[int] = ()) -> Size:
        """Numbers joined by x; `sides` are how many there may be, any where none are given."""
        start = self.next
        numbers = [self.number(what)]
        while self.take("times"):
            numbers.append(self.number(what))
        text = self.expression[start.position - 1 : self.tokens[self.place - 1].position - 1] + self.tokens[self.place - 1].text
        if sides and len(numbers) not in sides:
            wanted = " or ".join("x".join("n" * many) for many in sides)
            raise self.error_at(start.position, f"{what} has {len(numbers)} sides here; write it as {wanted}")
        return Size(tuple(numbers), start.position, text.replace(" ", ""))

    def number(self, what: str) -> int:
        found = self.take("number")
        if found is None:
            raise self.error(f"expected {what}, a whole number")
        if int(found.text) == 0:
            raise self.error_at(found.position, f"0 is no size; the least is 1 ({what})")
        return int(found.text)

    def arrow(self, what: str) -> None:
        if not self.take("arrow"):
            raise self.error(f"expected -> and {what}")

    def options(self, known: Mapping[str, Kind]) -> Options:
        """The rest of the expression: `name value`, `name=value` and flags, in any order, each once."""
        given: dict[str, Option] = {}
        while self.next.kind != "end":
            name = self.next
            if name.text not in known:
                near = difflib.get_close_matches(name.text, known, n=1, cutoff=0.5)
                raise self.error(f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(known) or 'nothing more'}")
            if name.text in given:
                raise self.error(f"{name.text} is given twice")
            self.place += 1
            given[name.text] = Option(name.text, self._value(name.text, known[name.text]), name.position)
        return Options(self, given)

    def _value(self, name: str, kind: Kind) -> tuple[Size, ...]:
        if kind == "flag":
            return ()
        self.take("equals")
        first = self.size(name, [1] if kind == "number" else [])
        if kind == "sizes" and self.take("arrow"):
            return (first, self.size(name))
        return (first,)
