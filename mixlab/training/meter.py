"""How fast training goes, and what the machine could do: tokens per second, and the share of its matrix products that they need."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import torch

from mixlab.accounting import FULL, LABELLED

TRAINING = 3  # a step costs a forward pass and, for the two gradients of each product, twice as much again
PROBE = 1024  # rows and columns
PROBE_SECONDS = 0.2


class Meter:
    """Counts tokens and FLOPs of this process."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.tokens = 0  # of the whole run
        self.flops = 0.0
        self.limit: float | None = None  # FLOPs per second; None until it is measured
        self._costs: dict[int, float] = {}
        self._mark = (time.monotonic(), 0, 0.0)
        self._new_tokens = 0

    def count(self, inputs: dict[str, Any]) -> None:
        ids = inputs.get("input_ids")
        if ids is None:
            ids = inputs.get("pixel_values")
        if ids is None:
            return
        samples, length = ids.shape[0], ids.shape[1] if ids.dim() == 2 else getattr(self.model.config, "length", 1)
        self.tokens += samples * length
        self._new_tokens += samples * length
        self.flops += samples * self._cost(length)

    def _cost(self, length: int) -> float:
        """FLOPs of a training step with one sequence; 0 for a model that has no account."""
        if length not in self._costs:
            self._costs[length] = TRAINING * forward_flops(self.model, length)
        return self._costs[length]

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """The time inside is no training."""
        start = time.monotonic()
        try:
            yield
        finally:
            then, tokens, flops = self._mark
            self._mark = (then + time.monotonic() - start, tokens, flops)

    def rates(self, processes: int) -> dict[str, float]:
        """Since the last call."""
        now = time.monotonic()
        then, tokens, flops = self._mark
        seconds = max(now - then, 1e-9)
        self._mark = (now, self._new_tokens, self.flops)
        rates = {"tokens_per_second": round(processes * (self._new_tokens - tokens) / seconds, 1)}
        if self.limit and self.flops:
            reached = (self.flops - flops) / seconds
            self.limit = max(self.limit, reached)  # others may have used the machine while it was measured
            rates["matmul_share"] = float(f"{reached / self.limit:.3g}")
        return rates


def forward_flops(model: Any, length: int) -> float:
    from mixlab.modeling.account import account
    from mixlab.modeling.architecture import load
    from mixlab.modeling.config import MixerConfig

    config = getattr(model, "config", None)
    if not isinstance(config, MixerConfig) or not hasattr(model, "task"):
        return 0.0
    convention = LABELLED if config.labelled_logits_only else FULL
    if config.max_position_embeddings is not None:
        length = config.length if config.modality == "image" else min(length, config.length)
    return 2.0 * account(load(config.model_type.removeprefix("mixlab-")), config, model.task, length, convention).macs


def matmul_limit(device: torch.device, dtype: torch.dtype = torch.float32) -> float:
    """FLOPs per second of a large matrix product, the best of a short probe."""
    a = torch.ones(PROBE, PROBE, device=device, dtype=dtype)
    best, end = float("inf"), time.monotonic() + PROBE_SECONDS
    while time.monotonic() < end:
        start = time.perf_counter()
        torch.mm(a, a)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - start)
    return 2 * PROBE**3 / best
