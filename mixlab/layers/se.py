"""Squeeze-and-excitation: the mean of all tokens decides how much each channel counts (Hu et al. 2018, arXiv:1709.01507).

    s = (x_1 + ... + x_n) / n          y_i = x_i * sigmoid(relu(s W_1 + b_1) W_2 + b_2)          W_1: d x d/r,  W_2: d/r x d

A gate like gMLP's, but one that all tokens share and that does not know their order.

Axes: b batch, n tokens, d channels.
"""

from __future__ import annotations

from jaxtyping import Bool, Float
from torch import Tensor, nn

from mixlab.errors import MixlabError
from mixlab.layers.tokens import without_padding


class SqueezeExcite(nn.Module):
    """`d` channels through d / `reduction` and back. Padding is left out of the mean. 2 d^2 / r + d / r + d parameters.

    The mean reads later tokens: not for causal models.
    """

    def __init__(self, d: int, *, reduction: int = 16) -> None:
        super().__init__()
        if d < 1 or reduction < 1 or d % reduction:
            raise MixlabError(f"{d} channels cannot be squeezed by reduction={reduction}; choose a divisor of the channels")
        self.squeeze = nn.Linear(d, d // reduction)
        self.excite = nn.Linear(d // reduction, d)

    def forward(self, x: Float[Tensor, "b n d"], mask: Bool[Tensor, "b n"] | None = None) -> Float[Tensor, "b n d"]:
        real = x.shape[1] if mask is None else mask.sum(1)[:, None, None]
        mean = without_padding(x, mask).sum(1, keepdim=True) / real  # b 1 d
        return x * self.excite(self.squeeze(mean).relu()).sigmoid()
