"""List what there is: architectures, presets, recipes or built-in datasets."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated, Any, Literal

import tyro

from mixlab import registry


def main(
    what: Annotated[Literal["archs", "presets", "recipes", "datasets"], tyro.conf.Positional],
    json_: Annotated[bool, tyro.conf.arg(name="json"), tyro.conf.FlagCreatePairsOff] = False,
) -> None:
    """Print one of the lists.

    Args:
        what: Which list.
        json_: Print JSON instead of a table.
    """
    rows = ROWS[what]()
    if json_:
        print(json.dumps(rows, indent=2))
        return
    width = max(len(row["name"]) for row in rows) + 2
    for row in rows:
        print(f"{row['name']:<{width}}{row['about']}")


def _archs() -> list[dict[str, Any]]:
    return [{"name": arch, "about": registry.headline(arch), "presets": len(registry.presets(arch))} for arch in registry.archs()]


def _presets() -> list[dict[str, Any]]:
    return [{"name": preset, "about": arch, "arch": arch} for arch in registry.archs() for preset in registry.presets(arch)]


def _recipes() -> list[dict[str, Any]]:
    from mixlab.recipes.find import recipes

    return [{"name": name, "about": line} for name, (_, line) in recipes().items()]


def _datasets() -> list[dict[str, Any]]:
    from mixlab.data import builtin

    return [{"name": name, "about": (builtin.SOURCES[name].__doc__ or "").partition("\n")[0]} for name in builtin.names()]


ROWS: dict[str, Callable[[], list[dict[str, Any]]]] = {"archs": _archs, "presets": _presets, "recipes": _recipes, "datasets": _datasets}
