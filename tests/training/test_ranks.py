"""Several processes: the same losses as one with the same global batch, one checkpoint, which one process can continue."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mixlab.training import checkpoints
from tests.training.job import TASKS, Job, train
from tests.training.survival import losses

ROOT = Path(__file__).parents[2]
STEPS = 50

pytestmark = pytest.mark.slow


def torchrun(folder: Path, task: str, *options: str) -> list[str]:
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "-m", "tests.training.job"]
    return [*launch, str(folder), "--task", task, "--steps", str(STEPS), "--dropout", "0", *options]


def two(folder: Path, task: str, *options: str) -> dict[str, str]:
    done = subprocess.run(torchrun(folder, task, *options), capture_output=True, text=True, check=False, cwd=ROOT, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def farthest(one: Path, other: Path) -> float:
    pairs = list(zip(losses(one), losses(other), strict=True))
    assert len(pairs) == STEPS // 2
    assert all(a[0] == b[0] for a, b in pairs)
    return max(abs(a[1] - b[1]) for a, b in pairs)


@pytest.mark.parametrize("kind", ["", "--shard"], ids=["ddp", "fsdp2"])
@pytest.mark.parametrize("task", TASKS)
def test_two_processes_compute_what_one_does(tmp_path: Path, task: str, kind: str, say: Callable[[str], None]) -> None:
    two(tmp_path / "two", task, *filter(None, [kind]))
    train(tmp_path / "one", Job(task, steps=STEPS, dropout=0.0))
    far = farthest(tmp_path / "one", tmp_path / "two")
    say(f"{task}, two processes{' with slices' if kind else ''} against one, {STEPS} steps: losses differ by at most {far:.1e}")
    assert far < 1e-5


def killed_in_a_save(folder: Path, hook: str, *options: str) -> float:
    """One rank of two dies inside a save: the job ends soon, and not with 0. How many seconds later."""
    environment, command = {**os.environ, "KILL_AT": hook}, torchrun(folder, "masked-lm", *options)
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=300, env=environment)
    (killed,) = [float(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("killed ")]
    seconds = time.time() - killed
    assert done.returncode != 0
    assert seconds < 60
    assert checkpoints.newest_valid(folder / "checkpoints") is not None
    return seconds


@pytest.mark.parametrize("kind", ["", "--shard"], ids=["ddp", "fsdp2"])
def test_what_two_processes_left_continues_with_one(tmp_path: Path, kind: str, say: Callable[[str], None]) -> None:
    seconds = killed_in_a_save(tmp_path / "one", "filled:3", *filter(None, [kind]))
    say(f"a job of two processes{' with slices' if kind else ''} ended {seconds:.1f} s after its first was killed")
    train(tmp_path / "one", Job(steps=STEPS, dropout=0.0))
    train(tmp_path / "reference", Job(steps=STEPS, dropout=0.0))
    assert farthest(tmp_path / "one", tmp_path / "reference") < 1e-5


def test_two_processes_repeat_with_dropout(tmp_path: Path) -> None:
    whole = two(tmp_path / "whole", "masked-lm", "--dropout", "0.1")
    assert two(tmp_path / "again", "masked-lm", "--dropout", "0.1") == whole


def test_two_processes_resume_to_the_bit(tmp_path: Path) -> None:
    whole = two(tmp_path / "whole", "masked-lm")
    killed_in_a_save(tmp_path / "parts", "hashed:4")
    assert two(tmp_path / "parts", "masked-lm") == whole


def test_a_sigterm_to_torchrun_leaves_a_checkpoint(tmp_path: Path) -> None:
    process = subprocess.Popen(
        torchrun(tmp_path, "masked-lm", "--pause", "0.1"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert process.stdout is not None
    while process.stdout.readline().strip() != "step 7":
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=40)
    newest = checkpoints.newest_valid(tmp_path / "checkpoints")
    assert newest is not None
    assert 7 <= checkpoints.step_of(newest) <= 10
