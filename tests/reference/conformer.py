"""The parts of a Conformer that read several tokens, written out, one sample at a time.

logit_ij = (q_i k_j + u k_j + (q_i + v) W_r r_{i-j}) / sqrt(c)        r_p = [sin p, cos p, sin p w, cos p w, sin p w^2, ...]
y_i      = w_0 x_{i-a} + w_1 x_{i-a+1} + ... + b                      a = (k - 1) // 2 neighbours before, the others behind
s_i      = relu(sum of K_ab x_{2i+a, 2j+b} + b)                       3 x 3, every second frame and feature
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def wave(distance: int, d: int) -> Tensor:
    """r_p."""
    numbers = []
    for pair in range(d // 2):
        angle = distance / 10000 ** (2 * pair / d)
        numbers += [math.sin(angle), math.cos(angle)]
    return torch.tensor(numbers, dtype=torch.float64)


def relative_logits(q: Tensor, k: Tensor, u: Tensor, v: Tensor, W_r: Tensor) -> Tensor:
    """q and k: n c, of one head, as are u and v (c) and its rows of W_r (c d)."""
    n, c = q.shape
    rows = [[(q[i] @ k[j] + u @ k[j] + (q[i] + v) @ (W_r @ wave(i - j, W_r.shape[1]))) / math.sqrt(c) for j in range(n)] for i in range(n)]
    return torch.stack([torch.stack(row) for row in rows])


def depthwise(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """x: n d, weight: d k."""
    n, taps = len(x), weight.shape[1]
    out = []
    for i in range(n):
        places = [i - (taps - 1) // 2 + tap for tap in range(taps)]
        out.append(sum((weight[:, tap] * x[place] for tap, place in enumerate(places) if 0 <= place < n), bias))
    return torch.stack(out)


def subsampled(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """x: i t m, weight: o i 3 3."""
    _, frames, features = x.shape
    rows = [
        [(weight * x[:, 2 * i : 2 * i + 3, 2 * j : 2 * j + 3]).sum((1, 2, 3)) + bias for j in range(features) if 2 * j + 3 <= features]
        for i in range(frames)
        if 2 * i + 3 <= frames
    ]
    return torch.stack([torch.stack(row, 1) for row in rows], 1).relu()
