"""`metrics.jsonl`: one line per report, appended and flushed, so that it can be followed while the run writes it."""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from pathlib import Path
from typing import Any, TextIO

from mixlab.training.checkpoints import writing_to

SYNC_EVERY = 5.0  # seconds between two requests that the disk confirm


class MetricsFile:
    """Each line has `step` and `kind`: train, evaluate, or an event; after a resume each of them appears once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: TextIO | None = None
        self._synced = 0.0

    def continue_after(self, step: int) -> None:
        """Drop what was reported after a step (it will be reported again), and a last line that was cut off."""
        self.close()
        kept = [line for line in _lines(self.path) if line["step"] <= step and line["kind"] != "end"]
        with writing_to(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            staged = self.path.with_name(f".{self.path.name}-staged")
            staged.write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf-8")
            os.replace(staged, self.path)

    def append(self, step: int, kind: str, **values: Any) -> None:
        line = json.dumps({"step": step, "kind": kind, **{name: _plain(value) for name, value in values.items()}})
        with writing_to(self.path):
            if self._file is None:
                self._file = self.path.open("a", encoding="utf-8")
            self._file.write(line + "\n")
            self._file.flush()
            if time.monotonic() - self._synced > SYNC_EVERY:
                os.fsync(self._file.fileno())
                self._synced = time.monotonic()

    def close(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):  # what a full disk did not take was told when it was written
                self._file.close()
            self._file = None


def read(path: Path) -> list[dict[str, Any]]:
    """The lines of a run so far; one that is being written is left out."""
    return _lines(path)


def _lines(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        return []
    lines = []
    for text in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            line = json.loads(text)
        except ValueError:
            continue
        if isinstance(line, dict) and isinstance(line.get("step"), int) and "kind" in line:
            lines.append(line)
    return lines


def _plain(value: Any) -> Any:
    """JSON has no NaN; it is written as text, so that every reader can read the line."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if isinstance(value, str | int | float | bool | list | dict | None) else str(value)
