"""A projection that begins with a deviation of its own."""

from __future__ import annotations

from torch import nn


class ScaledLinear(nn.Linear):
    """Weights of deviation `std`, whatever the rest of the model begins with, and no bias yet.

    For layers that write into a residual stream, which would otherwise grow with depth.
    """

    def __init__(self, d_in: int, d_out: int, *, std: float, bias: bool = True) -> None:
        self.std = std  # first, since nn.Linear resets its parameters
        super().__init__(d_in, d_out, bias=bias)

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=self.std)
        if self.bias is not None:
            nn.init.zeros_(self.bias)
