"""The file system is the registry: an architecture exists because `archs/<name>.py` does.

Names are read from the files without importing them, so that listing needs no torch. An architecture file defines, at its top level,

    PRESETS = {"<preset>": Preset(...), ...}       keys written out, so that they can be read without running the file
    ARCH = Architecture(...)                       what the rest of the package needs to know about it
"""

from __future__ import annotations

import ast
import functools
import importlib
from pathlib import Path
from types import ModuleType

from mixlab.errors import MixlabError, unknown

FOLDER = Path(__file__).parent / "archs"


@functools.cache
def archs() -> list[str]:
    """Every architecture, by the names of the files in `archs/`."""
    return sorted(path.stem for path in FOLDER.glob("*.py") if not path.stem.startswith("_"))


@functools.cache
def _read(arch: str) -> tuple[str, tuple[str, ...]]:
    """The first line of an architecture file's docstring and the keys of its PRESETS, without importing it."""
    tree = ast.parse((FOLDER / f"{arch}.py").read_text(encoding="utf-8"))
    headline = (ast.get_docstring(tree) or "").partition("\n")[0]
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict) and ast.unparse(node.targets[0]) == "PRESETS":
            keys = [key.value for key in node.value.keys if isinstance(key, ast.Constant) and isinstance(key.value, str)]
            if len(keys) == len(node.value.keys):
                return headline, tuple(keys)
    raise MixlabError(f"archs/{arch}.py has no PRESETS = {{...}} with its names written out; add one")


def headline(arch: str) -> str:
    """What an architecture is, in one line."""
    return _read(arch)[0]


def presets(arch: str | None = None) -> list[str]:
    """Every preset, or those of one architecture, in the order of the files."""
    if arch is not None and arch not in archs():
        raise unknown("architecture", arch, archs())
    return [name for a in ([arch] if arch else archs()) for name in _read(a)[1]]


def arch_of(preset: str) -> str:
    """The architecture whose file defines a preset."""
    for arch in archs():
        if preset in _read(arch)[1]:
            return arch
    if preset in archs():
        raise MixlabError(f"{preset!r} is an architecture, not a preset; its presets: {', '.join(presets(preset))}")
    raise unknown("preset", preset, presets())


def module(arch: str) -> ModuleType:
    """Import an architecture's file."""
    if arch not in archs():
        raise unknown("architecture", arch, archs())
    return importlib.import_module(f"mixlab.archs.{arch}")
