"""Positions: a vector for every place, added to the token that stands there; learned, or fixed waves.

Axes: b batch, n tokens, t places, d channels.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from mixlab.errors import MixlabError
from mixlab.layers.tokens import Tokens
from mixlab.maps.dense import rescale_last


class LearnedPositions(nn.Module):
    """A table of `length` places; of an image, the places of its prefix tokens and then its patches, row by row."""

    def __init__(self, length: int, d: int, *, std: float = 0.02) -> None:
        super().__init__()
        self.std = std
        self.weight = nn.Parameter(torch.empty(length, d))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=self.std)

    def forward(self, tokens: Tokens) -> Float[Tensor, "b n d"]:
        return tokens.x + F.embedding(tokens.places(), self.weight)

    def resize(self, length: int, grids: tuple[int, int] | None, prefix: int) -> str:
        """An image's places are interpolated; those of a text are kept, and new ones are zero."""
        old = self.weight.detach()
        if grids is not None:
            self.weight = nn.Parameter(rescale_last(old.mT[None], *grids, prefix)[0].mT.contiguous())
            return f"positions interpolated in 2-D from {grids[0]} x {grids[0]} to {grids[1]} x {grids[1]} patches (bilinear)"
        kept = min(length, len(old))
        new = old.new_zeros(length, old.shape[1])
        new[:kept] = old[:kept]
        self.weight = nn.Parameter(new)
        return f"positions cropped to {kept}" if length <= len(old) else f"positions kept for {kept} tokens; the new ones are zero"

    def extra_repr(self) -> str:
        return f"length={len(self.weight)}, d={self.weight.shape[1]}"


class WavePositions(nn.Module):
    """Fixed waves of the column and the row of a patch, as masked autoencoders have them (He et al. 2021, arXiv:2111.06377).

        [sin(column w), cos(column w), sin(row w), cos(row w)]        w_i = 10000^(-4 i / d),  i < d / 4

    Before the patches of a square image stand `prefix` tokens, whose positions are zero. Nothing of it learns.
    """

    def __init__(self, length: int, d: int, *, prefix: int = 0) -> None:
        super().__init__()
        self.prefix = prefix
        self.weight = nn.Parameter(torch.empty(length, d), requires_grad=False)
        self.reset_parameters()

    def freeze(self) -> None:
        """For whoever replaced the parameter by a loaded one."""
        self.weight.requires_grad_(False)

    def reset_parameters(self) -> None:
        length, d = self.weight.shape
        with torch.no_grad():
            self.weight.copy_(waves(length, d, self.prefix))

    def forward(self, tokens: Tokens) -> Float[Tensor, "b n d"]:
        return tokens.x + F.embedding(tokens.places(), self.weight)

    def resize(self, length: int, grids: tuple[int, int] | None, prefix: int) -> str:
        old = self.weight
        self.weight = nn.Parameter(old.new_empty(length, old.shape[1]), requires_grad=False)
        self.reset_parameters()
        return f"fixed positions computed again for {length - prefix} patches"


def waves(length: int, d: int, prefix: int) -> Float[Tensor, "t d"]:
    """In double precision, since frequencies span four orders of magnitude."""
    patches = length - prefix
    side = round(max(patches, 0) ** 0.5)
    if d % 4 or side * side != patches:
        raise MixlabError(f"fixed positions of {patches} patches with {d} channels; give a square image and a multiple of 4 channels")
    frequency = 10000.0 ** (-torch.arange(d // 4, dtype=torch.float64) / (d // 4))
    angle = torch.arange(side, dtype=torch.float64)[:, None] * frequency  # side d/4
    wave = torch.cat([angle.sin(), angle.cos()], dim=1)  # side d/2
    image = torch.cat([wave.repeat(side, 1), wave.repeat_interleave(side, 0)], dim=1)
    return F.pad(image, (0, 0, prefix, 0)).float()
