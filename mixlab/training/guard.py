"""Sees a step that must not be taken: a loss or gradient that is not finite, or a loss far above what was usual."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mixlab.errors import MixlabError
from mixlab.training import state

WINDOW = 50  # losses in the running median
FEWEST = 10  # losses before a spike can be told


class BadStepError(MixlabError):
    """Training stopped at a step that the guard refused."""


class Rollback(Exception):
    """Return to the last valid checkpoint and leave out the batch of `step`."""

    def __init__(self, step: int, why: str) -> None:
        super().__init__(why)
        self.step = step


@dataclass(frozen=True)
class Verdict:
    """Why a step is bad."""

    step: int
    why: str


class Guard:
    """Judges each step before the optimizer takes it. All of its memory goes into checkpoints, so that a resumed run judges alike."""

    def __init__(self, spike: float, most_bad_steps: int) -> None:
        self.spike, self.most_bad_steps = spike, most_bad_steps
        self.losses: deque[float] = deque(maxlen=WINDOW)
        self.bad: dict[int, str] = {}  # step -> why
        self.in_a_row = 0
        self.left_out: set[int] = set()  # steps whose batch a rollback leaves out

    def judge(self, step: int, loss: float, norm: float) -> Verdict | None:
        """Of the step that would be number `step`: its mean loss and the norm of its gradient, over all processes."""
        why = self._fault(step, loss, norm)
        if why is None:
            self.losses.append(loss)
            self.in_a_row = 0
            return None
        self.bad[step] = why
        self.in_a_row += 1
        return Verdict(step, why)

    def _fault(self, step: int, loss: float, norm: float) -> str | None:
        if step in self.left_out:
            return self.bad.get(step, "left out after a rollback")
        if not math.isfinite(loss):
            return f"the loss is {loss}"
        if not math.isfinite(norm):
            return f"the norm of the gradient is {norm}"
        if self.spike and len(self.losses) >= FEWEST:
            usual = statistics.median(self.losses)
            if usual > 0 and loss > self.spike * usual:
                return f"the loss is {loss:.4g}, more than {self.spike:g} times its running median {usual:.4g}"
        return None

    def forget(self, verdict: Verdict) -> None:
        """Before the state that precedes a bad step is saved: a run that continues from it judges again."""
        self.bad.pop(verdict.step, None)
        self.in_a_row -= 1

    @property
    def exhausted(self) -> bool:
        return self.in_a_row >= self.most_bad_steps

    def memory(self) -> dict[str, Any]:
        return {"losses": list(self.losses), "bad": dict(self.bad), "in_a_row": self.in_a_row}

    def remember(self, memory: Mapping[str, Any]) -> None:
        self.losses = deque(memory["losses"], maxlen=WINDOW)
        self.bad = {**memory["bad"], **{step: why for step, why in self.bad.items() if step in self.left_out}}
        self.in_a_row = memory["in_a_row"]


@dataclass
class Snapshot:
    """What a forward pass changes besides gradients: generators, and buffers such as running means."""

    random: dict[str, Any]
    buffers: dict[str, Tensor]

    @classmethod
    def take(cls, model: nn.Module) -> Snapshot:
        return cls(state.random_state(), {name: buffer.detach().clone() for name, buffer in stateful_buffers(model).items()})

    def restore_buffers(self, model: nn.Module) -> None:
        with torch.no_grad():
            for name, buffer in stateful_buffers(model).items():
                buffer.copy_(self.buffers[name])


def stateful_buffers(model: nn.Module) -> dict[str, Tensor]:
    """Those that a checkpoint holds."""
    found = {}
    for path, module in model.named_modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and name not in module._non_persistent_buffers_set:
                found[f"{path}.{name}"] = buffer
    return found
