"""Token maps: n x n operators that mix tokens, each with a structure.

Axes: b batch, H heads, m tokens written, t tokens read, n tokens, e channels (heads own contiguous, equal groups of them).

Two kinds of things live here, and they are kept apart:
- a **map** is a value: an operator bound to its length (and, for input-dependent ones, to its input). It has a fast path,
  `map(v)`, and a slow truth, `map.dense()`, that materialises the same operator.
- a **weight** is a torch module that owns parameters up to a length cap and hands out maps: `weight.at(n)` for tokens 0..n-1,
  `weight.between(to, frm)` for any positions. Input-dependent maps need no such module: they are made from tensors.
"""

from __future__ import annotations

from typing import ClassVar, Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from mixlab.errors import MixlabError


@runtime_checkable
class TokenMap(Protocol):
    """An m x t operator on tokens, the same for all channels of a head."""

    structure: ClassVar[str]

    def __call__(self, v: Float[Tensor, "b t e"]) -> Float[Tensor, "b m e"]:
        """The fast path."""
        ...

    def dense(self) -> Float[Tensor, "*b H m t"]:
        """The same operator as numbers; a leading batch axis where the operator differs by sample."""
        ...

    def macs(self, channels: int) -> int:
        """Multiply-adds of one sample with this many channels."""
        ...

    def terms(self) -> int:
        """How many terms M X W it takes with generic numbers: one per head, or fewer where the structure leaves no room for more."""
        ...


AnyWeight = TypeVar("AnyWeight", bound="StaticWeight")


class StaticWeight(nn.Module):
    """Parameters of an input-independent map for up to `length` tokens; each structure says how they are laid out."""

    def __init__(self, length: int, heads: int, causal: bool, init_std: float) -> None:
        super().__init__()
        self.length, self.heads, self.causal, self.init_std = length, heads, causal, init_std

    def like(self: AnyWeight, length: int, causal: bool) -> AnyWeight:
        """A new weight of the same kind, type and place, for another length or direction."""
        first = next(self.parameters())
        return type(self)(length, self.heads, causal=causal, init_std=self.init_std).to(device=first.device, dtype=first.dtype)

    def extra_repr(self) -> str:
        return f"length={self.length}, heads={self.heads}, causal={self.causal}"

    def at(self, n: int) -> TokenMap:
        """The map of tokens 0..n-1: the full one, cropped."""
        raise NotImplementedError

    def between(self, to: Int[Tensor, "*b m"], frm: Int[Tensor, "*b t"]) -> Float[Tensor, "*b H m t"]:
        """Entries for written positions `to` and read positions `frm`, gathered."""
        raise NotImplementedError

    def resized(self, length: int) -> tuple[StaticWeight, str]:
        """A new weight of another cap that acts alike on shared positions, and what was done, in words."""
        raise NotImplementedError

    def causal_half(self) -> tuple[StaticWeight, str]:
        """A causal weight that acts alike on earlier tokens, and how much was dropped."""
        raise NotImplementedError

    def interpolated(self, old: int, new: int, prefix: int) -> tuple[StaticWeight, str]:
        """For tokens that are an `old` x `old` image (after `prefix` other tokens): a weight for `new` x `new`."""
        raise MixlabError(
            f"a {type(self).__name__} has no rows and columns to interpolate from {old} x {old} to {new} x {new}; use a dense W for images"
        )


def check_heads(channels: int, heads: int) -> None:
    if channels % heads:
        raise MixlabError(f"{channels} channels cannot be split among {heads} heads; use a multiple of {heads}")


def split_heads(x: Float[Tensor, "b n e"], heads: int) -> Float[Tensor, "b H n c"]:
    check_heads(x.shape[-1], heads)
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def merge_heads(x: Float[Tensor, "b H n c"]) -> Float[Tensor, "b n e"]:
    return x.transpose(1, 2).flatten(2)


def apply_dense(matrix: Float[Tensor, "*b H m t"], v: Float[Tensor, "b t e"]) -> Float[Tensor, "b m e"]:
    """Multiply by a materialised map; one head skips the split, which would copy."""
    heads = matrix.shape[-3]
    if heads == 1:
        return torch.matmul(matrix.squeeze(-3), v)
    return merge_heads(torch.matmul(matrix, split_heads(v, heads)))
