"""A run that was killed, stopped, or found its files damaged ends in the same bytes as one that nobody touched."""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import TrainerCallback

from mixlab.errors import MixlabError
from mixlab.training import checkpoints, state
from mixlab.training.interrupt import Interrupted
from mixlab.training.trainer import MixTrainer
from tests.training import damage
from tests.training.job import HOOKS, TASKS, Collator, Job, dataset, digest, train
from tests.training.survival import JOBS, Reference, fork, killed_at, matrix, reference, survives, survives_at_a_random_time, told, wait
from tests.training.test_checkpoints import flip

ROOT = Path(__file__).parents[2]
JOB = Job()


@pytest.fixture(scope="module")
def expected() -> Reference:
    return reference(JOB)


def test_an_untouched_run_repeats(expected: Reference) -> None:
    assert reference(JOB).digest == expected.digest
    assert expected.losses[0][1] > expected.losses[-1][1]


@pytest.mark.parametrize("hook", HOOKS)
def test_kills_inside_a_save(hook: str, expected: Reference) -> None:
    killed = []

    def kill(folder: Path) -> int:
        killed.append(killed_at(folder, JOB, f"{hook}:2"))
        return killed[-1]

    assert survives(JOB, expected, kill) is None
    assert killed == [-signal.SIGKILL]


def test_kills_at_random_times(expected: Reference) -> None:
    draw = random.Random(0)
    for _ in range(3):
        _, fault = survives_at_a_random_time(JOB, expected, draw)
        assert fault is None


def test_many_kills_in_one_run(expected: Reference, tmp_path: Path) -> None:
    for hook in ("filled", "hashed", "renamed", "weights", "rotated"):
        assert killed_at(tmp_path, JOB, f"{hook}:1") == -signal.SIGKILL
    assert survives_here(tmp_path) == expected.digest


def survives_here(folder: Path, job: Job = JOB) -> dict[str, str]:
    return digest(train(folder, job), folder)


@pytest.mark.parametrize("job", [Job(task, workers=2, accumulation=2) for task in TASKS], ids=lambda job: job.task)
def test_every_task_with_workers_and_accumulation(job: Job) -> None:
    assert survives(job, reference(job), lambda folder: killed_at(folder, job, "filled:3")) is None


def test_the_test_of_resuming_can_fail(expected: Reference, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the generators' state dropout differs, and so must the digest."""
    assert killed_at(tmp_path, JOB, "filled:2") == -signal.SIGKILL
    monkeypatch.setattr(state, "set_random_state", lambda stored: None)
    assert survives_here(tmp_path)["weights"] != expected.digest["weights"]


def test_a_finished_run_stays_finished(expected: Reference, tmp_path: Path) -> None:
    survives_here(tmp_path)
    before = (tmp_path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert survives_here(tmp_path) == expected.digest
    assert (tmp_path / "metrics.jsonl").read_text(encoding="utf-8").splitlines() == [line for line in before if '"end"' not in line]


def test_accumulation_changes_nothing_but_rounding() -> None:
    whole, parts = (reference(Job(task, accumulation=k, dropout=0.0)).losses for task, k in (("masked-lm", 1), ("masked-lm", 4)))
    assert [step for step, _ in whole] == [step for step, _ in parts]
    assert max(abs(one[1] - two[1]) for one, two in zip(whole, parts, strict=True)) < 1e-5


@pytest.mark.slow
def test_survival_of_the_big_matrix(say: Callable[[str], None]) -> None:
    """KILLS=<random>,<aimed>,<seed> splits it."""
    random_kills, aimed, seed = (int(part) for part in os.environ.get("KILLS", "50,50,0").split(","))
    survivors, _, failures = matrix(random_kills, aimed, seed)
    say(told(survivors, random_kills, aimed))
    assert failures == []
    assert len(JOBS) == 16


# ---- Damage ----


@pytest.fixture(scope="module")
def two_checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("damaged")
    train(folder, Job(steps=10))
    return folder


def all_found(folder: Path, flips: int) -> str:
    done, found, wrong = damage.survey(folder, flips)
    assert wrong == []
    assert done == found
    assert done["flipped bit"] == flips
    return damage.told(done, found, done["missing file"])


def test_damage_in_every_file_is_found_and_the_older_one_used(two_checkpoints: Path) -> None:
    assert "missing file: 12/12" in all_found(two_checkpoints, 60)


@pytest.mark.slow
def test_a_thousand_flipped_bits_are_found(two_checkpoints: Path, say: Callable[[str], None]) -> None:
    say(all_found(two_checkpoints, 1000))


def test_the_test_of_damage_can_fail(two_checkpoints: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "_fault", lambda path, expected: None)
    done, found, wrong = damage.survey(two_checkpoints, 24)
    assert found["flipped bit"] < done["flipped bit"] / 2
    assert wrong


def stopped(folder: Path) -> list[Path]:
    """Killed with two checkpoints on the disk."""
    assert killed_at(folder, JOB, "filled:3") == -signal.SIGKILL
    found = checkpoints.all_in(folder / "checkpoints")
    assert [path.name for path in found] == ["step-10", "step-5"]
    return found


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "random.json", "trainer_state.json", "manifest.json"])
def test_a_damaged_checkpoint_is_replaced_by_the_one_before(tmp_path: Path, name: str, expected: Reference) -> None:
    newest, _ = stopped(tmp_path)
    flip(newest / name, 1_000)
    assert survives_here(tmp_path) == expected.digest
    assert (tmp_path / "checkpoints" / "step-10.damaged-1").is_dir()


def test_with_all_damaged_the_run_ends_with_code_3(tmp_path: Path) -> None:
    for checkpoint in stopped(tmp_path):
        (checkpoint / "optimizer.safetensors").unlink()
    done = job(tmp_path)
    assert done.returncode == 3
    assert done.stderr.splitlines()[-1].startswith("error: no valid checkpoint is left")
    assert "Traceback" not in done.stderr
    with pytest.raises(checkpoints.NoValidCheckpointError):  # it does not begin anew the next time either
        train(tmp_path, JOB)


def job(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.training.job", str(folder), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=120)


# ---- Errors while saving ----


@pytest.mark.parametrize("hook", HOOKS)
def test_an_error_while_saving_is_one_line_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hook: str, expected: Reference
) -> None:
    seen = []

    def fail(name: str) -> None:
        seen.append(name)
        if seen.count(hook) == 2 and name == hook:
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "stage_hook", fail)
        with pytest.raises(MixlabError, match=r"checkpoint of step \d+ could not be written .*No space left") as caught:
            survives_here(tmp_path)
    assert "\n" not in str(caught.value)
    left = checkpoints.all_in(tmp_path / "checkpoints")
    assert left
    assert all(checkpoints.problems(path) == [] for path in left)
    assert not list((tmp_path / "checkpoints").glob(".staging-*"))
    assert survives_here(tmp_path) == expected.digest


def test_a_file_size_limit_is_one_line_and_loses_nothing(tmp_path: Path, expected: Reference) -> None:
    import resource

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 13, resource.RLIM_INFINITY))
        with pytest.raises(MixlabError, match="could not be written"):
            train(tmp_path, JOB)

    assert wait(fork(limited)) == 0
    assert survives_here(tmp_path) == expected.digest


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    for folder in (tmp_path / "file" / "run", Path("/proc/run")):
        with pytest.raises(MixlabError, match="cannot be written"):
            train(folder, JOB)


# ---- Signals ----


def start(folder: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.training.job", str(folder), *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, start_new_session=True)


def until(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdout is not None
    while process.stdout.readline().strip() != line:
        assert process.poll() is None, process.stderr.read() if process.stderr else ""


@pytest.mark.parametrize(("number", "workers"), [(signal.SIGTERM, 0), (signal.SIGINT, 2)])
def test_a_signal_leaves_after_a_checkpoint(tmp_path: Path, number: signal.Signals, workers: int, expected: Reference) -> None:
    process = start(tmp_path, "--pause", "0.1", "--workers", str(workers))
    until(process, "step 7")
    began = time.monotonic()
    os.killpg(process.pid, number)  # to all of the group, as a terminal does
    _, errors = process.communicate(timeout=20)
    assert time.monotonic() - began < 10
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    assert "interrupted after step" in errors
    newest = checkpoints.newest_valid(tmp_path / "checkpoints")
    assert newest is not None
    assert 7 <= checkpoints.step_of(newest) <= 8
    assert survives_here(tmp_path, Job(workers=workers)) == expected.digest


def test_a_second_ctrl_c_leaves_at_once(tmp_path: Path) -> None:
    process = start(tmp_path, "--pause", "30")
    until(process, "step 1")
    os.kill(process.pid, signal.SIGINT)
    time.sleep(0.3)
    assert process.poll() is None
    os.kill(process.pid, signal.SIGINT)
    process.communicate(timeout=3)
    assert process.returncode == -signal.SIGINT


def test_an_evaluation_does_not_delay_the_checkpoint(tmp_path: Path, expected: Reference) -> None:
    def leave(evaluated: Any) -> dict[str, float]:
        raise AssertionError("the evaluation was not left")

    class Ask(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
            if state.global_step == 4 and "loss" in logs:
                os.kill(os.getpid(), signal.SIGTERM)

    job, rows = Job(steps=JOB.steps), dataset()
    with pytest.raises(Interrupted, match="interrupted after step 4") as caught:
        train(tmp_path, job, settings={"evaluate_every": 4}, eval_dataset=rows, compute_metrics=leave, callbacks=[Ask()])
    assert caught.value.exit_code == 130
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    trainer = train(tmp_path, job, settings={"evaluate_every": 4}, eval_dataset=rows)
    assert digest(trainer, tmp_path) == expected.digest


def test_an_older_checkpoint_can_be_chosen(tmp_path: Path, expected: Reference) -> None:
    newest, older = stopped(tmp_path)
    trainer = continued(tmp_path)
    trainer.train(str(older))
    assert (newest.parent / "step-10.superseded-1").is_dir()
    assert digest(trainer, tmp_path) == expected.digest
    with pytest.raises(MixlabError, match="continue from them"):
        continued(tmp_path).train(False)


def continued(folder: Path) -> MixTrainer:
    settings: Any = JOB.settings()
    return MixTrainer(JOB.model(), settings, folder / "checkpoints", dataset(), collator=Collator(JOB.task))
