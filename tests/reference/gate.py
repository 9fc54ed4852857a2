"""The spatial gate: f(v)_i = sum_j W_ij norm(v_j) + b_i, norm over the channels, and then

    linear s(z) = f(z)     additive s(z) = z + f(z)     multiplicative s(z) = z * f(z)     split s([u, v]) = u * f(v)

Sections 2.1 and 4.1 of "Pay Attention to MLPs" (arXiv:2105.08050). Channels fall into contiguous groups, one W and one b each.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def layer_norm(x: Tensor, scale: Tensor, shift: Tensor, eps: float) -> Tensor:
    """(x - mean) / sqrt(variance + eps) * scale + shift of one token."""
    mean = sum(x) / len(x)
    variance = sum((c - mean) ** 2 for c in x) / len(x)
    return (x - mean) / (variance + eps).sqrt() * scale + shift


def gate(
    z: Tensor,  # n f, one sample
    W: Tensor,  # H N N
    b: Tensor,  # H N
    scale: Tensor,
    shift: Tensor,
    *,
    kind: str,
    causal: bool = False,
    mask: Sequence[bool] | None = None,
    extra: Tensor | None = None,  # n e, added to f(v)
    tanh: bool = False,
    eps: float = 1e-6,
) -> Tensor:
    """Rows of padding are zero."""
    half = z.shape[1] // 2
    u, v = (z[:, :half], z[:, half:]) if kind == "split" else (z, z)
    real = [i for i in range(len(z)) if mask is None or mask[i]]
    normed = {i: layer_norm(v[i], scale, shift, eps) for i in real}
    group = v.shape[1] // len(W)
    out = [torch.zeros_like(v[0]) for _ in z]
    for to, i in enumerate(real):
        heads = []
        for h in range(len(W)):
            own = slice(h * group, (h + 1) * group)
            f = b[h, to].expand(group)
            for frm, j in enumerate(real):
                if frm <= to or not causal:
                    f = f + W[h, to, frm] * normed[j][own]
            heads.append(f)
        f = torch.cat(heads)
        f = f if extra is None else f + extra[i]
        f = f.tanh() if tanh else f
        out[i] = {"linear": f, "additive": u[i] + f, "multiplicative": u[i] * f, "split": u[i] * f}[kind]
    return torch.stack(out)
