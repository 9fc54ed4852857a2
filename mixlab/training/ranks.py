"""The few things that several processes of one run must do together; with one process they cost nothing."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from safetensors import SafetensorError

from mixlab.errors import MixlabError

T = TypeVar("T")


def world() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    return dist.get_rank() if world() > 1 else 0


def on_main(work: Callable[[], T]) -> T:
    """Run on the main process while the others wait; all get its result, or its error."""
    outcome: list[Any] = [None, None]
    if rank() == 0:
        try:
            outcome[0] = work()
        except (MixlabError, OSError, SafetensorError) as error:
            outcome[1] = error
    if world() > 1:
        dist.broadcast_object_list(outcome, src=0)
    if outcome[1] is not None:
        raise outcome[1]
    return outcome[0]


def gather(value: Any) -> list[Any]:
    """One value of each process, in the order of their ranks."""
    if world() == 1:
        return [value]
    values: list[Any] = [None] * world()
    dist.all_gather_object(values, value)
    return values


def mean(value: float) -> float:
    return sum(gather(value)) / world()


def any_of(flag: bool) -> bool:
    return any(gather(flag)) if world() > 1 else flag


def unlike_seed(seed: int, step: int) -> int:
    """A seed of its own for each process and each start, for generators that have no stored state."""
    return int(torch.tensor([seed, step, rank(), 0x6D6978]).mul(torch.tensor([1, 1_000_003, 7_919, 1])).sum()) % 2**31


def launched_rank() -> int:
    """Before the processes know each other, as torchrun tells it."""
    return int(os.environ.get("RANK", "0"))
