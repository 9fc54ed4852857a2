"""One vector of all tokens: their mean, or (MAP, Lee et al. 2019, arXiv:1810.00825) what a learned probe reads, and a feed-forward network.

    P = softmax(q k^T / sqrt(c)) v W_o        q = probe W_q,  [k, v] = X W_kv
    y = P + gelu(norm(P) W_1) W_2

Axes: b batch, n tokens, d channels, f wider channels, c channels of a head.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mixlab.errors import MixlabError
from mixlab.layers.activation import Activation
from mixlab.layers.mlp import FeedForward
from mixlab.maps import SoftmaxMap
from mixlab.maps.base import split_heads


class AttentionPool(nn.Module):
    """One vector of `d` channels for all tokens of a sample; `norm` makes a norm, given its channels."""

    def __init__(self, d: int, f: int, *, heads: int, norm: Callable[[int], nn.Module], activation: Activation = "gelu") -> None:
        super().__init__()
        if heads < 1 or d % heads:
            raise MixlabError(f"attention width {d} cannot be split into {heads} heads; choose a multiple of at least 1")
        self.heads = heads
        self.probe = nn.Parameter(torch.empty(1, 1, d))
        self.q = nn.Linear(d, d)
        self.kv = nn.Linear(d, 2 * d)
        self.out = nn.Linear(d, d)
        self.ffn_norm = norm(d)
        self.ffn = FeedForward(d, f, activation=activation)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.probe, std=self.probe.shape[-1] ** -0.5)

    def forward(self, x: Float[Tensor, "b n d"]) -> Float[Tensor, "b d"]:
        q = self.q(self.probe).expand(len(x), -1, -1)  # b 1 d
        k, v = self.kv(x).chunk(2, dim=-1)
        pooled = self.out(SoftmaxMap(split_heads(q, self.heads), split_heads(k, self.heads))(v))
        return (pooled + self.ffn(self.ffn_norm(pooled))).squeeze(1)


class MeanPool(nn.Module):
    """The mean of all tokens, and then a norm; to normalise each token first is something else."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: Float[Tensor, "b n d"]) -> Float[Tensor, "b d"]:
        return self.norm(x.mean(1))
