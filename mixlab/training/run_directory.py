"""The folder of a run, which is an interface: `docs/training.md` tells what each file is and who may read it.

One process writes at a time; the lock is the operating system's, so that a killed writer leaves none behind.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shlex
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from mixlab.errors import MixlabError, one_line
from mixlab.training import checkpoints

PATIENCE = 12.0  # seconds: processes that loaded data for a killed writer hold its lock until they notice


class RunDirectory:
    """Paths, the lock, and what must stay the same when a run continues."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.checkpoints = self.path / "checkpoints"
        self.model = self.path / "model"
        self.tokenizer = self.path / "tokenizer"
        self.metrics = self.path / "metrics.jsonl"

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Be the only writer; a second one is refused. The lock of a dead one is taken over."""
        with checkpoints.writing_to(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            lock = self._acquire()
        try:
            holder = {"pid": os.getpid(), "host": socket.gethostname(), "since": _now()}
            with checkpoints.writing_to(self.path):
                write_json(self.path / "writer.json", holder)
            for folder in (self.path, self.checkpoints):
                checkpoints.clean(folder)
            yield
        finally:
            with contextlib.suppress(OSError):
                (self.path / "writer.json").unlink(missing_ok=True)
            lock.release()

    def _acquire(self) -> FileLock:
        lock = FileLock(self.path / ".lock")
        deadline = time.monotonic() + PATIENCE
        while not _try(lock):
            holder = self._holder()
            if _alive(holder) or time.monotonic() > deadline:
                who = "process {pid} on {host} since {since}".format(**holder) if holder else "another process"
                raise MixlabError(f"{self.path} is being written by {who}; wait for it, or choose another folder")
        return lock

    def _holder(self) -> dict[str, Any]:
        try:
            holder = json.loads((self.path / "writer.json").read_text(encoding="utf-8"))
            return {name: holder[name] for name in ("pid", "host", "since")}
        except (OSError, ValueError, KeyError, TypeError):
            return {}

    def begin(self, recipe: Mapping[str, Any], fingerprints: Mapping[str, str], *, allow_changes: bool = False) -> None:
        """Write what the run is, or check that it is still the same. Call it while writing."""
        changes = [
            *self._compare("recipe.json", recipe, anew=allow_changes),
            *self._compare("fingerprints.json", fingerprints, anew=allow_changes),
        ]
        if changes and self.started() and not allow_changes:
            shown = "; ".join(changes[:4]) + (f"; and {len(changes) - 4} more" if len(changes) > 4 else "")
            raise MixlabError(f"{self.path} holds a run with other settings: {shown}; choose another folder, or allow changes")
        if others := self._compare("versions.json", versions()):
            checkpoints.log.warning("continuing on other ground (%s): the result will not be the same to the bit", "; ".join(others[:4]))
        with checkpoints.writing_to(self.path):
            for name, content in (("recipe", recipe), ("fingerprints", fingerprints), ("versions", versions())):
                write_json(self.path / f"{name}.json", content)
            with (self.path / "command.txt").open("a", encoding="utf-8") as file:
                file.write(f"{_now()}  {shlex.join(sys.argv)}\n")
                for change in changes:
                    file.write(f"{_now()}  changed {change}\n")

    def started(self) -> bool:
        """Whether there is something that other settings would spoil: a number, a checkpoint or a model."""
        written = self.metrics.is_file() and self.metrics.stat().st_size > 0
        return written or self.model.exists() or (self.checkpoints.is_dir() and any(self.checkpoints.iterdir()))

    def _compare(self, name: str, now: Mapping[str, Any], *, anew: bool = True) -> list[str]:
        try:
            before = json.loads((self.path / name).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return []
        except (OSError, ValueError) as error:
            raise MixlabError(
                f"{self.path / name} is damaged ({one_line(error)}); restore it, or allow changes to write it anew"
            ) from error
        return differences(before, json.loads(json.dumps(now)))


def differences(before: Any, now: Any, path: str = "") -> list[str]:
    """`learning_rate: 0.001 -> 0.002`, for every value that differs."""
    if before == now:
        return []
    if isinstance(before, dict) and isinstance(now, dict):
        names = [*before, *(name for name in now if name not in before)]
        missing = "absent"
        return [
            line for name in names for line in differences(before.get(name, missing), now.get(name, missing), f"{path}.{name}".strip("."))
        ]
    return [f"{path}: {_short(before)} -> {_short(now)}"]


def _short(value: Any) -> str:
    text = one_line(value)
    return text if len(text) <= 60 else text[:57] + "..."


def versions() -> dict[str, Any]:
    """What the same bits need: equal code on an equal machine with as many threads."""
    import numpy
    import safetensors
    import torch
    import transformers

    import mixlab

    return {
        "mixlab": mixlab.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "numpy": numpy.__version__,
        "safetensors": safetensors.__version__,
        "machine": f"{platform.system()} {platform.machine()}",
        "threads": torch.get_num_threads(),
        "processes": int(os.environ.get("WORLD_SIZE", "1")),
        "cuda": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def write_json(path: Path, content: Any) -> None:
    """Whole or not at all."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(json.dumps(content, indent=1) + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")


def _try(lock: FileLock) -> bool:
    try:
        lock.acquire(timeout=0.2)
    except Timeout:
        return False
    return True


def _alive(holder: Mapping[str, Any]) -> bool:
    """Whether the recorded writer still runs; one on another machine is taken to."""
    if not holder or holder["host"] != socket.gethostname():
        return bool(holder)
    try:
        os.kill(int(holder["pid"]), 0)
    except ProcessLookupError:
        return False
    except (OSError, ValueError):
        return True
    return True
