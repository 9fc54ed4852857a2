"""What is counted. Publications differ, so a convention has a name and is printed beside its numbers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Convention:
    """How a language-model head is charged. The rest is the same for all: matrix products, a Toeplitz W as the dense one it replaces."""

    name: str
    labelled_share: tuple[int, int] | None  # logits at this share of the tokens (numerator, denominator); None: at all
    note: str

    def logit_tokens(self, length: int) -> int:
        """How many tokens of a sequence get logits, rounded to the nearest whole number."""
        if self.labelled_share is None:
            return length
        numerator, denominator = self.labelled_share
        return (2 * length * numerator + denominator) // (2 * denominator)


FULL = Convention("full", None, "MACs of one sequence or image, logits at every token, Toeplitz W as a dense product")
LABELLED = Convention("labelled", (15, 100), "as full, but masked-language-model logits only at the 15% labelled tokens")
CONVENTIONS = {convention.name: convention for convention in (FULL, LABELLED)}
