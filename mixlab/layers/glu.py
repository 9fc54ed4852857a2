"""Gated linear units: half of a projection gates the other half, within each token (Dauphin et al. 2017, arXiv:1612.08083).

    GLU(x) = (x W + b) * sigmoid(x V + c)          W, V: d x f

Shazeer (2020, arXiv:2002.05202) exchanges the sigmoid: relu (ReGLU), gelu (GEGLU), silu (SwiGLU), linear (bilinear).

Axes: b batch, n tokens, d channels in, f channels out.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn

from mixlab.errors import MixlabError, unknown
from mixlab.layers.activation import ACTIVATIONS, Activation


class GLU(nn.Module):
    """`d` channels to `f`; tokens do not meet. W and V are one projection, W first. 2 d f + 2 f parameters."""

    def __init__(self, d: int, f: int, *, gate: Activation = "sigmoid", bias: bool = True) -> None:
        super().__init__()
        if gate not in ACTIVATIONS:
            raise unknown("gate", gate, ACTIVATIONS)
        if d < 1 or f < 1:
            raise MixlabError(f"a gated linear unit from {d} to {f} channels; give at least 1 of both")
        self.project = nn.Linear(d, 2 * f, bias=bias)
        self.gate = ACTIVATIONS[gate]

    def forward(self, x: Float[Tensor, "b n d"]) -> Float[Tensor, "b n f"]:
        value, gate = self.project(x).chunk(2, dim=-1)
        return value * self.gate(gate)
