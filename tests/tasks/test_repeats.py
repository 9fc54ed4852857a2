"""One job with several seeds: runs of their own, and a summary that is scipy's interval."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from mixlab import cli
from mixlab.errors import MixlabError
from mixlab.recipes.find import job_of
from mixlab.tasks.repeats import runs_in, summary, train_several

QUICK = ("epochs=0", "steps=3", "warmup=1", "batch_size=4", "save_every=3", "length=16", "model.num_hidden_layers=1", "vocabulary.size=300")


@pytest.fixture
def table(tmp_path: Path) -> str:
    path = tmp_path / "rows.csv"
    path.write_text("text,label\n" + "".join(f"word{i % 5} and word{i % 3},{'ab'[i % 2]}\n" for i in range(40)), encoding="utf-8")
    return str(path)


def test_runs_differ_in_their_seed_alone_and_are_told_together(table: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["classify", "--run-dir", str(tmp_path / "three"), "--runs", "2", "--set", *QUICK, f"data={table}", f"validation={table}"]
    cli.run("train", arguments)
    first, second = (json.loads((run / "recipe.json").read_text(encoding="utf-8")) for run in runs_in(tmp_path / "three"))
    assert (first["settings"].pop("seed"), second["settings"].pop("seed")) == (0, 1)
    assert first == second
    capsys.readouterr()
    cli.run("evaluate", [str(tmp_path / "three"), "--baselines"])
    told = json.loads(capsys.readouterr().out)
    each = [run["accuracy"] for run in told["runs"]]
    assert told["summary"]["accuracy"]["each"] == each
    assert told["summary"]["accuracy"]["median"] == pytest.approx(sum(each) / 2)
    assert "baselines" not in told["runs"][0]
    assert told["runs"][1]["baselines"]["commonest label"]["accuracy"] == 0.5


def test_the_interval_is_students() -> None:
    values = [0.71, 0.74, 0.78]
    told = summary([{"accuracy": value, "task": "x", "items": 3} for value in values])["accuracy"]
    expected = stats.t.interval(0.95, 2, loc=np.mean(values), scale=stats.sem(values))
    assert told["mean_95"] == pytest.approx(expected)
    assert told["median"] == 0.74
    assert "mean_95" not in summary([{"accuracy": 0.5}])["accuracy"]


def test_a_folder_without_seeds_is_one_run_and_no_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "seed-of-doubt").mkdir()
    assert runs_in(tmp_path) == [tmp_path]
    with pytest.raises(MixlabError, match="give at least 1"):
        train_several(job_of("classify", QUICK), tmp_path, 0)
