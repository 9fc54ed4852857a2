"""A whole run from a job, and a finished run opened again."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from mixlab.data import vocabulary
from mixlab.errors import MixlabError
from mixlab.modeling.auto import model_class
from mixlab.modeling.loading import load_config
from mixlab.modeling.quiet import quiet as quiet_transformers
from mixlab.tasks.base import Task, model_folder
from mixlab.tasks.find import task_of
from mixlab.tasks.job import Job, job_from
from mixlab.training.fit import fit
from mixlab.training.run_directory import RunDirectory


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """No bars and hints of libraries between our own lines; afterwards they speak as before."""
    import datasets

    silent = datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        with quiet_transformers():
            yield
    finally:
        if not silent:
            datasets.enable_progress_bars()


@quiet()
def train(job: Job, folder: Path, *, allow_changes: bool = False, say: Callable[[str], None] = print, progress: bool = True) -> Any:
    """Prepare the data, then train in the folder, or continue the run that it holds."""
    prepared = task_of(job, say).prepare(folder)
    job = job.with_steps_for(len(prepared.train) if hasattr(prepared.train, "__len__") else None)
    return fit(
        prepared.model,
        job.training,
        RunDirectory(folder),
        prepared.train,
        eval_dataset=prepared.validation,
        collator=prepared.collator,
        tokenizer=prepared.tokenizer,
        sampler=prepared.sampler,
        compute_metrics=prepared.compute_metrics,
        conclude=prepared.conclude,
        recipe=job.as_dict(),
        fingerprints=prepared.fingerprints,
        allow_changes=allow_changes,
        progress=progress,
    )


def read_job(folder: Path) -> Job:
    """The job of a run directory."""
    path = folder / "recipe.json"
    if not path.is_file():
        raise MixlabError(f"{folder} holds no recipe.json; give a folder that `mixlab train` made")
    try:
        return job_from(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise MixlabError(f"{path} is damaged ({error}); run the training command again") from error


@quiet()
def opened(folder: Path) -> tuple[Task, Any, Any]:
    """The task, the model and the tokenizer of a finished run."""
    job = read_job(folder)
    place = model_folder(str(folder))
    config = load_config(str(place))
    model = model_class(config.model_type.removeprefix("mixlab-"), job.task).from_pretrained(place).eval()
    model.config.labelled_logits_only = False
    return task_of(job), model, vocabulary.load(place)
