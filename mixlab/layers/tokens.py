"""`Tokens`: what flows through a body, and what a layer may know about it besides the numbers.

Axes: b batch, n tokens, d channels, t tokens seen so far (those in the cache, then the n of this call; t = n without a cache).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor


@runtime_checkable
class LayerCache(Protocol):
    """What one layer keeps of past tokens, as named sequences."""

    def append(self, name: str, new: Float[Tensor, "b n c"]) -> Float[Tensor, "b t c"]:
        """Add the new tokens' rows to a sequence and return all of it."""
        ...


@dataclass
class Record:
    """Collects named intermediates on request: `hidden` states, token `maps`, attention `maps` made from the input."""

    wanted: frozenset[str]
    values: dict[str, dict[int, Tensor]] = field(default_factory=dict)

    def of(self, kind: str) -> tuple[Tensor, ...]:
        """What was kept of a kind, in the order of the layers."""
        return tuple(value for _, value in sorted(self.values.get(kind, {}).items()))


@dataclass(frozen=True)
class Tokens:
    """A batch of token sequences. Padding, if any, stands behind the tokens (see `to_front`) unless `positions` are given."""

    x: Float[Tensor, "b n d"]
    mask: Bool[Tensor, "b t"] | None = None  # True where a token is; None: everywhere
    positions: Int[Tensor, "b t"] | None = None  # place of each token in its own text; None: 0..t-1
    grid: tuple[int, int] | None = None  # rows and columns when the tokens are an image
    caches: Sequence[LayerCache] | None = None
    past: int = 0  # how many tokens the caches held before this call
    layer: int = 0  # which block the tokens are about to enter
    record: Record | None = None

    def with_x(self, x: Float[Tensor, "b n d"]) -> Tokens:
        return replace(self, x=x)

    @property
    def cache(self) -> LayerCache | None:
        """The cache of the block that the tokens are about to enter."""
        return None if self.caches is None else self.caches[self.layer]

    def places(self) -> Int[Tensor, "#b n"]:
        """The positions of this call's tokens."""
        n = self.x.shape[1]
        if self.positions is not None:
            return self.positions[:, -n:]
        return torch.arange(self.past, self.past + n, device=self.x.device)[None]

    def seen_places(self, seen: int) -> Int[Tensor, "#b t"]:
        """The positions of all tokens that this call may read, those in the cache first."""
        return torch.arange(seen, device=self.x.device)[None] if self.positions is None else self.positions

    def keep(self, kind: str, value: Callable[[], Tensor]) -> None:
        """Record an intermediate under the present layer if somebody asked for its kind."""
        if self.record is not None and kind in self.record.wanted:
            self.record.values.setdefault(kind, {})[self.layer] = value()


def without_padding(x: Float[Tensor, "b n c"], mask: Bool[Tensor, "b t"] | None) -> Float[Tensor, "b n c"]:
    """Zeros where a token is padding, whatever stood there (also NaN)."""
    return x if mask is None else x.masked_fill(~mask[:, -x.shape[1] :, None], 0.0)


def front_slots(mask: Bool[Tensor, "b n"]) -> Int[Tensor, "b n"]:
    """Where each token goes when a row's real tokens move to its front, in their order, and its padding behind them."""
    real = mask.long()
    behind = real.sum(1, keepdim=True) + (1 - real).cumsum(1) - 1
    return torch.where(mask, real.cumsum(1) - 1, behind)


def to_front(x: Shaped[Tensor, "b n *d"], slots: Int[Tensor, "b n"]) -> Shaped[Tensor, "b n *d"]:
    """Move token i of each row to `slots[i]`: left padding, or holes, become right padding."""
    return torch.zeros_like(x).scatter(1, _as_index(slots, x), x)


def from_front(x: Shaped[Tensor, "b n *d"], slots: Int[Tensor, "b n"]) -> Shaped[Tensor, "b n *d"]:
    """Undo `to_front`."""
    return x.gather(1, _as_index(slots, x))


def _as_index(slots: Int[Tensor, "b n"], x: Shaped[Tensor, "b n *d"]) -> Int[Tensor, "b n *d"]:
    return slots.reshape(slots.shape + (1,) * (x.dim() - 2)).expand_as(x)
