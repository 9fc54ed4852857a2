"""Learned positions: a vector for every place, added to the token that stands there.

Axes: b batch, n tokens, d channels.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

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
