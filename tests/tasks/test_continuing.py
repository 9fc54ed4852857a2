"""Runs of recipes, with real data, tokenizers and collators, end in the same bytes when they are killed inside a save and continued."""

from __future__ import annotations

import hashlib
import shutil
import signal
from pathlib import Path

import pytest

from mixlab.data import builtin
from mixlab.recipes.find import job_of
from mixlab.tasks.runs import train
from mixlab.training import checkpoints
from tests.training.job import kill_at
from tests.training.survival import fork, wait

QUICK = (
    "steps=9",
    "epochs=0",
    "warmup=1",
    "batch_size=8",
    "save_every=3",
    "length=32",
    "model.num_hidden_layers=1",
    "log_every=3",
    "vocabulary.size=300",
)
RECIPES = {
    "pretrain-small": ("vocabulary.kind=unigram", "model.hidden_dropout=0.1", "workers=2"),
    "causal-small": ("accumulation=2",),
    "classify": ("accumulation=2", "workers=2"),
    "answer": (),
}
SIZES = {"train": 60, "validation": 10}


def places(recipe: str, folder: Path) -> list[str]:
    """Some rows of a built-in source as files."""
    make = {"classify": builtin.sentences, "answer": builtin.questions}.get(recipe, builtin.language)
    for split, rows in make(sizes=SIZES).data.items():
        rows.to_json(folder / f"{split}.jsonl")
    return [f"{name}={folder / split}.jsonl" for name, split in (("data", "train"), ("validation", "validation"))]


def ended(folder: Path) -> dict[str, str]:
    """What the run left: the model, the optimizer's state, the generators."""
    files = [folder / "model" / "model.safetensors", *sorted((folder / "checkpoints" / "step-9").glob("*.safetensors"))]
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
        if path.name != "progress.safetensors"
    }


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_killed_run_of_a_recipe_ends_in_the_same_bytes(recipe: str, tmp_path: Path) -> None:
    job = job_of(recipe, (*QUICK, *RECIPES[recipe], *places(recipe, tmp_path)))

    def run(folder: Path, point: str = "") -> int:
        def work() -> None:
            if point:
                checkpoints.stage_hook = kill_at(point)
            train(job, folder, progress=False)

        return wait(fork(work))

    assert run(tmp_path / "whole") == 0
    shutil.copytree(tmp_path / "whole" / "cache", tmp_path / "killed" / "cache")  # Unigram would learn another tokenizer
    assert run(tmp_path / "killed", "filled:3") == -signal.SIGKILL  # the tokenizer's, that of step 3, that of step 6
    assert checkpoints.newest_valid(tmp_path / "killed" / "checkpoints") == tmp_path / "killed" / "checkpoints" / "step-3"
    assert run(tmp_path / "killed") == 0
    assert len(expected := ended(tmp_path / "whole")) == 5
    assert ended(tmp_path / "killed") == expected
