"""The low-rank map: r tokens' worth of memory between reading and writing, W = A B with A n x r and B r x n.

Axes: b batch, H heads, m tokens written, t tokens read, r rank, e channels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mixlab.errors import MixlabError
from mixlab.maps.base import apply_dense


@dataclass(frozen=True)
class LowRankMap:
    """Reads with `right`, writes with `left`: the product of the two, never formed."""

    left: Float[Tensor, "*b H m r"]
    right: Float[Tensor, "*b H r t"]
    structure: ClassVar[str] = "low rank"

    def __call__(self, v: Float[Tensor, "b t e"]) -> Float[Tensor, "b m e"]:
        return apply_dense(self.left, apply_dense(self.right, v))

    def dense(self) -> Float[Tensor, "*b H m t"]:
        return torch.matmul(self.left, self.right)

    def macs(self, channels: int) -> int:
        return self.left.shape[-1] * (self.left.shape[-2] + self.right.shape[-1]) * channels

    def terms(self) -> int:
        return min(self.left.shape[-3], self.left.shape[-2] * self.right.shape[-1])


class LowRankWeight(nn.Module):
    """2 length r numbers per head. Shorter texts use the corner of W, which takes the first rows of A and columns of B."""

    def __init__(self, length: int, rank: int, heads: int = 1, *, init_std: float = 1e-3) -> None:
        super().__init__()
        if not 1 <= rank <= length:
            raise MixlabError(f"rank {rank} of a map of {length} tokens; choose 1..{length}")
        self.length, self.init_std = length, init_std
        self.left = nn.Parameter(torch.empty(heads, length, rank))
        self.right = nn.Parameter(torch.empty(heads, rank, length))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Entries of W have the deviation `init_std`: they are sums of r products."""
        std = (self.init_std / self.left.shape[-1] ** 0.5) ** 0.5
        nn.init.normal_(self.left, std=std)
        nn.init.normal_(self.right, std=std)

    def extra_repr(self) -> str:
        return f"length={self.length}, rank={self.left.shape[-1]}, heads={len(self.left)}"

    def at(self, n: int) -> LowRankMap:
        """The map of tokens 0..n-1."""
        index = torch.arange(n, device=self.left.device)  # a slice of the full length makes torch.export specialise on n != length
        return LowRankMap(self.left.index_select(1, index), self.right.index_select(2, index))
