"""Ctrl-C and SIGTERM: the first asks for a checkpoint at the next step, the second ends the process at once."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)
GRACE = 10  # seconds that a worker outlives a SIGTERM which the whole process group got


class Interrupted(KeyboardInterrupt):
    """Training stopped on request, after its checkpoint was written."""

    exit_code = 130


class EvaluationLeft(Exception):
    """An evaluation was cut short, so that the checkpoint does not wait for it."""


class Interrupt:
    """While this is entered, a signal sets `asked` instead of stopping the process in the middle of a step."""

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interrupt:
        self.asked = False
        if threading.current_thread() is threading.main_thread():  # Python sets handlers nowhere else
            self._before = {number: signal.signal(number, self._ask) for number in SIGNALS}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        self._before = {}

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        for each in SIGNALS:
            signal.signal(each, signal.SIG_DFL)  # the next one is the system's, which waits for no Python code


def calm_worker() -> None:
    """In a process that loads data: leave signals to the main process, which still needs batches until its checkpoint is written."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "SIGALRM"):
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, lambda number, frame: signal.alarm(GRACE))
