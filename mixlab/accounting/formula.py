"""Formulas of counts as text: evaluated in exact integers, printed with the numbers put in.

A formula is data (`"d*f + f"`), so that the same text can be explained, substituted and handed to another evaluator.
"""

from __future__ import annotations

import ast
import functools
import operator
import re
from collections.abc import Callable, Mapping

from mixlab.errors import MixlabError

_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}
_FUNCTIONS: dict[str, Callable[..., int]] = {"min": min, "max": max}


@functools.cache
def _parse(formula: str) -> ast.expr:
    return ast.parse(formula, mode="eval").body


def evaluate(formula: str, symbols: Mapping[str, int]) -> int:
    """The exact value of a formula of names, whole numbers, `+ - * //`, `min`, `max` and parentheses."""

    def value(node: ast.expr) -> int:
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return node.value
        if isinstance(node, ast.Name) and node.id in symbols:
            return symbols[node.id]
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            return _OPERATORS[type(node.op)](value(node.left), value(node.right))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in _FUNCTIONS and len(node.args) > 1 and not node.keywords:
            return _FUNCTIONS[ast.unparse(node.func)](*map(value, node.args))
        raise MixlabError(f"formula {formula!r} cannot be evaluated at {ast.unparse(node)!r} with {dict(symbols)}")

    return value(_parse(formula))


def substitute(formula: str, symbols: Mapping[str, int]) -> str:
    """The formula with each known name replaced by its number: `d*f + f` -> `512*3072 + 3072`."""
    return re.sub(r"[A-Za-z_]\w*", lambda match: str(symbols.get(match.group(), match.group())), formula)


def names(formula: str) -> list[str]:
    """The symbols of a formula, in the order in which they appear."""
    return [name for name in dict.fromkeys(re.findall(r"[A-Za-z_]\w*", formula)) if name not in _FUNCTIONS]
