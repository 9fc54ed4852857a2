"""The Toeplitz map: one number per offset, W[to, from] = w[to - from], which is a convolution over the whole length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from mixlab.maps.base import StaticWeight, apply_dense


@dataclass(frozen=True)
class ToeplitzMap:
    """taps[:, k] belongs to the offset to - from = k - (n - 1); offsets > 0 look back."""

    taps: Float[Tensor, "H offsets"]
    structure: ClassVar[str] = "toeplitz"

    @property
    def length(self) -> int:
        return (self.taps.shape[-1] + 1) // 2

    def __call__(self, v: Float[Tensor, "b t e"]) -> Float[Tensor, "b m e"]:
        return apply_dense(self.dense(), v)

    def dense(self) -> Float[Tensor, "H m t"]:
        # Rows of 2n numbers cut into rows of 2n - 1 move by one from row to row, which is what the diagonals need.
        n = self.length
        rows = F.pad(self.taps.flip(-1), (0, 1))[:, None].expand(-1, n, -1).flatten(1)  # H n*2n
        return rows[:, : n * (2 * n - 1)].unflatten(1, (n, 2 * n - 1))[..., n - 1 :]

    def macs(self, channels: int) -> int:
        """Of the dense product that it stands for."""
        return self.length * self.length * channels

    def terms(self) -> int:
        return min(self.taps.shape)


class ToeplitzWeight(StaticWeight):
    """2 length - 1 taps per head, looking back and ahead; causal: the `length` taps of offsets >= 0."""

    def __init__(self, length: int, heads: int = 1, *, causal: bool = False, init_std: float = 1e-3) -> None:
        super().__init__(length, heads, causal, init_std)
        self.taps = nn.Parameter(torch.empty(heads, length if causal else 2 * length - 1))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.taps, std=self.init_std)

    @property
    def zero_offset(self) -> int:
        """Which tap belongs to the token itself."""
        return 0 if self.causal else self.length - 1

    def at(self, n: int) -> ToeplitzMap:
        first = self.zero_offset if self.causal else self.zero_offset - (n - 1)
        # Indexing, not slicing: a slice of the full length makes torch.export specialise on n != length.
        index = torch.arange(n if self.causal else 2 * n - 1, device=self.taps.device) + first
        taps = self.taps.index_select(1, index)
        return ToeplitzMap(F.pad(taps, (n - 1, 0)) if self.causal else taps)

    def between(self, to: Int[Tensor, "*b m"], frm: Int[Tensor, "*b t"]) -> Float[Tensor, "*b H m t"]:
        offset = to.unsqueeze(-1) - frm.unsqueeze(-2)  # *b m t
        if not self.causal:
            return self.taps[:, offset + self.zero_offset].movedim(0, -3)
        return self.taps[:, offset.clamp(min=0)].masked_fill(offset < 0, 0.0).movedim(0, -3)

    def resized(self, length: int) -> tuple[ToeplitzWeight, str]:
        new = self.like(length, self.causal)
        kept = min(length, self.length)
        reach = torch.arange(kept) if self.causal else torch.arange(-(kept - 1), kept)
        with torch.no_grad():
            new.taps.zero_()
            new.taps[:, reach + new.zero_offset] = self.taps[:, reach + self.zero_offset]
        if length <= self.length:
            return new, f"Toeplitz W cropped from {self.length} to {length} tokens"
        return new, f"Toeplitz W extended from {self.length} to {length} tokens; the taps of the new, farther offsets are zero"

    def causal_half(self) -> tuple[ToeplitzWeight, str]:
        if self.causal:
            return self, "dropped 0 numbers of W, which was causal already"
        new = self.like(self.length, causal=True)
        with torch.no_grad():
            new.taps.copy_(self.taps[:, self.zero_offset :])
        return new, f"dropped {self.zero_offset} of the {self.taps.shape[1]} taps of W, those that read later tokens"
