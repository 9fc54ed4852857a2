"""Measure a finished run on its validation data, or on rows of a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import tyro


def main(run: Annotated[Path, tyro.conf.Positional], data: str | None = None, split: str | None = None) -> None:
    """Print the metrics as JSON.

    Args:
        run: The folder of a run.
        data: A file, a folder or a name; by default the data of the run.
        split: Which split of it; by default the validation rows.
    """
    from mixlab.tasks.runs import opened

    task, model, tokenizer = opened(run)
    print(json.dumps({"run": str(run), "task": task.job.task, **task.evaluate(model, tokenizer, data, split)}, indent=2))
