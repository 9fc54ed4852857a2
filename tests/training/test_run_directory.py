"""The folder of a run: one writer, the same recipe, whole files, each step reported once."""

from __future__ import annotations

import errno
import io
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from transformers import AutoModelForMaskedLM

import mixlab
from mixlab.errors import MixlabError
from mixlab.training import checkpoints, metrics
from mixlab.training.meter import Meter, forward_flops, matmul_limit
from mixlab.training.progress import Progress
from mixlab.training.run_directory import RunDirectory, differences
from mixlab.training.settings import TrainingSettings
from tests.training.job import Job, dataset, train
from tests.training.survival import fork, wait

JOB = Job()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    train(folder, JOB, recipe={"data": {"name": "rule", "rows": 40}}, fingerprints={"data": "abc", "tokenizer": "def"})
    return folder


def test_what_a_run_leaves(run: Path) -> None:
    names = {path.name for path in run.iterdir()} - {".lock"}
    assert names == {"recipe.json", "versions.json", "command.txt", "fingerprints.json", "metrics.jsonl", "checkpoints", "model"}
    assert json.loads((run / "recipe.json").read_text(encoding="utf-8"))["settings"]["learning_rate"] == 1e-2
    assert json.loads((run / "versions.json").read_text(encoding="utf-8"))["torch"] == torch.__version__
    assert json.loads((run / "fingerprints.json").read_text(encoding="utf-8")) == {"data": "abc", "tokenizer": "def"}
    assert Path(sys.argv[0]).name in (run / "command.txt").read_text(encoding="utf-8")
    assert checkpoints.problems(run / "model") == []
    assert not [path for path in run.rglob("*") if path.suffix in (".pt", ".pth", ".bin", ".pkl")]


def test_the_final_model_is_an_ordinary_folder(run: Path) -> None:
    model = AutoModelForMaskedLM.from_pretrained(run / "model")
    newest = checkpoints.newest_valid(run / "checkpoints")
    assert newest is not None
    other = AutoModelForMaskedLM.from_pretrained(newest)
    assert all(torch.equal(one, two) for one, two in zip(model.parameters(), other.parameters(), strict=True))
    assert model.config.use_cache == JOB.model().config.use_cache
    card = (run / "model" / "README.md").read_text(encoding="utf-8")
    assert "library_name: transformers" in card
    assert f"{sum(p.numel() for p in model.parameters()):,} parameters" in card


def test_each_step_is_reported_once(run: Path) -> None:
    lines = metrics.read(run / "metrics.jsonl")
    assert [line["step"] for line in lines if line["kind"] == "train"] == list(range(2, JOB.steps + 1, 2))
    assert {"loss", "grad_norm", "learning_rate", "tokens_per_second", "epoch"} <= set(lines[0])


def test_metrics_after_a_resume(tmp_path: Path) -> None:
    file = metrics.MetricsFile(tmp_path / "metrics.jsonl")
    for step in (2, 4, 6):
        file.append(step, "train", loss=1.0 / step)
    file.append(6, "end", runtime=1.0)
    file.close()
    with (tmp_path / "metrics.jsonl").open("a", encoding="utf-8") as open_file:
        open_file.write('{"step": 8, "ki')
    assert [line["step"] for line in metrics.read(tmp_path / "metrics.jsonl")] == [2, 4, 6, 6]
    file.continue_after(4)
    file.append(6, "train", loss=float("nan"))
    file.close()
    lines = [json.loads(text, parse_constant=lambda name: pytest.fail(name)) for text in file.path.read_text().splitlines()]
    assert [(line["step"], line["kind"]) for line in lines] == [(2, "train"), (4, "train"), (6, "train")]
    assert lines[-1]["loss"] == "nan"


def settle(run: RunDirectory, **changes: Any) -> None:
    recipe = {"data": {"name": "rule", "rows": 40}, "steps": 24, **changes}
    with run.writing():
        run.begin(recipe, {"data": changes.get("fingerprint", "abc")})


def test_a_changed_recipe_or_dataset_is_refused_with_the_difference(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    settle(run)
    settle(run, steps=99)  # nothing was trained yet that other settings could spoil
    settle(run)
    run.metrics.write_text('{"step": 1}\n', encoding="utf-8")
    settle(run)
    with pytest.raises(MixlabError, match=r"other settings: data\.rows: 40 -> 50; steps: 24 -> 30; choose") as caught:
        settle(run, data={"name": "rule", "rows": 50}, steps=30)
    assert "\n" not in str(caught.value)
    with pytest.raises(MixlabError, match="data: abc -> xyz"), run.writing():
        run.begin({"data": {"name": "rule", "rows": 40}, "steps": 24}, {"data": "xyz"})
    with run.writing():
        run.begin({"steps": 30}, {"data": "abc"}, allow_changes=True)
    assert json.loads((tmp_path / "recipe.json").read_text(encoding="utf-8")) == {"steps": 30}
    assert "changed steps: 24 -> 30" in (tmp_path / "command.txt").read_text(encoding="utf-8")


def test_a_changed_setting_of_a_training_run_is_refused(run: Path) -> None:
    with pytest.raises(MixlabError, match=r"settings\.learning_rate: 0\.01 -> 0\.1"):
        train(run, JOB, settings={"learning_rate": 0.1}, recipe={"data": {"name": "rule", "rows": 40}})


def test_differences_are_named_by_path() -> None:
    assert differences({"a": {"b": 1}, "c": [1]}, {"a": {"b": 2}, "c": [1], "d": None}) == ["a.b: 1 -> 2", "d: absent -> None"]


def holder(path: Path, helper: bool = False) -> int:
    """A process that writes in a run until it is killed; perhaps with one of its own, as those that load data."""

    def hold() -> None:
        with RunDirectory(path).writing():
            if helper and os.fork() == 0:
                time.sleep(2.5)
                os._exit(0)
            (path / "ready").touch()
            time.sleep(60)

    child = fork(hold)
    while not (path / "ready").exists():
        time.sleep(0.02)
    return child


def test_a_second_writer_is_refused_and_a_dead_one_replaced(tmp_path: Path) -> None:
    child = holder(tmp_path)
    with pytest.raises(MixlabError, match=rf"is being written by process {child} on .* since .*; wait for it") as caught:
        settle(RunDirectory(tmp_path))
    assert "\n" not in str(caught.value)
    os.kill(child, signal.SIGKILL)
    wait(child)
    settle(RunDirectory(tmp_path))
    assert not (tmp_path / "writer.json").exists()


def test_a_lock_that_helpers_of_a_dead_writer_hold_is_waited_for(tmp_path: Path) -> None:
    child = holder(tmp_path, helper=True)
    os.kill(child, signal.SIGKILL)
    wait(child)
    settle(RunDirectory(tmp_path))


@pytest.mark.parametrize("method", ["begin", "append", "continue_after"])
def test_a_full_disk_is_one_line_that_names_the_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    """RunDirectory's and the metrics' own files; those of checkpoints have tests of their own."""
    file = metrics.MetricsFile(tmp_path / "metrics.jsonl")
    work = {
        "begin": lambda: RunDirectory(tmp_path).begin({"steps": 1}, {}),
        "append": lambda: file.append(1, "train", loss=1.0),
        "continue_after": lambda: file.continue_after(0),
    }

    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    for module, name in ((os, "fsync"), (os, "replace")):
        monkeypatch.setattr(module, name, full)
    with pytest.raises(MixlabError, match="cannot be written: No space left on device; mend that") as caught:
        work[method]()
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unfinished_work_of_a_killed_run_is_removed(tmp_path: Path) -> None:
    (tmp_path / "checkpoints" / ".staging-step-5-x").mkdir(parents=True)
    settle(RunDirectory(tmp_path))
    assert list((tmp_path / "checkpoints").iterdir()) == []


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"steps": 0}, "steps is 0; it must be at least 1"),
        ({"learning_rate": float("nan")}, "learning_rate is nan"),
        ({"batch_size": 8, "accumulation": 3}, "batch_size 8 cannot be cut into 3 equal parts"),
        ({"schedule": "cosin"}, "unknown schedule 'cosin'; did you mean 'cosine'?"),
        ({"on_bad_step": "skp"}, "unknown policy on_bad_step 'skp'; did you mean 'skip'?"),
        ({"report_to": ("tensorbord",)}, "unknown tracker 'tensorbord'; did you mean 'tensorboard'?"),
        ({"report_to": ("mlflow",)}, "report_to names mlflow, which is not installed"),
        ({"betas": (0.9, 1.0)}, "betas are"),
        ({"warmup": 30}, "warmup is 30 steps, but the run has 24"),
        ({"spike": 0.5}, "spike is 0.5; give a factor above 1"),
        ({"eps": 0.0}, "eps is 0.0; it must be above 0"),
    ],
)
def test_settings_are_checked(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(MixlabError) as caught:
        TrainingSettings(**{"steps": 24, **settings})
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_bf16_is_refused_where_it_would_be_emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "read_text", lambda self, encoding: "flags: avx2 avx512f")
    with pytest.raises(MixlabError, match="a hundred times slower"):
        TrainingSettings(steps=1, bf16=True)
    monkeypatch.setattr(Path, "read_text", lambda self, encoding: "flags: avx2 avx512_bf16 ")
    assert TrainingSettings(steps=1, bf16=True).bf16


def test_every_setting_reaches_the_arguments(tmp_path: Path) -> None:
    settings = TrainingSettings(
        steps=9, batch_size=12, accumulation=3, warmup=2, schedule="cosine", clip=0.5, save_every=4, evaluate_every=2
    )
    arguments = settings.arguments(tmp_path)
    assert (arguments.max_steps, arguments.per_device_train_batch_size, arguments.gradient_accumulation_steps) == (9, 4, 3)
    assert (arguments.warmup_steps, arguments.lr_scheduler_type, arguments.max_grad_norm) == (2, "cosine", 0.5)
    assert not arguments.logging_nan_inf_filter
    assert not arguments.remove_unused_columns
    assert settings.micro_batch(2) == 2
    with pytest.raises(MixlabError, match="cannot be shared by 5 processes"):
        settings.micro_batch(5)


def test_too_few_examples_are_refused(tmp_path: Path) -> None:
    with pytest.raises(MixlabError, match="holds 5 examples, fewer than one batch of 8"):
        train(tmp_path, JOB, dataset=dataset()[:5])


def test_progress_in_plain_lines_and_on_a_terminal(tmp_path: Path) -> None:
    shown = {}
    for terminal in (False, True):
        console = Console(file=io.StringIO(), force_terminal=terminal, width=140)
        meter = Meter(None)
        meter.limit = 1e9
        train(tmp_path / str(terminal), JOB, callbacks=[Progress(meter, tmp_path, console)])
        shown[terminal] = console.file.getvalue()  # type: ignore[attr-defined]
    plain = shown[False].splitlines()
    assert len(plain) == JOB.steps // 2
    assert plain[-1].startswith(f"step {JOB.steps}/{JOB.steps}  loss ")
    assert plain[-1].endswith("saved step-20")
    assert "tokens/s" in plain[-1]
    assert "\x1b[" in shown[True]
    assert "24/24" in shown[True]


def test_the_meter_counts_what_the_account_says() -> None:
    model = JOB.model()
    meter = Meter(model)
    meter.limit = matmul_limit(torch.device("cpu"))
    meter.count({"input_ids": torch.zeros(4, 16, dtype=torch.long)})
    assert meter.tokens == 64
    assert meter.flops == 3 * 4 * forward_flops(model, 16) > 0
    rates = meter.rates(1)
    assert rates["tokens_per_second"] > 0
    assert 0 < rates["matmul_share"] <= 1
    assert meter.limit > 1e9
    meter.limit = 1.0  # measured while the machine was busy with something else
    meter.count({"input_ids": torch.zeros(4, 16, dtype=torch.long)})
    assert meter.rates(1)["matmul_share"] == 1


def test_the_cost_of_a_model_without_a_cap_is_known() -> None:
    assert forward_flops(mixlab.create("lightconv-tiny"), 16) > 0


def test_time_spent_measuring_is_not_counted_as_training() -> None:
    meter = Meter(JOB.model())
    meter.rates(1)
    meter.count({"input_ids": torch.zeros(4, 16, dtype=torch.long)})
    with meter.paused():
        time.sleep(1.0)
    assert meter.rates(1)["tokens_per_second"] > 2 * 64 / 1.0
