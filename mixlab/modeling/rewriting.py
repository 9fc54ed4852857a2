"""What importers do to all tensors of a file before and after the rules of names, which look at one tensor at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from mixlab.modeling.foreign import State


def join(state: State, parts: Sequence[str], whole: str, within: str = "") -> State:
    """Tensors whose names differ in one part, one behind the other under one name: `q.weight`, `k.weight` -> `qk.weight`.

    Only names that begin with `within` are looked at.
    """
    joined = dict(state)
    for name in [name for name in state if name.startswith(within) and parts[0] in name]:
        joined[name.replace(parts[0], whole)] = torch.cat([joined.pop(name.replace(parts[0], part)) for part in parts])
    return joined


def part(state: State, whole: str, parts: Sequence[str], sizes: Callable[[Tensor], list[int]] | None = None) -> State:
    """The way back, in equal parts, or in parts of these sizes."""
    parted = dict(state)
    for name in [name for name in state if whole in name]:
        tensor = parted.pop(name)
        pieces = tensor.chunk(len(parts)) if sizes is None else tensor.split(sizes(tensor))
        parted |= zip((name.replace(whole, part) for part in parts), pieces, strict=True)
    return parted


def respell(state: State, spellings: Mapping[str, str]) -> State:
    """Parts of all names replaced, in this order, so that one rule for each is enough where a library knows two spellings."""
    respelled: State = {}
    for name, tensor in state.items():
        for old, new in spellings.items():
            name = name.replace(old, new)
        respelled[name] = tensor
    return respelled


def without_batch(tensor: Tensor) -> Tensor:
    """1 n d, as some libraries keep positions, as n d."""
    return tensor.squeeze(0)


def with_batch(tensor: Tensor) -> Tensor:
    """The way back."""
    return tensor[None]
