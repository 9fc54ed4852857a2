"""The pool map: every place of an image becomes the mean of those around it. No numbers to learn.

P[to, from] = 1 / (places of the window around `to` that are inside the image), for those that are; PoolFormer's mixing is P - I.

Axes: b batch, t tokens (places of the image, row by row), e channels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from mixlab.errors import MixlabError


@dataclass(frozen=True)
class PoolMap:
    """Windows of `window` x `window` on a grid, or, if `less_itself`, P - I; type and place only matter to `dense`."""

    grid: tuple[int, int]
    window: int = 3
    less_itself: bool = False
    dtype: torch.dtype = torch.float32
    device: torch.device | None = None
    structure: ClassVar[str] = "pool"

    def __post_init__(self) -> None:
        if self.window < 1 or self.window % 2 == 0:
            raise MixlabError(f"a window of {self.window} x {self.window} has no middle; use an odd number of at least 1")

    def __call__(self, v: Float[Tensor, "b t e"]) -> Float[Tensor, "b t e"]:
        image = v.mT.unflatten(2, self.grid)  # b e rows columns
        mean = F.avg_pool2d(image, self.window, stride=1, padding=self.window // 2, count_include_pad=False).flatten(2).mT
        return mean - v if self.less_itself else mean

    def dense(self) -> Float[Tensor, "1 t t"]:
        places = [torch.arange(side, device=self.device) for side in self.grid]
        near = [(at[:, None] - at).abs() <= self.window // 2 for at in places]  # to, from; along one axis
        inside = torch.kron(*(n.to(self.dtype) for n in near))
        matrix = inside / inside.sum(1, keepdim=True)
        return (matrix - torch.eye(len(matrix), dtype=self.dtype, device=self.device) if self.less_itself else matrix)[None]

    def macs(self, channels: int) -> int:
        """Sums alone, and a division."""
        return 0

    def terms(self) -> int:
        return 1
