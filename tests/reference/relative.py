"""Attention that knows distances, with every key and every number gathered where it is used: O(n^2 d) numbers, O(n^2 d) steps.

    a_ij = exp(l_ij) / sum_j exp(l_ij),   l_ij = q_i (k_j + e_(i - j)) / sqrt(c) + b_(i - j)

e: "Music Transformer" (arXiv:1809.04281), equation 3, before its section 3.4 saves memory. b: "Pay Attention to MLPs" (arXiv:2105.08050),
section 4.1, where q and k may be left out, too. The sums run over the tokens that i may read; i - j is counted among the real tokens.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

Table = Mapping[int, Tensor]  # by distance


def table(weight: Tensor, causal: bool) -> Table:
    """The entries of a head by distance: 0, 1, ...; or from those farthest ahead to those farthest back."""
    zero = 0 if causal else (len(weight) - 1) // 2
    return {entry - zero: weight[entry] for entry in range(len(weight))}


def heads_of(weight: Tensor, heads: int, causal: bool) -> list[Table]:
    return [table(weight[h if len(weight) > 1 else 0], causal) for h in range(heads)]


def attend(
    q: Tensor | None,  # n a; None: logits are b alone
    k: Tensor | None,
    v: Tensor,  # n a
    heads: int,
    *,
    keys: Sequence[Table] | None = None,
    bias: Sequence[Table] | None = None,
    causal: bool = False,
    mask: Sequence[bool] | None = None,
) -> Tensor:
    """One sample; rows of padding are zero. A distance without a key adds nothing."""
    real = [i for i in range(len(v)) if mask is None or mask[i]]
    c = v.shape[1] // heads
    out = [v.new_zeros(v.shape[1]) for _ in v]
    for to, i in enumerate(real):
        mixed = []
        for h in range(heads):
            part = slice(h * c, (h + 1) * c)
            exp = {}
            for frm, j in enumerate(real[: to + 1] if causal else real):
                logit = v.new_zeros(())
                if q is not None and k is not None:
                    key = k[j, part]
                    if keys is not None and to - frm in keys[h]:
                        key = key + keys[h][to - frm]
                    logit = (q[i, part] * key).sum() / math.sqrt(c)
                if bias is not None:
                    logit = logit + bias[h][to - frm]
                exp[j] = logit.exp()
            mixed.append(sum(exp[j] / sum(exp.values()) * v[j, part] for j in exp))
        out[i] = torch.cat(mixed)
    return torch.stack(out)


def self_attention(
    x: Tensor,  # n d
    p: Mapping[str, Tensor],  # qkv.weight, qkv.bias, out.weight, out.bias, of all heads
    heads: int,
    *,
    keys: Tensor | None = None,
    bias: Tensor | None = None,
    causal: bool = False,
    mask: Sequence[bool] | None = None,
) -> Tensor:
    """With the projections; rows of padding hold anything."""
    q, k, v = (x @ p["qkv.weight"].mT + p["qkv.bias"]).chunk(3, dim=-1)
    tables = {name: None if w is None else heads_of(w, heads, causal) for name, w in (("keys", keys), ("bias", bias))}
    return attend(q, k, v, heads, causal=causal, mask=mask, **tables) @ p["out.weight"].mT + p["out.bias"]


def distance_attention(
    x: Tensor,
    p: Mapping[str, Tensor],  # value.weight, value.bias, bias.weight.taps, out.weight, out.bias
    heads: int,
    *,
    causal: bool = False,
    mask: Sequence[bool] | None = None,
) -> Tensor:
    """The bias alone."""
    v = x @ p["value.weight"].mT + p["value.bias"]
    bias = heads_of(p["bias.weight.taps"], heads, causal)
    return attend(None, None, v, heads, bias=bias, causal=causal, mask=mask) @ p["out.weight"].mT + p["out.bias"]
