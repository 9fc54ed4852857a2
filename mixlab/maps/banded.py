"""The banded map: a few taps per head at every place, W[to, from] = w[to - from] near the diagonal. That is a convolution.

One tap row per channel makes it depthwise, one per group of channels a lightweight convolution.

Axes: b batch, H heads, m tokens written, t tokens read, e channels, k taps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from mixlab.errors import MixlabError
from mixlab.maps.base import check_heads


@dataclass(frozen=True)
class BandedMap:
    """taps[:, j] belongs to the offset to - from = j - ahead; offsets > 0 look back, so `ahead` taps read later tokens."""

    taps: Float[Tensor, "H k"]
    length: int
    ahead: int = 0
    structure: ClassVar[str] = "banded"

    def __call__(self, v: Float[Tensor, "b t e"]) -> Float[Tensor, "b t e"]:
        heads, k = self.taps.shape
        e = v.shape[-1]
        check_heads(e, heads)
        kernel = self.taps.flip(-1).repeat_interleave(e // heads, dim=0)  # e k: a convolution of torch reads forwards
        padded = F.pad(v.mT, (k - 1 - self.ahead, self.ahead))
        return F.conv1d(padded, kernel[:, None], groups=e).mT

    def dense(self) -> Float[Tensor, "H t t"]:
        places = torch.arange(self.length, device=self.taps.device)
        return band(self.taps[:, None], places, places, self.ahead)

    def macs(self, channels: int) -> int:
        """Zeros beyond the border are multiplied too."""
        return self.length * self.taps.shape[-1] * channels

    def terms(self) -> int:
        return min(self.taps.shape[0], len(reachable(self.taps.shape[-1], self.ahead, self.length)))


@dataclass(frozen=True)
class GridBandedMap:
    """The same on an image, row by row: taps[:, i, j] belongs to the offset (i - rows // 2, j - columns // 2), down and right."""

    taps: Float[Tensor, "H rows columns"]
    grid: tuple[int, int]
    structure: ClassVar[str] = "banded"

    def __post_init__(self) -> None:
        rows, columns = self.taps.shape[1:]
        if not (rows % 2 and columns % 2):
            raise MixlabError(f"{rows} x {columns} taps have no middle; use odd numbers")

    def __call__(self, v: Float[Tensor, "b t e"]) -> Float[Tensor, "b t e"]:
        heads, rows, columns = self.taps.shape
        e = v.shape[-1]
        check_heads(e, heads)
        kernel = self.taps.flip(-2, -1).repeat_interleave(e // heads, dim=0)[:, None]  # e 1 rows columns
        image = v.mT.unflatten(2, self.grid)
        return F.conv2d(image, kernel, padding=(rows // 2, columns // 2), groups=e).flatten(2).mT

    def dense(self) -> Float[Tensor, "H t t"]:
        rows, columns = (torch.arange(side, device=self.taps.device) for side in self.grid)
        down = rows[:, None] - rows + self.taps.shape[1] // 2  # to row, from row
        right = columns[:, None] - columns + self.taps.shape[2] // 2
        inside = ((down >= 0) & (down < self.taps.shape[1]))[:, None, :, None] & ((right >= 0) & (right < self.taps.shape[2]))[:, None]
        down, right = down.clamp(0, self.taps.shape[1] - 1), right.clamp(0, self.taps.shape[2] - 1)
        entries = self.taps[:, down[:, None, :, None], right[None, :, None]]  # H, to row, to column, from row, from column
        return entries.masked_fill(~inside, 0.0).flatten(3).flatten(1, 2)

    def macs(self, channels: int) -> int:
        """Zeros beyond the border are multiplied too."""
        return self.grid[0] * self.grid[1] * self.taps[0].numel() * channels

    def terms(self) -> int:
        offsets = [len(reachable(k, k // 2, side)) for k, side in zip(self.taps.shape[1:], self.grid, strict=True)]
        return min(self.taps.shape[0], offsets[0] * offsets[1])


class BandedWeight(nn.Module):
    """k taps per head for texts of any length: around the token, or, if causal, for it and the k - 1 before it.

    With `softmax` the taps of a head are made positive and to sum to 1, as a lightweight convolution wants them.
    """

    def __init__(self, kernel: int, heads: int = 1, *, causal: bool = False, softmax: bool = False) -> None:
        super().__init__()
        self.kernel, self.ahead = kernel, taps_ahead(kernel, causal)
        self.causal, self.softmax = causal, softmax
        self.taps = nn.Parameter(torch.empty(heads, kernel))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.xavier_uniform_(self.taps[:, None])

    def extra_repr(self) -> str:
        return f"kernel={self.kernel}, heads={len(self.taps)}, causal={self.causal}, softmax={self.softmax}"

    def values(self) -> Float[Tensor, "H k"]:
        """The taps as they are used."""
        return self.taps.softmax(-1) if self.softmax else self.taps

    def at(self, n: int) -> BandedMap:
        """The map of tokens 0..n-1."""
        return BandedMap(self.values(), n, self.ahead)


def taps_ahead(kernel: int, causal: bool) -> int:
    """How many of the taps read later tokens."""
    if kernel < 1:
        raise MixlabError(f"a kernel of {kernel} taps; give at least 1")
    if causal:
        return 0
    if kernel % 2 == 0:
        raise MixlabError(f"a kernel of {kernel} taps has no middle; use an odd one, or causal=True")
    return kernel // 2


def reachable(kernel: int, ahead: int, length: int) -> range:
    """The offsets of a kernel that lead from a token to another within `length` of them."""
    return range(max(-ahead, 1 - length), min(kernel - ahead, length))


def band(taps: Float[Tensor, "*#b H #m k"], to: Int[Tensor, "*#b m"], frm: Int[Tensor, "*#b t"], ahead: int) -> Float[Tensor, "*b H m t"]:
    """Entries for written positions `to` and read positions `frm`: the tap of their offset, or 0 where there is none."""
    k = taps.shape[-1]
    index = (to.unsqueeze(-1) - frm.unsqueeze(-2) + ahead).unsqueeze(-3)  # *b 1 m t
    outside = (index < 0) | (index >= k)
    heads, m, t = taps.shape[-3], index.shape[-2], index.shape[-1]
    batch = torch.broadcast_shapes(taps.shape[:-3], index.shape[:-3])
    entries = taps.expand(*batch, heads, m, k).gather(-1, index.clamp(0, k - 1).expand(*batch, heads, m, t))
    return entries.masked_fill(outside, 0.0)
