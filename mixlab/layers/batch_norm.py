"""Batch norm of sequences: statistics per channel, over the real tokens of a batch.

Axes: b batch, n tokens, d channels.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from mixlab.errors import MixlabError
from mixlab.layers.tokens import without_padding


class TokenBatchNorm(nn.BatchNorm1d):
    """torch's batch norm, but channels come last, and what is padded is not counted."""

    def reset_running_stats(self) -> None:
        # By the functions of torch.nn.init, which leave loaded tensors alone while a checkpoint is read.
        if self.running_mean is not None and self.running_var is not None and self.num_batches_tracked is not None:
            nn.init.zeros_(self.running_mean)
            nn.init.ones_(self.running_var)
            nn.init.zeros_(self.num_batches_tracked)

    def forward(self, x: Float[Tensor, "b n d"], mask: Bool[Tensor, "b n"] | None = None) -> Float[Tensor, "b n d"]:  # pyright: ignore[reportIncompatibleMethodOverride]
        x = without_padding(x, mask)  # which may be NaN
        if not self.training:
            return super().forward(x.mT).mT
        if x.shape[0] * x.shape[1] < 2:
            raise MixlabError("a batch norm cannot learn from a single token; give a longer input, more of them, or call eval()")
        mean, variance, count = moments(x.to(torch.promote_types(x.dtype, torch.float32)), mask)
        if self.track_running_stats:
            self.remember(mean, variance, count)
        normal = (x - mean) * (variance + self.eps).rsqrt()
        return (normal * self.weight + self.bias).to(x.dtype)

    @torch.no_grad()
    def remember(self, mean: Float[Tensor, "d"], variance: Float[Tensor, "d"], count: Float[Tensor, ""]) -> None:
        """Move the statistics that evaluation uses towards those of this batch, its variance unbiased."""
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        share = 1 / self.num_batches_tracked if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean), share)
        self.running_var.lerp_((variance * count / (count - 1).clamp(min=1)).to(self.running_var), share)


def moments(
    x: Float[Tensor, "b n d"], mask: Bool[Tensor, "b n"] | None
) -> tuple[Float[Tensor, "d"], Float[Tensor, "d"], Float[Tensor, ""]]:
    """Mean and (biased) variance of every channel over the real tokens, and how many these are."""
    real = x.new_ones(x.shape[:2]) if mask is None else mask.to(x)
    count = real.sum()
    mean = (x * real[..., None]).sum((0, 1)) / count
    variance = ((x - mean).square() * real[..., None]).sum((0, 1)) / count
    return mean, variance, count
