"""List what there is: architectures or presets."""

from __future__ import annotations

import json
from typing import Annotated, Literal

import tyro

from mixlab import registry


def main(
    what: Annotated[Literal["archs", "presets"], tyro.conf.Positional],
    json_: Annotated[bool, tyro.conf.arg(name="json"), tyro.conf.FlagCreatePairsOff] = False,
) -> None:
    """Print one of the lists.

    Args:
        what: Which list.
        json_: Print JSON instead of a table.
    """
    if what == "archs":
        rows = [{"name": arch, "about": registry.headline(arch), "presets": len(registry.presets(arch))} for arch in registry.archs()]
    else:
        rows = [{"name": preset, "arch": arch} for arch in registry.archs() for preset in registry.presets(arch)]
    if json_:
        print(json.dumps(rows, indent=2))
        return
    width = max(len(row["name"]) for row in rows) + 2
    for row in rows:
        print(f"{row['name']:<{width}}{row['about'] if what == 'archs' else row['arch']}")
