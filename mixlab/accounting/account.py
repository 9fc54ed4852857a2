"""Where the parameters, multiply-adds and memory of a model come from, line by line, in exact integers and without a tensor.

A `Line` is one part of a model with a formula for each quantity; an `Account` is a list of lines, and every total is a sum of lines.
MACs are multiply-adds of matrix products, convolutions and attention for one sequence or image; FLOPs are 2 MACs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from mixlab.accounting.formula import evaluate, substitute

QUANTITIES = {
    "params": "parameters",
    "macs": "multiply-adds",
    "work": "operations on single numbers",
    "kept": "numbers kept for the backward pass",
    "live": "numbers read and written at once",
    "state": "numbers kept of every decoded token",
}


@dataclass(frozen=True)
class Mixing:
    """How a part mixes tokens, as bounds that its structure sets (formulas of the symbols of its line), for generic inputs held fixed."""

    order: int  # degree in the input, normalisers aside
    terms: str  # of sum_r M_r X W_r, before any gate: the operator-Schmidt rank
    rank: str  # of the whole linear map, from all numbers that come in to all that go out
    field: str  # tokens that one token reads
    logits: str = ""  # rank of the n x n logits of one head, before the softmax


@dataclass(frozen=True)
class Line:
    """One named part: how many parameters it has, what it costs and what it keeps, as formulas of `symbols`."""

    name: str
    params: str
    macs: str
    symbols: Mapping[str, int]
    group: str = ""
    times: int = 1  # how often the part stands in the model
    work: str = "0"
    kept: str = "0"
    live: str = "0"
    state: str = "0"
    kind: str = ""  # what a convention may leave out or count in another way: "embedding", "toeplitz", "fourier"
    mixing: Mixing | None = None

    def one(self, what: str) -> int:
        """A quantity of one occurrence."""
        return evaluate(getattr(self, what), self.symbols)

    def count(self, what: str) -> int:
        """A quantity of all occurrences."""
        return self.times * self.one(what)

    @property
    def param_count(self) -> int:
        return self.count("params")

    @property
    def mac_count(self) -> int:
        return self.count("macs")

    def explain(self, what: str) -> str:
        """`U: d*f + f = 512*3072 + 3072 = 1,575,936` for one of the QUANTITIES, of one occurrence."""
        return f"{self.name}: {self.derivation(what)}"

    def derivation(self, what: str) -> str:
        formula = getattr(self, what)
        return " = ".join(dict.fromkeys([formula, substitute(formula, self.symbols), f"{self.one(what):,}"]))


@dataclass(frozen=True)
class Account:
    """The lines of a whole model, or of a layer, for one task and one length."""

    lines: tuple[Line, ...]
    length: int
    convention: str = ""
    elementwise: bool = False  # whether FLOPs are also those of norms, activations, softmax and sums

    def total(self, what: str) -> int:
        return sum(line.count(what) for line in self.lines)

    @property
    def params(self) -> int:
        return self.total("params")

    @property
    def macs(self) -> int:
        return self.total("macs")

    @property
    def flops(self) -> int:
        """Two for every multiply-add, and elementwise work where the convention counts it."""
        return 2 * self.macs + (self.total("work") if self.elementwise else 0)

    @property
    def kept(self) -> int:
        """Numbers that training keeps from the forward pass for the backward pass."""
        return self.total("kept")

    @property
    def live(self) -> int:
        """Numbers that inference must hold at once: what the hungriest part reads and writes."""
        return max((line.one("live") for line in self.lines), default=0)

    @property
    def state(self) -> int:
        """Numbers that cached decoding keeps of every token."""
        return self.total("state")

    def group(self, *names: str) -> Account:
        """Only the lines of some groups, such as `account.group("body")`."""
        return replace(self, lines=tuple(line for line in self.lines if line.group in names))

    def groups(self) -> list[str]:
        return list(dict.fromkeys(line.group for line in self.lines))

    def mixings(self) -> list[dict[str, Any]]:
        """Of every part that mixes tokens: its bounds as whole numbers, and as they follow from the formulas."""
        found = []
        for line in self.lines:
            if line.mixing is not None:
                bounds = {name: getattr(line.mixing, name) for name in ("terms", "rank", "field", "logits")}
                values = {name: evaluate(formula, line.symbols) for name, formula in bounds.items() if formula}
                found.append({"part": line.name, "times": line.times, "order": line.mixing.order, "formulas": bounds, **values})
        return found


def in_group(group: str, lines: Iterable[Line], times: int = 1) -> list[Line]:
    """The same lines as members of a group that stands `times` times in the model."""
    return [replace(line, group=group, times=line.times * times) for line in lines]
