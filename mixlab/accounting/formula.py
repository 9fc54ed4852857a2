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


@functools.cache
def _parse(formula: str) -> ast.expr:
    return ast.parse(formula, mode="eval").body


def evaluate(formula: str, symbols: Mapping[str, int]) -> int:
    """The exact value of a formula of names, whole numbers, `+ - * //` and parentheses."""

    def value(node: ast.expr) -> int:
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return node.value
        if isinstance(node, ast.Name) and node.id in symbols:
            return symbols[node.id]
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            return _OPERATORS[type(node.op)](value(node.left), value(node.right))
        raise MixlabError(f"formula {formula!r} cannot be evaluated at {ast.unparse(node)!r} with {dict(symbols)}")

    return value(_parse(formula))


def substitute(formula: str, symbols: Mapping[str, int]) -> str:
    """The formula with each known name replaced by its number: `d*f + f` -> `512*3072 + 3072`."""
    return re.sub(r"[A-Za-z_]\w*", lambda match: str(symbols.get(match.group(), match.group())), formula)
