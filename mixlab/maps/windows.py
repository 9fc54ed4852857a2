"""The block-diagonal map of a grid that is cut into windows: a token is mixed with those of its own window alone.

    M = P^T diag(M_1, ..., M_W) P        P sorts the tokens by window

Shifted windows (Liu et al. 2021, arXiv:2103.14030) are cut further down and to the right; what is left over at the borders wraps around.

Axes: b batch, W windows, s = side^2 tokens of a window, n = W s tokens of the grid, H heads, e channels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn

from mixlab.errors import MixlabError
from mixlab.maps.base import TokenMap


@dataclass(frozen=True)
class Windows:
    """Squares of `side` x `side` tokens, numbered row by row like the tokens themselves."""

    grid: tuple[int, int]
    side: int
    shift: int = 0

    def __post_init__(self) -> None:
        rows, columns = self.grid
        what = f"windows of {self.side} x {self.side}"
        if not 1 <= self.side <= min(rows, columns):
            raise MixlabError(f"{what} on a grid of {rows} x {columns}; give a side of at most {min(self.grid)}")
        if rows % self.side or columns % self.side:
            raise MixlabError(f"a grid of {rows} x {columns} cannot be cut into {what}; crop or pad the image")
        if not 0 <= self.shift < self.side:
            raise MixlabError(f"{what} shifted by {self.shift}; shift by at least 0 and less than their side")

    @property
    def count(self) -> int:
        return self.grid[0] * self.grid[1] // self.side**2

    @property
    def shifts(self) -> tuple[int, int]:
        """Down and to the right; along an axis with one window there is no neighbour to shift towards."""
        down, right = (0 if extent == self.side else self.shift for extent in self.grid)
        return down, right

    @property
    def cells(self) -> tuple[int, int, int, int]:
        """Windows downwards, rows of one, windows to the right, columns of one."""
        return self.grid[0] // self.side, self.side, self.grid[1] // self.side, self.side

    def cut(self, x: Shaped[Tensor, "b n c"]) -> Shaped[Tensor, "b*W s c"]:
        b, _, c = x.shape
        down, right = self.shifts
        if down or right:
            x = x.reshape(b, *self.grid, c).roll((-down, -right), (1, 2))
        x = x.reshape(b, *self.cells, c).transpose(2, 3)  # b R C side side c
        return x.reshape(b * self.count, self.side**2, c)

    def join(self, x: Shaped[Tensor, "b*W s c"]) -> Shaped[Tensor, "b n c"]:
        """Undo `cut`."""
        b, c = x.shape[0] // self.count, x.shape[2]
        (down, right), (rows, side, columns, _) = self.shifts, self.cells
        x = x.reshape(b, rows, columns, side, side, c).transpose(2, 3)  # b R side C side c
        if down or right:
            x = x.reshape(b, *self.grid, c).roll((down, right), (1, 2))
        return x.reshape(b, self.grid[0] * self.grid[1], c)

    def places(self, device: torch.device | None = None) -> Int[Tensor, "W s"]:
        """Which token of the grid stands where."""
        return self.cut(torch.arange(self.grid[0] * self.grid[1], device=device)[None, :, None]).squeeze(-1)

    def neighbours(self, device: torch.device | None = None) -> Bool[Tensor, "W s s"] | None:
        """Which tokens of a window are near each other in the grid, and did not meet by wrapping around. None: all are."""
        if not any(self.shifts):
            return None
        rows, columns = (torch.arange(extent, device=device) < shift for extent, shift in zip(self.grid, self.shifts, strict=True))
        wrapped = rows[:, None] + 2 * columns  # which of both ways a token came around the border
        wrapped = self.cut(wrapped.reshape(1, -1, 1))  # W s 1
        return wrapped == wrapped.mT


@dataclass(frozen=True)
class BlockDiagonalMap:
    """`inner` mixes the tokens of a window: one map for all windows (H s s), or one for each of each sample (b*W H s s)."""

    inner: TokenMap
    windows: Windows
    structure: ClassVar[str] = "block-diagonal"

    def __call__(self, v: Float[Tensor, "b n e"]) -> Float[Tensor, "b n e"]:
        return self.windows.join(self.inner(self.windows.cut(v)))

    def dense(self) -> Float[Tensor, "*b H n n"]:
        blocks, places = self.inner.dense(), self.windows.places()
        static, count, n = blocks.dim() == 3, self.windows.count, places.numel()
        blocks = blocks.expand(count, -1, -1, -1) if static else blocks
        blocks = blocks.unflatten(0, (-1, count)).transpose(1, 2)  # b H W s s
        places = places.to(blocks.device)
        full = blocks.new_zeros(*blocks.shape[:2], n, n)
        full[:, :, places[:, :, None], places[:, None, :]] = blocks
        return full[0] if static else full

    def macs(self, channels: int) -> int:
        """Of all windows of a sample."""
        return self.windows.count * self.inner.macs(channels)

    def terms(self) -> int:
        """Counted on the first sample: for windows that wrap and rows that sum to 1 there is no short formula."""
        blocks = self.inner.dense().detach()  # H s s, or b*W H s s
        blocks = blocks[None] if blocks.dim() == 3 else blocks[: self.windows.count]
        return int(torch.linalg.matrix_rank(blocks.transpose(0, 1).flatten(1).double()))


class WindowBias(nn.Module):
    """B of attention in windows: a number per head and offset, (2 side - 1)^2 H in all, the same in every window."""

    def __init__(self, side: int, heads: int, *, init_std: float = 0.02) -> None:
        super().__init__()
        self.side, self.init_std = side, init_std
        self.table = nn.Parameter(torch.empty((2 * side - 1) ** 2, heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.table, std=self.init_std)

    def forward(self) -> Float[Tensor, "1 H s s"]:
        line = torch.arange(self.side, device=self.table.device)
        offset = line[:, None] - line + self.side - 1  # side side: from 0 for the farthest ahead
        entry = offset[:, None, :, None] * (2 * self.side - 1) + offset[None, :, None, :]  # to (row, column), from (row, column)
        return self.table[entry.flatten(2).flatten(0, 1)].permute(2, 0, 1)[None]

    def extra_repr(self) -> str:
        return f"side={self.side}, heads={self.table.shape[1]}"
