"""The identity map: tokens keep to themselves. What a feed-forward network and a 1x1 convolution do between tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class IdentityMap:
    """For `length` tokens; type and place only matter to `dense`."""

    length: int
    dtype: torch.dtype = torch.float32
    device: torch.device | None = None
    structure: ClassVar[str] = "identity"

    def __call__(self, v: Float[Tensor, "b t e"]) -> Float[Tensor, "b t e"]:
        return v

    def dense(self) -> Float[Tensor, "1 t t"]:
        return torch.eye(self.length, dtype=self.dtype, device=self.device)[None]

    def macs(self, channels: int) -> int:
        return 0

    def terms(self) -> int:
        return 1
