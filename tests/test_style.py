"""The house rules that a machine can check, each with its reason."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "mixlab"
FILES = sorted(PACKAGE.rglob("*.py"))
# From the foundation up; a room may use those before it.
ROOMS = [
    "errors",
    "registry",
    "accounting",
    "maps",
    "layers",
    "modeling",
    "archs",
    "data",
    "training",
    "tasks",
    "analysis",
    "recipes",
    "report",
    "cli",
]


LARGER = ("swin", "conformer", "unet")  # stages, stems and skips of their own


def most_lines(path: Path) -> int:
    if path.parent.name != "archs":
        return 300
    return 250 if path.stem in LARGER else 150


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def functions(path: Path) -> Iterator[ast.FunctionDef]:
    return (node for node in ast.walk(tree(path)) if isinstance(node, ast.FunctionDef))


def code_lines(path: Path) -> int:
    """Without blanks, comments, docstrings and tables of constants."""
    skipped: set[int] = set()
    for node in ast.walk(tree(path)):
        text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        table = isinstance(node, ast.Assign) and all(isinstance(t, ast.Name) and t.id.isupper() for t in node.targets)
        if text or table:
            skipped |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
    return sum(1 for number, line in lines if number not in skipped and line.strip() and not line.strip().startswith("#"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_files_and_functions_fit_on_a_screen_or_few(path: Path) -> None:
    """A reader holds a screen in mind; an architecture is read in one sitting."""
    assert code_lines(path) <= most_lines(path)
    for function in functions(path):
        assert (function.end_lineno or 0) - function.lineno < 60, function.name


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_forward_names_its_arguments(path: Path) -> None:
    """**kwargs in a forward is where attention masks vanish."""
    assert [f.name for f in functions(path) if f.name == "forward" and f.args.kwarg] == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_down(path: Path) -> None:
    """Layers that know no models can be used in anyone's; accounting without torch starts at once."""
    room = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    if room not in ROOMS:
        return
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("mixlab"):
            parts = (node.module or "").split(".")[1:] or [alias.name for alias in node.names]
            if parts[0] in ROOMS:
                assert ROOMS.index(parts[0]) <= ROOMS.index(room), f"{room} imports {parts[0]}"
        if isinstance(node, ast.Import | ast.ImportFrom) and room in ROOMS[: ROOMS.index("modeling")]:
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            assert not any(name.split(".")[0] == "transformers" for name in names)
            if room in ("errors", "registry", "accounting"):
                assert not any(name.split(".")[0] == "torch" for name in names)


def class_body(cls: type) -> list[ast.stmt]:
    definitions = [node for node in tree(Path(inspect.getfile(cls))).body if isinstance(node, ast.ClassDef) and node.name == cls.__name__]
    return definitions[0].body


def test_a_setting_is_written_once() -> None:
    """A field that a configuration inherits and declares again has two types, and one of them is wrong; a new default it may assign."""
    from mixlab import registry
    from mixlab.modeling.architecture import load

    for arch in registry.archs():
        seen: dict[str, str] = {}
        for cls in [c for c in load(arch).config.__mro__ if c.__module__.startswith("mixlab.")]:
            fields = [node for node in class_body(cls) if isinstance(node, ast.AnnAssign)]
            for name in [node.target.id for node in fields if isinstance(node.target, ast.Name)]:
                assert name not in seen, f"{name} in {cls.__name__} and {seen[name]}"
                seen[name] = cls.__name__


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_functions_are_typed(path: Path) -> None:
    """Types are documentation that a machine keeps true."""
    for function in functions(path):
        arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
        untyped = [a.arg for a in arguments if a.annotation is None and a.arg not in ("self", "cls")]
        assert not untyped, f"{function.name}: {untyped}"
        assert function.returns is not None, function.name


def test_nothing_is_left_to_do() -> None:
    """An open end in the code is a defect that has been found and kept."""
    words = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X|HA" + r"CK)\b")
    for path in [*FILES, *sorted((ROOT / "tests").rglob("*.py")), *sorted((ROOT / "docs").rglob("*.md"))]:
        assert not words.search(path.read_text(encoding="utf-8")), path
