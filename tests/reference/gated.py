"""Three gates that work token by token, written for one channel at a time. A matrix (o, i) multiplies a token's channels from the left.

GLU        (W x + b) sigmoid(V x + c)               Dauphin et al. 2017; Shazeer 2020 for the other gates
highway    T H + (1 - T) x                          Srivastava et al. 2015
SE         x sigmoid(W_2 relu(W_1 mean x))          Hu et al. 2018
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

Params = Mapping[str, Tensor]

GATES = {
    "sigmoid": lambda t: 1 / (1 + (-t).exp()),
    "relu": lambda t: t * (t > 0),
    "gelu": lambda t: t * (1 + (t / math.sqrt(2)).erf()) / 2,
    "silu": lambda t: t / (1 + (-t).exp()),
    "linear": lambda t: t,
}


def affine(p: Params, name: str, x: Tensor) -> list[Tensor]:
    """W x + b of one token, output by output."""
    weight, bias = p[f"{name}.weight"], p.get(f"{name}.bias")
    sums = [sum(weight[o, i] * x[i] for i in range(len(x))) for o in range(len(weight))]
    return sums if bias is None else [total + bias[o] for o, total in enumerate(sums)]


def glu(x: Tensor, p: Params, gate: str) -> Tensor:
    out = []
    for token in x:
        both = affine(p, "project", token)
        half = len(both) // 2
        out.append(torch.stack([both[c] * GATES[gate](both[half + c]) for c in range(half)]))
    return torch.stack(out)


def highway(x: Tensor, p: Params, activation: str = "relu") -> Tensor:
    out = []
    for token in x:
        H = [GATES[activation](t) for t in affine(p, "transform", token)]
        T = [GATES["sigmoid"](t) for t in affine(p, "gate", token)]
        out.append(torch.stack([T[c] * H[c] + (1 - T[c]) * token[c] for c in range(len(token))]))
    return torch.stack(out)


def squeeze_excite(x: Tensor, p: Params, mask: Sequence[bool] | None) -> Tensor:
    real = [i for i in range(len(x)) if mask is None or mask[i]]
    mean = sum(x[i] for i in real) / len(real)
    hidden = torch.stack([GATES["relu"](t) for t in affine(p, "squeeze", mean)])
    scale = torch.stack([GATES["sigmoid"](t) for t in affine(p, "excite", hidden)])
    return x * scale
