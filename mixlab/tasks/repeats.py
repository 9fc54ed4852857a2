"""The same job with several seeds: each is a run of its own, and their scores are told by median, mean and interval."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mixlab.errors import MixlabError
from mixlab.tasks.job import Job
from mixlab.tasks.runs import opened, quiet, train

NAME = "seed-"  # and the seed: the folder of one of several runs


def train_several(job: Job, folder: Path, runs: int, *, allow_changes: bool = False) -> list[Path]:
    """`runs` runs that differ in their seed alone; those that are finished are left as they are."""
    if runs < 1:
        raise MixlabError(f"runs is {runs}; give at least 1")
    first = job.training.seed
    folders = [folder / f"{NAME}{seed}" for seed in range(first, first + runs)]
    for seed, place in enumerate(folders, first):
        train(replace(job, training=replace(job.training, seed=seed)), place, allow_changes=allow_changes)
    return folders


def runs_in(folder: Path) -> list[Path]:
    """The runs that a folder stands for: itself, or those of several seeds in it."""
    inside = [path for path in folder.glob(f"{NAME}*") if path.name.removeprefix(NAME).isdecimal()]
    return sorted(inside, key=lambda path: int(path.name.removeprefix(NAME))) or [folder]


@quiet()
def measured(folder: Path, data: str | None = None, split: str | None = None, baselines: bool = False) -> dict[str, Any]:
    """The metrics of a run; of several, those of each, and what they amount to. Baselines are the same for all, and measured once."""
    runs = runs_in(folder)
    results = []
    for run in runs:
        task, model, tokenizer = opened(run)
        results.append({"run": str(run), "task": task.job.task, **task.evaluate(model, tokenizer, data, split)})
        if baselines and run == runs[-1]:
            results[-1]["baselines"] = task.baselines(model, tokenizer, data, split)
    return results[0] if runs == [folder] else {"runs": results, "summary": summary(results)}


def summary(results: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """For every score: the median, the mean, and its 95% interval over seeds (Student's t; none from a single seed)."""
    import numpy as np
    from scipy import stats

    scores = [name for name, value in results[0].items() if isinstance(value, float)]
    told: dict[str, dict[str, Any]] = {}
    for name in scores:
        values = np.array([result[name] for result in results])
        told[name] = {"median": float(np.median(values)), "mean": float(values.mean()), "each": values.tolist()}
        if len(values) > 1:
            reach = float(stats.t.ppf(0.975, len(values) - 1)) * float(values.std(ddof=1)) / math.sqrt(len(values))
            told[name]["mean_95"] = [float(values.mean()) - reach, float(values.mean()) + reach]
    return told
