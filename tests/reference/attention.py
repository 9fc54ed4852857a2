"""Attention: y_i = W_o sum_j a_ij v_j + b_o,  a_ij = exp(q_i k_j / sqrt(c)) / sum_j exp(q_i k_j / sqrt(c)),  [q, k, v] = W_qkv x + b_qkv

The sums run over the tokens that i may read; c = d_attn / heads, and head h owns the h-th contiguous group of channels of q, k and v.
With one head this is the tiny attention of section 4.3 of "Pay Attention to MLPs" (arXiv:2105.08050).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def attention(
    x: Tensor,  # n d, one sample
    W_qkv: Tensor,  # 3a d
    b_qkv: Tensor | None,
    W_o: Tensor,  # o a
    b_o: Tensor,
    *,
    heads: int = 1,
    causal: bool = False,
    mask: Sequence[bool] | None = None,
) -> Tensor:
    """Rows of padding are zero."""
    width = len(W_qkv) // 3
    c = width // heads
    real = [i for i in range(len(x)) if mask is None or mask[i]]
    qkv = {i: W_qkv @ x[i] if b_qkv is None else W_qkv @ x[i] + b_qkv for i in real}
    out = [x.new_zeros(len(W_o)) for _ in x]
    for to, i in enumerate(real):
        readable = real[: to + 1] if causal else real
        mixed = []
        for h in range(heads):
            q = qkv[i][h * c : (h + 1) * c]
            k = {j: qkv[j][width + h * c : width + (h + 1) * c] for j in readable}
            v = {j: qkv[j][2 * width + h * c : 2 * width + (h + 1) * c] for j in readable}
            exp = {j: (sum(q * k[j]) / math.sqrt(c)).exp() for j in readable}
            mixed.append(sum(exp[j] / sum(exp.values()) * v[j] for j in readable))
        out[i] = W_o @ torch.cat(mixed) + b_o
    return torch.stack(out)
