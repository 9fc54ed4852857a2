"""One block of a lightweight or dynamic convolution model (Wu et al. 2019, arXiv:1901.10430), written token by token.

    A = norm(X + W_O conv(GLU(X)))        Y = norm(A + W_2 relu(W_1 A))

Parameters come as a mapping: `branch.gated.project`, `branch.out`, `branch_norm`, `ffn.widen`, `ffn.narrow`, `ffn_norm`, and the taps:
`branch.convolution.weight.taps` (H k), or `branch.convolution.predict.weight` (H k, d) where they are made of the token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from tests.reference.banded import convolve, softmax
from tests.reference.gate import layer_norm
from tests.reference.gated import GATES, affine, glu

Params = Mapping[str, Tensor]


def convolution(x: Tensor, p: Params, *, heads: int, kernel: int, causal: bool = False, mask: Sequence[bool] | None = None) -> Tensor:
    """One sample, n d; `weight.taps` or `predict.weight`."""
    ahead = 0 if causal else kernel // 2
    if "weight.taps" in p:
        return convolve(x, lambda _, h: softmax(p["weight.taps"][h]), heads, ahead, mask)
    by_head = p["predict.weight"].unflatten(0, (heads, kernel))
    return convolve(x, lambda i, h: softmax(by_head[h] @ x[i]), heads, ahead, mask)


def of(p: Params, prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in p.items() if name.startswith(prefix)}


def block(
    x: Tensor, p: Params, *, heads: int, kernel: int, causal: bool = False, mask: Sequence[bool] | None = None, eps: float = 1e-6
) -> Tensor:
    gated = glu(x, of(p, "branch.gated."), "sigmoid")
    mixed = convolution(gated, of(p, "branch.convolution."), heads=heads, kernel=kernel, causal=causal, mask=mask)
    out = []
    for token, y in zip(x, mixed, strict=True):
        a = layer_norm(token + torch.stack(affine(p, "branch.out", y)), p["branch_norm.weight"], p["branch_norm.bias"], eps)
        hidden = torch.stack([GATES["relu"](t) for t in affine(p, "ffn.widen", a)])
        out.append(layer_norm(a + torch.stack(affine(p, "ffn.narrow", hidden)), p["ffn_norm.weight"], p["ffn_norm.bias"], eps))
    return torch.stack(out)
