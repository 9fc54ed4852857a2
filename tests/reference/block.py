"""One block: y_i = x_i + V s(Z)_i,  Z_i = gelu(U norm(x_i)),  gelu(t) = t (1 + erf(t / sqrt(2))) / 2,  s the spatial gate.

In aMLP, attend(norm(x)) is added to f(v) inside the gate, before the product. Figure 1, section 2 and section 4.3 of
"Pay Attention to MLPs" (arXiv:2105.08050). U is (f, d) and V is (d, e): they multiply a token's channels from the left.

Parameters come as a mapping: `norm`, `U`, `gate.norm`, `V`, `attention.qkv`, `attention.out` with `.weight` and `.bias`, `gate.bias`,
and `gate.spatial.weight` (a free W) or `gate.spatial.taps` (a Toeplitz one).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from tests.reference import toeplitz
from tests.reference.attention import attention
from tests.reference.gate import gate, layer_norm


def gelu(t: Tensor) -> Tensor:
    return t * (1 + (t / math.sqrt(2)).erf()) / 2


def gelu_tanh(t: Tensor) -> Tensor:
    """Hendrycks and Gimpel's approximation (arXiv:1606.08415)."""
    return t * (1 + (math.sqrt(2 / math.pi) * (t + 0.044715 * t**3)).tanh()) / 2


def spatial_weight(p: Mapping[str, Tensor], prefix: str, n: int, causal: bool) -> Tensor:
    """W for n tokens, H n n; what a causal W holds above its diagonal the gate does not look at."""
    if prefix + "weight" in p:
        return p[prefix + "weight"]
    build = toeplitz.causal if causal else toeplitz.two_sided
    return torch.stack([build(taps, n) for taps in p[prefix + "taps"]])


def block(
    x: Tensor,  # n d, one sample
    p: Mapping[str, Tensor],
    *,
    kind: str = "split",
    causal: bool = False,
    mask: Sequence[bool] | None = None,
    heads: int = 1,  # of the attention, where there is one
    activation=gelu,
) -> Tensor:
    """Rows of padding are those of x plus V's bias: nobody may read them."""
    normed = torch.stack([layer_norm(t, p["norm.weight"], p["norm.bias"], 1e-6) for t in x])
    Z = torch.stack([activation(p["U.weight"] @ t + p["U.bias"]) for t in normed])
    sip = None
    if "attention.qkv.weight" in p:
        qkv, out = (p["attention.qkv.weight"], p.get("attention.qkv.bias")), (p["attention.out.weight"], p["attention.out.bias"])
        sip = attention(normed, *qkv, *out, heads=heads, causal=causal, mask=mask)
    W = spatial_weight(p, "gate.spatial.", len(x), causal)
    norm = (p["gate.norm.weight"], p["gate.norm.bias"])
    gated = gate(Z, W, p["gate.bias"], *norm, kind=kind, causal=causal, mask=mask, extra=sip)
    return torch.stack([x[i] + p["V.weight"] @ gated[i] + p["V.bias"] for i in range(len(x))])
