"""What the documents say is true: code runs, tables are fresh, links lead somewhere, examples reach what they promise."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
WITH_CODE = [page for page in PAGES if "```python" in page.read_text(encoding="utf-8")]


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", WITH_CODE, ids=name)
def test_code_in_the_documents_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for code in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.S):
        exec(compile(code, name(page), "exec"), {})


def test_generated_tables_are_fresh() -> None:
    done = subprocess.run([sys.executable, ROOT / "docs" / "tables.py", "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + "run `make docs`"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_to_files(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
        assert link.startswith("http") or (page.parent / link).exists(), link


def test_every_command_of_the_documents_exists() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.M))
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md"):
        assert set(re.findall(r"(?:^|`)make ([a-z]+)", page.read_text(encoding="utf-8"), flags=re.M)) <= targets
    assert len((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").splitlines()) <= 60


def example(file: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(file, ROOT / "examples" / f"{file}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_block_example_finds_the_offset() -> None:
    assert example("block_in_your_model").main() < 0.1


def test_the_generation_example_follows_the_rule() -> None:
    assert example("train_and_generate").main() > 0.95
