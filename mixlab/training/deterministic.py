"""Settings of torch that hold for a while: kernels that repeat."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import torch


@contextlib.contextmanager
def deterministic(wanted: bool) -> Iterator[None]:
    """Kernels that repeat to the bit, where torch has them; it warns where it has not."""
    if not wanted:
        yield
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    memory: Any = torch.utils.deterministic  # pyright: ignore[reportAttributeAccessIssue] (its attribute is made at run time)
    filled, memory.fill_uninitialized_memory = memory.fill_uninitialized_memory, False
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        memory.fill_uninitialized_memory = filled
