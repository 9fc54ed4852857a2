"""The dynamic banded map: taps of their own at every place, made from the input. Banded, but no longer a convolution.

Axes: b batch, H heads, t tokens, e channels, c channels of a head, k taps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from mixlab.maps.banded import band, reachable
from mixlab.maps.base import check_heads


@dataclass(frozen=True)
class DynamicBandedMap:
    """taps[:, :, i, j] is what token i takes of the token j - ahead places before it (after it, where that is negative)."""

    taps: Float[Tensor, "b H t k"]
    ahead: int = 0
    structure: ClassVar[str] = "dynamic banded"

    def __call__(self, v: Float[Tensor, "b t e"]) -> Float[Tensor, "b t e"]:
        heads, _, k = self.taps.shape[1:]
        check_heads(v.shape[-1], heads)
        padded = F.pad(v, (0, 0, k - 1 - self.ahead, self.ahead))
        windows = padded.unfold(1, k, 1).unflatten(2, (heads, -1))  # b t H c k: a window reads forwards, taps backwards
        return torch.matmul(windows, self.taps.flip(-1).transpose(1, 2).unsqueeze(-1)).flatten(2)

    def dense(self) -> Float[Tensor, "b H t t"]:
        places = torch.arange(self.taps.shape[2], device=self.taps.device)
        return band(self.taps, places, places, self.ahead)

    def macs(self, channels: int) -> int:
        """Of the taps applied; what made them is not the map's. Zeros beyond the border are multiplied too."""
        return self.taps.shape[2] * self.taps.shape[3] * channels

    def terms(self) -> int:
        length, kernel = self.taps.shape[2:]
        return min(self.taps.shape[1], sum(length - abs(offset) for offset in reachable(kernel, self.ahead, length)))
