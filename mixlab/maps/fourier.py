"""The Fourier map: no numbers to learn. F[to, from] = exp(-2 pi i to from / n) = C - i S, of which a real map is C or S.

    C[to, from] = cos(2 pi to from / n)        S[to, from] = sin(2 pi to from / n)

Every n has a map of its own: that of a shorter text is not the corner of that of a longer one.

Axes: b batch, t tokens (as many written as read), e channels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from mixlab.errors import MixlabError, unknown

PARTS = ("cosine", "sine")


@dataclass(frozen=True)
class FourierMap:
    """C or S of `length` tokens; type and place only matter to `dense`."""

    length: int
    part: Literal["cosine", "sine"] = "cosine"
    dtype: torch.dtype = torch.float32
    device: torch.device | None = None
    structure: ClassVar[str] = "fourier"

    def __post_init__(self) -> None:
        if self.part not in PARTS:
            raise unknown("part of a Fourier transform", self.part, PARTS)
        if self.length < 1:
            raise MixlabError(f"a Fourier transform of {self.length} tokens; give at least 1")

    def __call__(self, v: Float[Tensor, "b t e"]) -> Float[Tensor, "b t e"]:
        spectrum = torch.fft.fft(as_transformable(v), dim=1)
        return (spectrum.real if self.part == "cosine" else -spectrum.imag).to(v.dtype)

    def dense(self) -> Float[Tensor, "1 t t"]:
        places = torch.arange(self.length, device=self.device)
        # Whole turns are taken off before the division: far entries stay exact.
        angle = (places[:, None] * places % self.length).double() * (2 * math.pi / self.length)
        return (angle.cos() if self.part == "cosine" else angle.sin()).to(self.dtype)[None]

    def macs(self, channels: int) -> int:
        """Of the dense product that it stands for; the fast path takes of the order of n log n."""
        return self.length * self.length * channels

    def terms(self) -> int:
        return 1


def as_transformable(x: Float[Tensor, "*b"]) -> Float[Tensor, "*b"]:
    """Numbers of a type that torch transforms on every device: half precisions are widened."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
