"""What is counted. Publications differ, so a convention is spelt out and printed beside its numbers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from mixlab.accounting.account import Account, Line

Unit = Literal["mac", "flop"]
Head = Literal["full", "labelled", "none"]
Multiply = Literal["dense", "fft"]
Blocks = Literal["all", "matrices"]


@dataclass(frozen=True)
class Convention:
    """The defaults count everything, in MACs of matrix products, convolutions and attention of one sequence or image."""

    name: str = "custom"
    unit: Unit = "mac"  # which of the two is shown first; a FLOP is half a MAC
    head: Head = "full"  # labelled: masked-language-model logits at the 15% labelled tokens alone
    embeddings: bool = True  # the parameters of tables that are looked up
    elementwise: bool = False  # FLOPs of single numbers: norms, activations, softmax, sums
    toeplitz: Multiply = "dense"  # how W is multiplied where it has one number per offset
    blocks: Blocks = "all"  # matrices: nothing but the matrices of the blocks, without biases and norms

    @property
    def note(self) -> str:
        """All that it says, in one line."""
        head = {
            "full": "logits at every token",
            "labelled": "masked-language-model logits at the 15% labelled tokens alone",
            "none": "no head",
        }
        said = [
            f"{self.unit.upper()}s of one sequence or image",
            head[self.head],
            "Toeplitz W as a dense product" if self.toeplitz == "dense" else "Toeplitz W by fast Fourier transforms",
            *(["no tables of embeddings"] if not self.embeddings else []),
            *(["with elementwise work"] if self.elementwise else []),
            *(["matrices of the blocks alone"] if self.blocks == "matrices" else []),
        ]
        return ", ".join(said)

    def logit_tokens(self, length: int) -> int:
        """How many tokens of a sequence get logits, rounded to the nearest whole number."""
        return (2 * length * 15 + 100) // 200 if self.head == "labelled" else length

    def apply(self, account: Account) -> Account:
        """The account as this convention counts it."""
        lines = [self._changed(line) for line in account.lines if self._counts(line)]
        return replace(account, lines=tuple(lines), convention=self.note, elementwise=self.elementwise)

    def _counts(self, line: Line) -> bool:
        if self.blocks == "matrices":
            return line.group not in ("stem", "head") and line.kind != "embedding" and (line.one("macs") > 0)
        return (self.embeddings or line.kind != "embedding") and (self.head != "none" or line.group != "head")

    def _changed(self, line: Line) -> Line:
        if self.blocks == "matrices" and line.params.endswith(" + o"):
            line = replace(line, params=line.params.removesuffix(" + o"))
        if self.toeplitz == "fft" and line.kind == "toeplitz":
            return by_fft(line)
        return line


def by_fft(line: Line) -> Line:
    """W v for `e` channels as a product of spectra of P >= 2n numbers, P a power of two.

    A fast transform of P real numbers is counted as 5/2 P log2 P FLOPs; one for each channel there and one back, and one for each head's
    taps. A product of two complex numbers is 6 FLOPs. A MAC is two FLOPs.
    """
    bits = (2 * line.symbols["n"] - 1).bit_length()
    symbols = {**line.symbols, "P": 1 << bits, "B": bits}
    return replace(line, macs="(5*P*B*(2*e + H)//2 + 6*(P//2 + 1)*e)//2", symbols=symbols, work="0", kept="n*e", live="2*n*e + P*e")


FULL = Convention("full")
LABELLED = Convention("labelled", head="labelled")
# Those of publications, by the names that presets give (`counted_as`).
PAPERS = {
    convention.name: convention
    for convention in (
        Convention("macs"),
        Convention("macs-without-head", head="none"),
        Convention("flops-elementwise", "flop", elementwise=True),
        Convention("flops-elementwise-labelled", "flop", head="labelled", elementwise=True),
        Convention("matrices", blocks="matrices"),
    )
}
