"""Attention in windows, one token after the other: token i reads token j if a cut of the grid leaves both in one window.

Cuts are at rows and columns shift, shift + side, ...; what lies before the first is a window of its own, smaller than the others. An axis
of one window is not cut. The logit of i and j is q_i k_j / sqrt(c) plus a number for how many rows and columns j lies before i.

Merging: [x at (0, 0), (1, 0), (0, 1), (1, 1)] of each 2 x 2 square, row and column, normalised, times W.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor


def piece(at: int, extent: int, side: int, shift: int) -> int:
    """Which piece of a cut line a place lies in."""
    cuts = [] if extent == side else range(shift, extent + 1, side)
    return sum(at >= cut for cut in cuts)


def window_attention(x: Tensor, p: Mapping[str, Tensor], *, grid: tuple[int, int], side: int, shift: int, heads: int) -> Tensor:
    rows, columns = grid
    d = x.shape[1]
    c = d // heads
    qkv = [p["qkv.weight"] @ token + p["qkv.bias"] for token in x]
    window = [(piece(i // columns, rows, side, shift), piece(i % columns, columns, side, shift)) for i in range(len(x))]
    out = []
    for i in range(len(x)):
        readable = [j for j in range(len(x)) if window[j] == window[i]]
        mixed = []
        for h in range(heads):
            q = qkv[i][h * c : (h + 1) * c]
            exp = []
            for j in readable:
                k = qkv[j][d + h * c : d + (h + 1) * c]
                down, right = i // columns - j // columns, i % columns - j % columns
                offset = (down + side - 1) * (2 * side - 1) + right + side - 1
                exp.append((sum(q * k) / math.sqrt(c) + p["offsets.table"][offset, h]).exp())
            v = [qkv[j][2 * d + h * c : 2 * d + (h + 1) * c] for j in readable]
            mixed.append(sum(e / sum(exp) * value for e, value in zip(exp, v, strict=True)))
        out.append(p["out.weight"] @ torch.cat(mixed) + p["out.bias"])
    return torch.stack(out)


def merge(x: Tensor, p: Mapping[str, Tensor], grid: tuple[int, int]) -> Tensor:
    rows, columns = grid
    out = []
    for row in range(0, rows, 2):
        for column in range(0, columns, 2):
            four = torch.cat([x[(row + r) * columns + column + c] for c in (0, 1) for r in (0, 1)])
            centred = four - four.mean()
            normal = centred / (centred.square().mean() + 1e-5).sqrt() * p["norm.weight"] + p["norm.bias"]
            out.append(p["reduction.weight"] @ normal)
    return torch.stack(out)
