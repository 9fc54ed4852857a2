"""A number per channel: a scale on a branch (LayerScale), or a scale and a shift in place of a norm (Affine).

    LayerScale(x) = s * x        (Touvron et al. 2021, arXiv:2103.17239): branches begin small, so that deep models train
    Affine(x) = a * x + b        (Touvron et al. 2021, arXiv:2105.03404): a norm without statistics

Axes: b batch, n tokens, d channels.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn


class LayerScale(nn.Module):
    """A branch of `d` channels, each times a learned number that begins as `init`."""

    def __init__(self, d: int, init: float) -> None:
        super().__init__()
        self.init = init
        self.scale = nn.Parameter(torch.empty(d))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.scale, self.init)

    def forward(self, x: Float[Tensor, "b n d"]) -> Float[Tensor, "b n d"]:
        return self.scale * x

    def extra_repr(self) -> str:
        return f"{len(self.scale)}, init={self.init}"


class Affine(nn.Module):
    """A learned scale and shift for each of `d` channels; it begins as the identity."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.empty(d))
        self.beta = nn.Parameter(torch.empty(d))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.ones_(self.alpha)
        nn.init.zeros_(self.beta)

    def forward(self, x: Float[Tensor, "b n d"]) -> Float[Tensor, "b n d"]:
        return torch.addcmul(self.beta, self.alpha, x)

    def extra_repr(self) -> str:
        return f"{len(self.alpha)}"
