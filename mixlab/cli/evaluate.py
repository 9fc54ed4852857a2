"""Measure a finished run on its validation data, or on rows of a file. A folder of several runs is measured run by run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import tyro


def main(
    run: Annotated[Path, tyro.conf.Positional],
    data: str | None = None,
    split: str | None = None,
    baselines: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
) -> None:
    """Print the metrics as JSON.

    Args:
        run: The folder of a run, or of the runs that `train --runs` made.
        data: A file, a folder or a name; by default the data of the run.
        split: Which split of it; by default the validation rows.
        baselines: Measure what simple methods reach on the same rows as well.
    """
    from mixlab.tasks.repeats import measured

    print(json.dumps(measured(run, data, split, baselines), indent=2))
