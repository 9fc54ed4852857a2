"""Recipes by name, read from the files without importing them."""

from __future__ import annotations

import ast
import functools
import importlib
from pathlib import Path
from typing import Any

from mixlab.errors import MixlabError, unknown


@functools.cache
def recipes() -> dict[str, tuple[str, str]]:
    """name -> (module, first line of the docstring)."""
    found = {}
    for path in sorted(Path(__file__).parent.glob("*.py")):
        if path.stem in ("__init__", "find"):
            continue
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                line = (ast.get_docstring(node) or "").partition("\n")[0]
                found[node.name.replace("_", "-")] = (path.stem, line)
    return found


def job_of(name: str, pairs: tuple[str, ...] = ()) -> Any:
    """The job of a recipe with settings applied; `arch=` goes to the recipe's function, the others to its job."""
    if name not in recipes():
        raise unknown("recipe", name, recipes())
    function = getattr(importlib.import_module(f"mixlab.recipes.{recipes()[name][0]}"), name.replace("-", "_"))
    arch = [pair.removeprefix("arch=") for pair in pairs if pair.startswith("arch=")]
    if len(arch) > 1:
        raise MixlabError(f"arch is set {len(arch)} times; set it once")
    return function(*arch).with_settings(tuple(pair for pair in pairs if not pair.startswith("arch=")))
