"""y_ic = sum_j w_hj x_(i - j + a)c: k taps w per head h, of which a read later tokens; tokens outside the text are zero.

Lightweight and dynamic convolution (Wu et al. 2019, arXiv:1901.10430): channel c belongs to head h = c H // d. There the taps are
softmax(w_h), and in the dynamic one softmax over j of sum_c W_hjc x_ic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def softmax(row: Tensor) -> Tensor:
    return row.exp() / sum(t.exp() for t in row)


def convolve(x: Tensor, taps: Callable[[int, int], Tensor], heads: int, ahead: int, mask: Sequence[bool] | None = None) -> Tensor:
    """One sample, n d; `taps(i, h)` are the k taps of head h at token i. Rows of padding are zero, and nobody reads them."""
    n, d = x.shape
    real = [i for i in range(n) if mask is None or mask[i]]
    out = [torch.zeros_like(x[0]) for _ in range(n)]
    for to, i in enumerate(real):
        channels = []
        for c in range(d):
            total = x.new_zeros(())
            for j, tap in enumerate(taps(i, c * heads // d)):
                frm = to - (j - ahead)
                if 0 <= frm < len(real):
                    total = total + tap * x[real[frm], c]
            channels.append(total)
        out[i] = torch.stack(channels)
    return torch.stack(out)


def convolve_grid(x: Tensor, taps: Tensor, grid: tuple[int, int]) -> Tensor:
    """One image, n d, row by row; taps of odd sides, H rows columns."""
    (rows, columns), (heads, high, wide), d = grid, taps.shape, x.shape[1]
    out = []
    for i in range(rows * columns):
        channels = []
        for c in range(d):
            total = x.new_zeros(())
            for a in range(high):
                for b in range(wide):
                    row, column = i // columns - (a - high // 2), i % columns - (b - wide // 2)
                    if 0 <= row < rows and 0 <= column < columns:
                        total = total + taps[c * heads // d, a, b] * x[row * columns + column, c]
            channels.append(total)
        out.append(torch.stack(channels))
    return torch.stack(out)
