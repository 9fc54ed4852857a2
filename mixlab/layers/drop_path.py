"""Stochastic depth (Huang et al. 2016, arXiv:1603.09382): in training, a sample skips a block's branch at random."""

from __future__ import annotations

from typing import Literal

from jaxtyping import Float
from torch import Tensor, nn

from mixlab.errors import MixlabError

Schedule = Literal["constant", "linear"]


class DropPath(nn.Module):
    """Drops the branch of each sample on its own and rescales the others, so that the expectation is unchanged."""

    def __init__(self, rate: float = 0.0) -> None:
        super().__init__()
        if not 0.0 <= rate < 1.0:
            raise MixlabError(f"stochastic depth of {rate}; give a rate of at least 0 and below 1")
        self.rate = rate

    def forward(self, branch: Float[Tensor, "b n d"]) -> Float[Tensor, "b n d"]:
        if self.rate == 0.0 or not self.training:
            return branch
        kept = branch.new_empty(branch.shape[0], 1, 1).bernoulli_(1.0 - self.rate)
        return branch * kept / (1.0 - self.rate)

    def extra_repr(self) -> str:
        return f"rate={self.rate}"


def drop_path_rate(rate: float, schedule: Schedule, layer: int, layers: int) -> float:
    """The rate of one block: the same for all, or growing linearly from 0 at the first to `rate` at the last."""
    if schedule == "constant" or layers == 1:
        return rate
    return rate * layer / (layers - 1)
