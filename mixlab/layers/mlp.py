"""The feed-forward network of a Transformer block: each token on its own, through a wider layer and back.

Axes: b batch, n tokens, d channels.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn

from mixlab.errors import unknown
from mixlab.layers.activation import ACTIVATIONS, Activation


class FeedForward(nn.Module):
    """gelu(x W_1) W_2, `d` channels, `f` in between."""

    def __init__(self, d: int, f: int, *, activation: Activation = "gelu") -> None:
        super().__init__()
        if activation not in ACTIVATIONS:
            raise unknown("activation", activation, ACTIVATIONS)
        self.widen = nn.Linear(d, f)
        self.activation = ACTIVATIONS[activation]
        self.narrow = nn.Linear(f, d)

    def forward(self, x: Float[Tensor, "b n d"]) -> Float[Tensor, "b n d"]:
        return self.narrow(self.activation(self.widen(x)))
