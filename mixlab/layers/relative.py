"""What attention knows of distances: a number for each (`RelativeBias`), or a key that queries are compared with (`RelativeKeys`).

A distance is the place of the query less that of the key: above 0 it looks back.

Axes: b batch, h heads, m queries, t tokens that may be read, c channels of a head, r distances, w distances of a call.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from mixlab.errors import MixlabError
from mixlab.maps import ToeplitzWeight


class RelativeBias(nn.Module):
    """b_(i - j), added to the logits of each head: a softmax's Toeplitz weight. It is a `LogitBias`."""

    def __init__(self, length: int, heads: int, *, causal: bool = False, std: float = 0.02) -> None:
        super().__init__()
        self.heads = heads
        self.weight = ToeplitzWeight(length, heads, causal=causal, init_std=std)

    def forward(
        self, q: Float[Tensor, "b h m c"], k: Float[Tensor, "b h t c"], to: Int[Tensor, "#b m"], frm: Int[Tensor, "#b t"]
    ) -> Float[Tensor, "#b h m t"]:
        return self.between(to, frm)

    def between(self, to: Int[Tensor, "#b m"], frm: Int[Tensor, "#b t"]) -> Float[Tensor, "#b h m t"]:
        return self.weight.between(to, frm)

    def resize(self, length: int, grids: tuple[int, int] | None, prefix: int) -> str:
        _not_of_images(grids)
        self.weight, said = self.weight.resized(length)
        return f"relative bias: {said}"

    def make_causal(self) -> str:
        self.weight, said = self.weight.causal_half()
        return f"relative bias: {said}"


class RelativeKeys(nn.Module):
    """A key for each distance below `farthest`, per head or for all; of what is farther, queries say nothing.

    Causal: distances 0, 1, ...; else those that look ahead, too.
    """

    def __init__(
        self,
        length: int,
        heads: int,
        channels: int,
        *,
        farthest: int | None = None,
        causal: bool = False,
        shared: bool = False,
        std: float = 0.02,
    ) -> None:
        super().__init__()
        if length < 1 or (farthest is not None and farthest < 1):
            raise MixlabError(f"relative keys for {length} tokens and distances below {farthest}; give at least 1")
        self.length, self.farthest, self.causal, self.std = length, farthest, causal, std
        self.weight = nn.Parameter(torch.empty(1 if shared else heads, _entries(self.reach, causal), channels))
        self.reset_parameters()

    @property
    def reach(self) -> int:
        """Distances below this one have a key."""
        return self.length if self.farthest is None else min(self.farthest, self.length)

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=self.std)

    def at(self, m: int, t: int) -> Float[Tensor, "#h w c"]:
        """The keys of all distances of the last m of t tokens, in the order of `SoftmaxMap.relative`."""
        distances = t - 1 - torch.arange(t if self.causal else m + t - 1, device=self.weight.device)
        entry, known = self._entry(distances)
        return self.weight.index_select(1, entry) * known[:, None]

    def between(self, q: Float[Tensor, "b h m c"], to: Int[Tensor, "b m"], frm: Int[Tensor, "b t"]) -> Float[Tensor, "b h m t"]:
        """S / sqrt(c) for any places."""
        entry, known = self._entry(to[:, None, :, None] - frm[:, None, None, :])  # b 1 m t
        scores = torch.matmul(q, self.weight.mT) / math.sqrt(q.shape[-1])  # b h m r
        return scores.gather(-1, entry.expand(-1, q.shape[1], -1, -1)) * known

    def _entry(self, distance: Int[Tensor, "*b"]) -> tuple[Int[Tensor, "*b"], Int[Tensor, "*b"]]:
        """Where the key of a distance stands, and 1 if there is one (0: none is needed, or it is too far)."""
        zero = 0 if self.causal else self.reach - 1
        last = self.weight.shape[1] - 1
        entry = distance + zero
        return entry.clamp(0, last), ((entry >= 0) & (entry <= last)).to(self.weight.dtype)

    def resize(self, length: int, grids: tuple[int, int] | None, prefix: int) -> str:
        """Keys of shared distances stay; new ones are zero, which says as little as none."""
        _not_of_images(grids)
        old, before = self.weight.detach(), self.reach
        self.length = length
        kept = min(before, self.reach)
        new = old.new_zeros(len(old), _entries(self.reach, self.causal), old.shape[2])
        ours, theirs = (0, 0) if self.causal else (self.reach - kept, before - kept)
        span = _entries(kept, self.causal)
        new[:, ours : ours + span] = old[:, theirs : theirs + span]
        self.weight = nn.Parameter(new)
        return f"relative keys of distances below {kept} kept" + ("" if self.reach == kept else f"; up to {self.reach} they are zero")

    def make_causal(self) -> str:
        """Keep the keys that look back."""
        dropped = 0 if self.causal else self.reach - 1
        self.weight, self.causal = nn.Parameter(self.weight.detach()[:, dropped:].clone()), True
        return f"relative keys: dropped {dropped} distances that look ahead"

    def extra_repr(self) -> str:
        return f"length={self.length}, farthest={self.farthest}, causal={self.causal}"


def _entries(reach: int, causal: bool) -> int:
    return reach if causal else 2 * reach - 1


def _not_of_images(grids: tuple[int, int] | None) -> None:
    if grids is not None:
        raise MixlabError("distances along a sequence say nothing of rows and columns; the relative weights of an image are not resized")
