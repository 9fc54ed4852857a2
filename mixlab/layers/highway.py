"""The highway layer: a gate per channel decides how much is transformed and how much passes (Srivastava et al. 2015, arXiv:1505.00387).

    y = T(x) * H(x) + (1 - T(x)) * x          H(x) = relu(x W_H + b_H),  T(x) = sigmoid(x W_T + b_T)

b_T starts below 0, so that a deep stack begins by passing its input on.

Axes: b batch, n tokens, d channels.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn

from mixlab.errors import MixlabError, unknown
from mixlab.layers.activation import ACTIVATIONS, Activation


class Highway(nn.Module):
    """Each of `d` channels, in each token on its own. 2 d^2 + 2 d parameters."""

    def __init__(self, d: int, *, activation: Activation = "relu", bias_init: float = -2.0) -> None:
        super().__init__()
        if activation not in ACTIVATIONS:
            raise unknown("activation", activation, ACTIVATIONS)
        if d < 1:
            raise MixlabError(f"a highway of {d} channels; give at least 1")
        if bias_init >= 0:
            raise MixlabError(f"bias_init is {bias_init}: the gate would begin open and change its input; give a number below 0")
        self.transform = nn.Linear(d, d)
        self.gate = nn.Linear(d, d)
        self.activation, self.bias_init = ACTIVATIONS[activation], bias_init
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.gate.bias, self.bias_init)

    def forward(self, x: Float[Tensor, "b n d"]) -> Float[Tensor, "b n d"]:
        gate = self.gate(x).sigmoid()
        return gate * self.activation(self.transform(x)) + (1 - gate) * x
