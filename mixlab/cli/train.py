"""Train by a recipe, or continue the run that a folder holds.

`mixlab list recipes` tells the recipes. Any setting can be replaced: --set arch=bert steps=200 data=notes.txt model.gate_heads=2.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro


def main(
    recipe: Annotated[str, tyro.conf.Positional],
    run_dir: Path | None = None,
    set: Annotated[tuple[str, ...], tyro.conf.arg(metavar="KEY=VALUE ...")] = (),
    allow_changes: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
) -> None:
    """Train, then say where the model is.

    Args:
        recipe: The name of a recipe.
        run_dir: The folder of the run; by default runs/RECIPE. A run in it is continued.
        set: Settings to replace.
        allow_changes: Continue although the recipe, the data or the tokenizer changed.
    """
    from mixlab.recipes.find import job_of
    from mixlab.tasks.runs import train

    folder = run_dir or Path("runs") / recipe
    train(job_of(recipe, set), folder, allow_changes=allow_changes)
    print(f"done; the model is in {folder / 'model'}")
