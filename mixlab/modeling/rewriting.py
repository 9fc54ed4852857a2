"""What importers do to all tensors of a file before and after the rules of names, which look at one tensor at a time."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from mixlab.errors import MixlabError
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


def renamed(state: Mapping[str, Tensor], pattern: re.Pattern[str], name: Callable[[re.Match[str]], str]) -> State:
    """Names that match, made anew from the match; all others as they are."""
    return {name(found) if (found := pattern.fullmatch(old)) else old: tensor for old, tensor in state.items()}


def check_shared(state: Mapping[str, Tensor], decoder: str, table: str) -> None:
    """That the decoder, which is left behind, only repeats the table of tokens."""
    if not torch.equal(state.get(decoder, state[table]), state[table]):
        raise MixlabError("the decoder is not the table of tokens; only models that share the two can be imported")


def without_batch(tensor: Tensor) -> Tensor:
    """1 n d, as some libraries keep positions, as n d."""
    return tensor.squeeze(0)


def with_batch(tensor: Tensor) -> Tensor:
    """The way back."""
    return tensor[None]


def kernel_as_matrix(kernel: Tensor) -> Tensor:
    """A 1 x 1 convolution as a projection."""
    return kernel.flatten(1)


def matrix_as_kernel(matrix: Tensor) -> Tensor:
    """The way back."""
    return matrix[:, :, None, None]


def count_through(state: State, stages: str = "stages", before: str = "downsample") -> State:
    """Blocks counted through all stages: `stages.1.blocks.0.x` -> `blocks.2.x`, if the first stage has two.

    What stands before a stage goes to its first block: `stages.1.downsample.x` -> `blocks.2.downsample.x`.
    """
    staged = re.compile(rf"{stages}\.(\d+)\.(?:blocks\.(\d+)|({before}))\.(.*)")
    places = sorted({(int(m[1]), int(m[2])) for name in state if (m := staged.fullmatch(name)) and m[2]})

    def counted(m: re.Match[str]) -> str:
        return f"blocks.{places.index((int(m[1]), int(m[2] or 0)))}.{m[4] if m[2] else f'{m[3]}.{m[4]}'}"

    return renamed(state, staged, counted)


def stage_starts(state: Mapping[str, Tensor], before: str = "downsample") -> list[int]:
    """The first block of every stage, after `count_through`."""
    return [0, *sorted({int(m[1]) for name in state if (m := re.fullmatch(rf"blocks\.(\d+)\.{before}\..*", name))})]


def count_by_stage(state: State, stages: str = "stages", before: str = "downsample") -> State:
    """Undo `count_through`."""
    starts = stage_starts(state, before)

    def staged(m: re.Match[str]) -> str:
        stage = bisect_right(starts, int(m[1])) - 1
        within = m[2] if m[2].startswith(f"{before}.") else f"blocks.{int(m[1]) - starts[stage]}.{m[2]}"
        return f"{stages}.{stage}.{within}"

    return renamed(state, re.compile(r"blocks\.(\d+)\.(.*)"), staged)
