"""A single layer, outside of any model: its lines, and what else is to be known of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mixlab.accounting.account import Account, Line
from mixlab.accounting.formula import evaluate, substitute


@dataclass(frozen=True)
class Fact:
    """A number that is neither a parameter nor a cost, as a formula: how large a matrix is, how many patches fit."""

    name: str
    formula: str
    symbols: Mapping[str, int]

    @property
    def value(self) -> int:
        return evaluate(self.formula, self.symbols)

    def derivation(self) -> str:
        return " = ".join(dict.fromkeys([self.formula, substitute(self.formula, self.symbols), f"{self.value:,}"]))


@dataclass(frozen=True)
class Layer:
    expression: str
    about: str  # what it does, as an equation where there is one
    takes: str  # shapes, as text
    gives: str
    lines: tuple[Line, ...]
    facts: tuple[Fact, ...] = ()
    convention: str = "weights alone: add `bias` for biases and norms; MACs of one input"

    @property
    def account(self) -> Account:
        return Account(self.lines, 0, self.convention)

    def fact(self, name: str) -> int:
        return next(fact.value for fact in self.facts if fact.name == name)


def expanded(rows: str, columns: str, nonzeros: str, distinct: str, symbols: Mapping[str, int]) -> tuple[Fact, ...]:
    """The layer written as one matrix, from all numbers that come in to all that go out."""
    formulas = {
        "rows of its matrix": rows,
        "columns of its matrix": columns,
        "entries of its matrix": f"({rows})*({columns})",
        "entries that are not zero": nonzeros,
        "different numbers among them": distinct,
    }
    return tuple(Fact(name, formula, symbols) for name, formula in formulas.items())
