"""Where the parameters and multiply-adds of a model come from, line by line, in exact integers and without a tensor.

A `Line` is one part of a model with two formulas; an `Account` is a list of lines, and every total is a sum of lines.
MACs are multiply-adds of matrix products, convolutions and attention for one sequence or image; FLOPs are 2 MACs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from mixlab.accounting.formula import evaluate, substitute


@dataclass(frozen=True)
class Line:
    """One named part: how many parameters it has and how many multiply-adds it costs, as formulas of `symbols`."""

    name: str
    params: str
    macs: str
    symbols: Mapping[str, int]
    group: str = ""
    times: int = 1  # how often the part stands in the model

    @property
    def param_count(self) -> int:
        return self.times * evaluate(self.params, self.symbols)

    @property
    def mac_count(self) -> int:
        return self.times * evaluate(self.macs, self.symbols)

    def explain(self, what: str) -> str:
        """`U: d*f + f = 512*3072 + 3072 = 1,575,936` for `what` = params or macs, of one occurrence."""
        formula = {"params": self.params, "macs": self.macs}[what]
        value = evaluate(formula, self.symbols)
        steps = dict.fromkeys([formula, substitute(formula, self.symbols), f"{value:,}"])
        return f"{self.name}: {' = '.join(steps)}"


@dataclass(frozen=True)
class Account:
    """The lines of a whole model for one task and one length."""

    lines: tuple[Line, ...]
    length: int
    convention: str = ""

    @property
    def params(self) -> int:
        return sum(line.param_count for line in self.lines)

    @property
    def macs(self) -> int:
        return sum(line.mac_count for line in self.lines)

    @property
    def flops(self) -> int:
        return 2 * self.macs

    def group(self, *names: str) -> Account:
        """Only the lines of some groups, such as `account.group("body")`."""
        return replace(self, lines=tuple(line for line in self.lines if line.group in names))

    def groups(self) -> list[str]:
        return list(dict.fromkeys(line.group for line in self.lines))


def in_group(group: str, lines: Iterable[Line], times: int = 1) -> list[Line]:
    """The same lines as members of a group that stands `times` times in the model."""
    return [replace(line, group=group, times=line.times * times) for line in lines]
