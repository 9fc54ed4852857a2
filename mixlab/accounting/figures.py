"""Numbers as people print them, and whether a printed one is right: exact fractions throughout, no floats."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from mixlab.accounting.formula import evaluate

Verdict = Literal["right", "rounded", "slip"]
UNITS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "G": 10**9, "T": 10**12}
PRINTED = re.compile(r"(?P<sign>[<~]?)\s*(?P<digits>\d+(?:\.\d+)?)(?P<unit>[KMBGT%]?)")
LOOSE = Fraction(1, 5)  # how far "~80M" may be off


def short(value: int | Fraction) -> str:
    """`419.4M`: one digit behind the point, so that it can be said; the whole number below ten thousand."""
    value = Fraction(value)
    if value < 10**4:
        return f"{int(value):,}" if value.denominator == 1 else decimal(value, 2)
    unit = next(unit for unit in ("T", "B", "M", "K") if value >= UNITS[unit])
    if value >= 1000 * UNITS["T"]:
        digits = len(str(int(value))) - 1
        return f"{decimal(value / 10**digits, 2)}e{digits}"
    return decimal(value / UNITS[unit], 1) + unit


def decimal(value: Fraction, places: int) -> str:
    """To so many digits behind the point, halves upwards."""
    scaled = int(value * 10**places * 2 + 1) // 2
    whole, rest = divmod(scaled, 10**places)
    return f"{whole}.{rest:0{places}}" if places else str(whole)


@dataclass(frozen=True)
class Printed:
    """A number as it was printed: `419M`, `~80M`, `< 1M`, `11%`, or a product that is meant exactly, `3*258`."""

    text: str

    def judge(self, value: int | Fraction) -> Verdict:
        """Right to the printed digits; rounded where only one was printed, or digits were cut off, or "about" was said; else a slip."""
        match = PRINTED.fullmatch(self.text)
        if match is None or not (match["sign"] or match["unit"] or "." in match["digits"]):
            return "right" if evaluate(self.text, {}) == value else "slip"
        unit = Fraction(1, 100) if match["unit"] == "%" else Fraction(UNITS[match["unit"]])
        said, digits = Fraction(match["digits"]) * unit, match["digits"]
        places = len(digits.partition(".")[2])
        if match["sign"] == "<":
            return "right" if value < said else "slip"
        if decimal(Fraction(value) / unit, places) == digits:
            return "right" if len(digits.replace(".", "").lstrip("0")) > 1 else "rounded"
        cut = Fraction(int(Fraction(value) / unit * 10**places), 10**places) * unit
        near = match["sign"] == "~" and abs(said - value) <= LOOSE * value
        return "rounded" if cut == said or near else "slip"


def percent(value: Fraction) -> str:
    return f"{decimal(100 * value, 2)}%"
