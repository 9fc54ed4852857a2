"""What somebody claimed of a layer, beside what this package counts: a claim holds expressions, never results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from mixlab.accounting.account import Account
from mixlab.accounting.expressions import parse
from mixlab.accounting.figures import Printed, Verdict, percent, short
from mixlab.accounting.layer import Layer

Number = int | Fraction
ORDER = {"noted": 0, "cited": 0, "right": 1, "answered": 2, "rounded": 3, "slip": 4}


def layer(expression: str) -> Layer:
    return parse(expression)


def count(expression: str) -> Account:
    return parse(expression).account


def weights(expression: str) -> int:
    return parse(expression).account.params


def bound(expression: str, what: str) -> int:
    """The rank, terms or field of the part that mixes tokens."""
    return parse(expression).account.mixings()[0][what]


@dataclass(frozen=True)
class Check:
    """One number of a claim: `printed` as the notes have it, empty where they ask, None where they are silent. `says` what it counts."""

    printed: str | None
    says: str
    recompute: Callable[[], Number]
    unit: str = ""  # "%" to print a share

    def result(self) -> dict[str, Any]:
        value = self.recompute()
        verdict: Verdict | str = Printed(self.printed).judge(value) if self.printed else "noted" if self.printed is None else "answered"
        exact = percent(Fraction(value)) if self.unit == "%" else f"{value:,}" if isinstance(value, int) else str(value)
        return {"printed": self.printed, "says": self.says, "value": exact, "short": short(value), "verdict": verdict}


@dataclass(frozen=True)
class Claim:
    number: int
    text: str  # in our words
    checks: tuple[Check, ...]
    comment: str = ""  # why; numbers are in the checks

    def result(self) -> dict[str, Any]:
        """The worst of its checks is the verdict; without any, the claim can only be cited."""
        checks = [check.result() for check in self.checks]
        verdict = max((check["verdict"] for check in checks), key=ORDER.__getitem__, default="cited")
        return {"number": self.number, "claim": self.text, "verdict": verdict, "checks": checks, "comment": self.comment}


def results() -> list[dict[str, Any]]:
    """Every claim of the founding notes, recomputed now."""
    from mixlab.accounting.notes import CLAIMS

    return [claim.result() for claim in CLAIMS]
