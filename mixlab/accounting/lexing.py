"""The words of an expression and where they stand, so that an error can point at its character."""

from __future__ import annotations

import re
from dataclasses import dataclass

from mixlab.errors import MixlabError

MOST_DIGITS = 30
PATTERNS = {
    "number": r"[0-9]+(?:_[0-9]+)*",
    "arrow": r"->|→",
    "times": r"[xX\u00d7*](?=[0-9])",  # between the sides of a size; a word that begins with x has a letter next
    "word": r"[A-Za-z_]+(?:-[A-Za-z_]+)*",
    "equals": r"=",
    "space": r"\s+",
}
SCANNER = re.compile("|".join(f"(?P<{kind}>{pattern})" for kind, pattern in PATTERNS.items()))


class ExpressionError(MixlabError):
    """What is wrong with an expression, and at which character, counted from 1."""

    def __init__(self, expression: str, position: int, found: str, message: str) -> None:
        self.expression, self.position = expression, position
        shown = f"character {position}, {found!r}" if found else f"character {position}, its end"
        super().__init__(f"cannot read {expression!r} at {shown}: {message}")


@dataclass(frozen=True)
class Token:
    kind: str  # a key of PATTERNS, or "end"
    text: str
    position: int  # of its first character, counted from 1


def tokens(expression: str) -> list[Token]:
    """All words of an expression, and an end."""
    found, place = [], 0
    while place < len(expression):
        match = SCANNER.match(expression, place)
        if match is None:
            raise ExpressionError(expression, place + 1, expression[place], refusal(expression, place))
        kind = match.lastgroup or ""
        if kind == "number" and len(match.group()) > MOST_DIGITS:
            raise ExpressionError(expression, place + 1, match.group()[:8] + "...", f"a size has at most {MOST_DIGITS} digits")
        if kind != "space":
            found.append(Token(kind, match.group(), place + 1))
        place = match.end()
    return [*found, Token("end", "", len(expression) + 1)]


def refusal(expression: str, place: int) -> str:
    """Why a character cannot stand there."""
    character, after = expression[place], expression[place + 1 : place + 2]
    if character == "-":
        return "sizes are whole numbers from 1" if after.isdigit() else "write -> between what comes in and what goes out"
    if character in ".," and after.isdigit():
        return "sizes are whole numbers, without points or commas"
    return "only words, whole numbers, x, = and -> are known"
