"""How many killed runs end in the same bytes as the uninterrupted one: python -m tests.training.survival [RANDOM] [AIMED] [SEED]

Each attempt is a forked process that trains and gets SIGKILL, at a random time or at a hooked point of a save; another one then continues
to the end. It survived when the weights, the optimizer's state and the random generators equal those of a run that nobody touched.
A run that ended before its kill is no attempt.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from mixlab.training import checkpoints
from tests.training.job import HOOKS, TASKS, Job, digest, kill_at, train

MISSED = "it ended before the kill"
JOBS = [Job(task, workers, accumulation) for task in TASKS for workers in (0, 2) for accumulation in (1, 2)]


def fork(work: Callable[[], None]) -> int:
    """Run in a child, which starts at once since everything is imported; its process number."""
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        # The parent's threads are not in the child, and waiting for them never ends; accelerate would ask for more, were it not told.
        os.environ["OMP_NUM_THREADS"] = "1"
        torch.set_num_threads(1)
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def wait(child: int) -> int:
    """The exit code; minus the signal's number for one that was killed."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def finished(folder: Path, job: Job) -> dict[str, str]:
    """Train to the end in a child, and what it ended with."""

    def work() -> None:
        result = digest(train(folder, job), folder)
        (folder / "digest.json").write_text(json.dumps(result), encoding="utf-8")

    code = wait(fork(work))
    if code != 0:
        return {"error": f"exit code {code}"}
    return json.loads((folder / "digest.json").read_text(encoding="utf-8"))


def killed_at(folder: Path, job: Job, point: str) -> int:
    def work() -> None:
        checkpoints.stage_hook = kill_at(point)
        train(folder, job)

    return wait(fork(work))


def killed_after(folder: Path, job: Job, seconds: float) -> int:
    child = fork(lambda: train(folder, job) and None)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    return wait(child)


@dataclass
class Reference:
    """The uninterrupted run of a job, and how long it took."""

    digest: dict[str, str]
    seconds: float
    losses: list[tuple[int, float]]


def losses(folder: Path) -> list[tuple[int, float]]:
    """What a run reported, without times."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [(line["step"], line["loss"]) for line in lines if line["kind"] == "train"]


def reference(job: Job) -> Reference:
    with tempfile.TemporaryDirectory() as place:
        start = time.monotonic()
        result = finished(Path(place), job)
        if "error" in result:
            raise RuntimeError(f"{job} does not even end well untouched: {result['error']}")
        return Reference(result, time.monotonic() - start, losses(Path(place)))


def survives_at_a_random_time(job: Job, expected: Reference, draw: random.Random) -> tuple[float, str | None]:
    """When it was killed, and what `survives` says. A run that had ended before does not count; the next is killed earlier."""
    seconds = draw.uniform(0.02, expected.seconds)
    while (fault := survives(job, expected, lambda folder, seconds=seconds: killed_after(folder, job, seconds))) == MISSED:
        seconds *= 0.8
    return seconds, fault


def survives(job: Job, expected: Reference, kill: Callable[[Path], int]) -> str | None:
    """None, or what differs after a kill and a continuation."""
    with tempfile.TemporaryDirectory() as place:
        code = kill(Path(place))
        if code != -signal.SIGKILL:
            return MISSED if code == 0 else f"exit code {code} before the kill"
        result = finished(Path(place), job)
        if result != expected.digest:
            return f"{result} instead of {expected.digest}"
        return None if losses(Path(place)) == expected.losses else "the reported losses differ"


def matrix(random_kills: int, aimed_kills: int, seed: int = 0) -> tuple[int, int, list[str]]:
    """Survivors, attempts, and what went wrong; the attempts go round the jobs."""
    draw = random.Random(seed)
    references: dict[Job, Reference] = {}
    survivors, failures = 0, []
    for attempt in range(random_kills + aimed_kills):
        job = JOBS[(attempt + seed) % len(JOBS)]
        if job not in references:
            references[job] = reference(job)
        expected = references[job]
        if attempt < random_kills:
            seconds, fault = survives_at_a_random_time(job, expected, draw)
            name = f"{job} killed after {seconds:.3f} s"
        else:
            point = f"{draw.choice(HOOKS)}:{draw.randint(1, 4)}"
            name = f"{job} killed at {point}"
            fault = survives(job, expected, lambda folder, job=job, point=point: killed_at(folder, job, point))
        survivors += fault is None
        if fault is not None:
            failures.append(f"{name}: {fault}")
            print(failures[-1], file=sys.stderr, flush=True)
    return survivors, random_kills + aimed_kills, failures


def told(survivors: int, random_kills: int, aimed_kills: int) -> str:
    return f"survived {survivors}/{random_kills + aimed_kills}: {random_kills} kills at random times, {aimed_kills} inside a save"


def main() -> int:
    numbers = [int(value) for value in sys.argv[1:]]
    random_kills, aimed_kills, seed = [*numbers, *(50, 50, 0)[len(numbers) :]]
    survivors, attempts, _ = matrix(random_kills, aimed_kills, seed)
    print(told(survivors, random_kills, aimed_kills))
    return 0 if survivors == attempts else 1


if __name__ == "__main__":
    sys.exit(main())
