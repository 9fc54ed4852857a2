"""The dense map: n^2 free numbers per head, W[to, from]."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from mixlab.maps.base import StaticWeight, apply_dense


@dataclass(frozen=True)
class DenseMap:
    """Any operator that is already there as numbers."""

    matrix: Float[Tensor, "*b H m t"]
    structure: ClassVar[str] = "dense"

    def __call__(self, v: Float[Tensor, "b t e"]) -> Float[Tensor, "b m e"]:
        return apply_dense(self.matrix, v)

    def dense(self) -> Float[Tensor, "*b H m t"]:
        return self.matrix

    def macs(self, channels: int) -> int:
        return self.matrix.shape[-1] * self.matrix.shape[-2] * channels

    def terms(self) -> int:
        return min(self.matrix.shape[-3], self.matrix.shape[-2] * self.matrix.shape[-1])


class DenseWeight(StaticWeight):
    """A free W per head; causal: its lower triangle, the numbers above the diagonal are never used and get no gradient."""

    def __init__(self, length: int, heads: int = 1, *, causal: bool = False, init_std: float = 1e-3) -> None:
        super().__init__(length, heads, causal, init_std)
        self.weight = nn.Parameter(torch.empty(heads, length, length))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=self.init_std)

    def at(self, n: int) -> DenseMap:
        # Indexing, not slicing: a slice of the full length makes torch.export specialise on n != length.
        index = torch.arange(n, device=self.weight.device)
        matrix = self.weight.index_select(1, index).index_select(2, index)
        return DenseMap(matrix.tril() if self.causal else matrix)

    def between(self, to: Int[Tensor, "*b m"], frm: Int[Tensor, "*b t"]) -> Float[Tensor, "*b H m t"]:
        to, frm = to.unsqueeze(-1), frm.unsqueeze(-2)  # *b m 1, *b 1 t
        matrix = self.weight[:, to, frm]  # H *b m t
        if self.causal:
            matrix = matrix.masked_fill(frm > to, 0.0)
        return matrix.movedim(0, -3)

    def resized(self, length: int) -> tuple[DenseWeight, str]:
        new = self.like(length, self.causal)
        kept = min(length, self.length)
        with torch.no_grad():
            new.weight.zero_()
            new.weight[:, :kept, :kept] = self.weight[:, :kept, :kept]
        if length <= self.length:
            return new, f"dense W cropped from {self.length} to {length} tokens"
        return new, f"dense W kept for {kept} tokens; rows and columns {kept}..{length - 1} are zero and need training"

    def causal_half(self) -> tuple[DenseWeight, str]:
        if self.causal:
            return self, "dropped 0 numbers of W, which was causal already"
        new = self.like(self.length, causal=True)
        with torch.no_grad():
            new.weight.copy_(self.weight.tril())
        dropped = self.length * (self.length - 1) // 2
        return new, f"dropped {dropped} of the {self.length**2} numbers of W, those that read later tokens"

    def interpolated(self, old: int, new: int, prefix: int) -> tuple[DenseWeight, str]:
        weight = self.like(prefix + new * new, self.causal)
        with torch.no_grad():
            columns = rescale_last(self.weight, old, new, prefix)
            # A finer image has more tokens to sum over, so each must count for less.
            columns[..., prefix:] *= old * old / (new * new)
            weight.weight.copy_(rescale_last(columns.mT, old, new, prefix).mT)
        return weight, f"dense W interpolated in 2-D from {old} x {old} to {new} x {new} patches (bilinear, row sums kept)"


def rescale_last(x: Float[Tensor, "*a t"], old: int, new: int, prefix: int) -> Float[Tensor, "*a s"]:
    """Read the last axis, behind `prefix` entries, as an image and resize it from `old` to `new` a side."""
    image = x[..., prefix:].reshape(1, -1, old, old)  # 1 a old old
    image = F.interpolate(image, size=(new, new), mode="bilinear", align_corners=False)
    return torch.cat([x[..., :prefix], image.reshape(*x.shape[:-1], new * new)], dim=-1)
