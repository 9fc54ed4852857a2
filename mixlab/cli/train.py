"""Train by a recipe, or continue the run that a folder holds.

`mixlab list recipes` tells the recipes. Any setting can be replaced: --set arch=bert steps=200 data=notes.txt model.gate_heads=2.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import tyro


def main(
    recipe: Annotated[str, tyro.conf.Positional],
    run_dir: Path | None = None,
    set: Annotated[tuple[str, ...], tyro.conf.arg(metavar="KEY=VALUE ...")] = (),
    runs: int | None = None,
    dry_run: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    allow_changes: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
) -> None:
    """Train, then say where the model is.

    Args:
        recipe: The name of a recipe.
        run_dir: The folder of the run; by default runs/RECIPE. A run in it is continued.
        set: Settings to replace.
        runs: Train with this many seeds, each in a folder of its own, and tell the median.
        dry_run: Build the model, take two steps on random tokens, and say what the whole run would cost.
        allow_changes: Continue although the recipe, the data or the tokenizer changed.
    """
    from mixlab.recipes.find import job_of

    job, folder = job_of(recipe, set), run_dir or Path("runs") / recipe
    if dry_run:
        from mixlab.tasks.rehearsal import rehearse

        print(rehearse(job))
    elif runs is not None:
        from mixlab.tasks.repeats import measured, train_several

        train_several(job, folder, runs, allow_changes=allow_changes)
        print(json.dumps(measured(folder)["summary"], indent=2))
    else:
        from mixlab.tasks.runs import train

        train(job, folder, allow_changes=allow_changes)
        print(f"done; the model is in {folder / 'model'}")
