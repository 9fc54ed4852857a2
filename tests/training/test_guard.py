"""A step that is not finite, or far off, is seen in that step, and the chosen policy holds."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import TrainerCallback

from mixlab.errors import MixlabError
from mixlab.training import checkpoints, state
from mixlab.training.guard import BadStepError, Guard, Snapshot
from mixlab.training.metrics import MetricsFile
from mixlab.training.trainer import MixTrainer
from tests.training.job import Collator, Job, dataset, digest, train

JOB = Job()
NAN, INF = math.nan, math.inf


def poisoned(folder: Path, steps: Sequence[int], value: float = NAN, where: str = "loss", job: Job = JOB, **settings: Any) -> MixTrainer:
    """A trainer whose loss, or one gradient, takes a value in some steps, however often they are reached."""
    trainer = MixTrainer(
        job.model(),
        job.settings(**settings),
        folder / "checkpoints",
        dataset(),
        collator=Collator(job.task),
        metrics=MetricsFile(folder / "metrics.jsonl"),
    )

    def bad() -> bool:
        return trainer.state.global_step + 1 in steps and trainer.model.training

    def spoil(module: nn.Module, inputs: Any, output: Any) -> Any:
        if bad() and where == "loss":
            output["loss"] = output["loss"] * 0 + value if not math.isfinite(value) else output["loss"] * value
        return output

    trainer.model.register_forward_hook(spoil)
    parameter = next(trainer.model.parameters())
    if where == "gradient":
        parameter.register_hook(lambda gradient: gradient * value if bad() else gradient)
    return trainer


def events(folder: Path) -> list[tuple[int, str]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [(line["step"], line["policy"]) for line in lines if line["kind"] == "bad-step"]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("reference")
    return digest(train(folder, JOB), folder)


@pytest.mark.parametrize(("value", "where"), [(NAN, "loss"), (INF, "loss"), (NAN, "gradient"), (INF, "gradient")])
@pytest.mark.parametrize("step", [1, 6, 8])  # the first of all, the first of an epoch, one in the middle
def test_stop_keeps_the_last_good_state(tmp_path: Path, step: int, value: float, where: str, expected: dict[str, str]) -> None:
    with pytest.raises(BadStepError, match=rf"^step {step}: the .*(nan|inf).*step-{step - 1};") as caught:
        poisoned(tmp_path, [step], value, where).train()
    assert "\n" not in str(caught.value)
    newest = checkpoints.newest_valid(tmp_path / "checkpoints")
    assert newest is not None
    assert newest.name == f"step-{step - 1}"
    assert events(tmp_path) == [(step, "stop")]
    cured = poisoned(tmp_path, [])
    cured.train()
    assert digest(cured, tmp_path) == expected


def test_stop_stops_again_while_the_cause_is_there(tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(BadStepError, match=r"^step 8"):
            poisoned(tmp_path, [8]).train()


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("steps", [[8], [1], [6, 7, 13]])
def test_skip_leaves_the_step_out_and_counts_it(tmp_path: Path, steps: list[int], accumulation: int) -> None:
    trainer = poisoned(tmp_path, steps, job=Job(accumulation=accumulation), on_bad_step="skip", warmup=0)
    before: dict[int, torch.Tensor] = {}

    class Watch(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            before[state.global_step] = next(trainer.model.parameters()).detach().clone()

    before[0] = next(trainer.model.parameters()).detach().clone()
    trainer.add_callback(Watch())
    trainer.train()
    still = [step for step in range(1, JOB.steps + 1) if torch.equal(before[step], before[step - 1])]
    assert still == steps
    assert sorted(trainer.guard.bad) == steps
    assert events(tmp_path) == [(step, "skip") for step in steps]
    reported = [line for line in trainer.state.log_history if "loss" in line]
    assert all(math.isfinite(line["loss"]) for line in reported)
    assert trainer.state.global_step == JOB.steps


def test_a_skipping_run_resumes_to_the_bit(tmp_path: Path) -> None:
    whole = poisoned(tmp_path / "whole", [8, 13], on_bad_step="skip")
    whole.train()

    class Leave(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == 12:
                raise MixlabError("left")

    first = poisoned(tmp_path / "parts", [8, 13], on_bad_step="skip")
    first.add_callback(Leave())
    with pytest.raises(MixlabError, match="left"):
        first.train()
    second = poisoned(tmp_path / "parts", [8, 13], on_bad_step="skip")
    second.train()
    assert digest(second, tmp_path / "parts") == digest(whole, tmp_path / "whole")
    assert second.guard.memory() == whole.guard.memory()


@pytest.mark.parametrize("steps", [[8], [1], [6, 7, 13]])
def test_rollback_ends_as_if_the_batch_had_been_left_out(tmp_path: Path, steps: list[int]) -> None:
    trainer = poisoned(tmp_path / "rollback", steps, on_bad_step="rollback")
    trainer.train()
    skipping = poisoned(tmp_path / "skip", steps, on_bad_step="skip")
    skipping.train()
    assert trainer.guard.left_out == set(steps)
    assert digest(trainer, tmp_path / "rollback") == digest(skipping, tmp_path / "skip")


@pytest.mark.parametrize("policy", ["skip", "rollback"])
def test_endless_bad_steps_end_the_run(tmp_path: Path, policy: str) -> None:
    trainer = poisoned(tmp_path, range(9, 99), on_bad_step=policy, most_bad_steps=4)
    with pytest.raises(BadStepError, match=r"^step 12: .*4 bad steps in a row"):
        trainer.train()
    assert checkpoints.newest_valid(tmp_path / "checkpoints") is not None


def test_a_spike_is_a_bad_step_when_asked_for(tmp_path: Path) -> None:
    with pytest.raises(BadStepError, match=r"^step 18: .*more than 5 times its running median"):
        poisoned(tmp_path, [18], 1e4, spike=5.0).train()
    calm = poisoned(tmp_path / "calm", [18], 1e4)
    calm.train()
    assert calm.guard.bad == {}


def test_what_is_not_finite_is_never_a_checkpoint(tmp_path: Path) -> None:
    class Break(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == 10:
                with torch.no_grad():
                    next(trainer.model.parameters())[0] = INF

    trainer = poisoned(tmp_path, [])
    trainer.add_callback(Break())
    with pytest.raises(BadStepError, match=r"after step 10 .*not finite, so no checkpoint was written; the last valid .* is step-5"):
        trainer.train()
    assert [path.name for path in checkpoints.all_in(tmp_path / "checkpoints")] == ["step-5"]


def test_the_test_of_the_guard_can_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Guard, "judge", lambda self, step, loss, norm: None)
    monkeypatch.setattr(state, "non_finite", lambda tree: None)
    trainer = poisoned(tmp_path, [8], where="gradient")
    trainer.train()
    assert not torch.isfinite(next(trainer.model.parameters())).all()


def test_running_means_are_put_back() -> None:
    model = nn.BatchNorm1d(2)
    before = Snapshot.take(model)
    model(torch.full((3, 2), NAN))
    assert not torch.isfinite(model.running_mean).all() if model.running_mean is not None else False
    before.restore_buffers(model)
    assert torch.equal(state_of(model), torch.zeros(2))


def state_of(model: nn.BatchNorm1d) -> torch.Tensor:
    assert model.running_mean is not None
    return model.running_mean


@pytest.mark.parametrize(
    ("losses", "bad"), [([1.0] * 20 + [3.1], [21]), ([1.0] * 5 + [9.0], []), ([1.0] * 20 + [2.9, 1.0, 8.0, 1.0], [23]), ([1.0, INF], [2])]
)
def test_the_running_median(losses: list[float], bad: list[int]) -> None:
    guard = Guard(spike=3.0, most_bad_steps=5)
    found = [step for step, loss in enumerate(losses, 1) if guard.judge(step, loss, 1.0) is not None]
    assert found == bad
    again = Guard(spike=3.0, most_bad_steps=5)
    again.remember(guard.memory())
    assert again.memory() == guard.memory()


def test_evaluation_does_not_change_training(tmp_path: Path, expected: dict[str, str]) -> None:
    def score(evaluated: Any) -> dict[str, float]:
        torch.randn(3)
        return {"size": float(len(evaluated.predictions))}

    trainer = train(tmp_path, JOB, settings={"evaluate_every": 3}, eval_dataset=dataset()[:10], compute_metrics=score)
    assert digest(trainer, tmp_path) == expected
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    evaluated = [line for line in lines if line["kind"] == "evaluate"]
    assert [line["step"] for line in evaluated] == list(range(3, JOB.steps + 1, 3))
    assert all(line["eval_size"] == 10 for line in evaluated)
