"""Python's own documentation as texts: help topics and the standard library's docstrings, read from source without importing it.

The same Python gives the same texts. A document is a help topic, or the docstrings of a module; its hash says to which split it belongs.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import re
import sys
import sysconfig
import tokenize
import warnings
from collections.abc import Iterator
from pathlib import Path

from mixlab.errors import MixlabError

SHARES = {"train": 18, "validation": 1, "test": 1}  # of 20
SKIPPED = {"test", "tests", "idle_test", "idlelib", "lib2to3", "site-packages", "dist-packages", "__pycache__", "_bundled", "pydoc_data"}
SHORTEST = 40  # characters of a docstring that says something
RULED = re.compile(r"^[\s=~\-_*^#+|.]*$")  # underlines, frames of tables


@functools.cache
def splits() -> dict[str, list[dict[str, str]]]:
    """Documents by split, each with its title."""
    out: dict[str, list[dict[str, str]]] = {split: [] for split in SHARES}
    places = [split for split, share in SHARES.items() for _ in range(share)]
    for title, text in documents():
        digest = hashlib.sha256(text.encode()).digest()
        out[places[int.from_bytes(digest[:8], "big") % len(places)]].append({"title": title, "text": text})
    if not all(out.values()):
        raise MixlabError("this Python came without its documentation (pydoc_data) and sources; use a text file instead")
    return out


def documents() -> Iterator[tuple[str, str]]:
    """Titles and texts, sorted by title; what occurs twice is told once."""
    seen: set[str] = set()
    for title, text in sorted(_topics().items()):
        if text not in seen:
            seen.add(text)
            yield f"help: {title}", text
    for title, path in _modules():
        kept = []
        for text in _docstrings(path):
            if text not in seen:
                seen.add(text)
                kept.append(text)
        if kept:
            yield title, "\n\n".join(kept)


def clean(text: str) -> str:
    """Without frames, underlines, prompts and mark-up of roles; at most one blank line in a row."""
    lines = [line.rstrip() for line in inspect.cleandoc(text).splitlines()]
    kept = [line for line in lines if not line.strip() or not RULED.match(line)]
    joined = re.sub(r":\w+:`~?([^`]*)`", r"\1", "\n".join(kept))
    joined = re.sub(r"[\x00-\x08\x0b-\x1f\x7f]", "", joined.replace("``", "`"))
    return re.sub(r"\n{3,}", "\n\n", joined).strip()


def _topics() -> dict[str, str]:
    try:
        from pydoc_data.topics import topics
    except ImportError:
        return {}
    return {title: cleaned for title, text in topics.items() if len(cleaned := clean(text)) >= SHORTEST}


def _modules() -> list[tuple[str, Path]]:
    """Every module of the standard library that has a source file, by its dotted name."""
    root = Path(sysconfig.get_paths()["stdlib"])
    found: list[tuple[str, Path]] = []
    for name in sorted(sys.stdlib_module_names - SKIPPED):
        single = root / f"{name}.py"
        paths = [single] if single.is_file() else sorted((root / name).rglob("*.py"))
        for path in paths:
            parts = path.relative_to(root).with_suffix("").parts
            if not SKIPPED & set(parts):
                found.append((".".join(part for part in parts if part != "__init__"), path))
    return sorted(found)


def _docstrings(path: Path) -> Iterator[str]:
    """Docstrings of a file's module, classes and functions that are long enough, cleaned."""
    try:
        with tokenize.open(path) as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of old escapes in strings
            tree = ast.parse(file.read())
    except (OSError, SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = clean(ast.get_docstring(node, clean=False) or "")
            if len(text) >= SHORTEST:
                yield text
