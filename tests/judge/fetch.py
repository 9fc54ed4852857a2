"""The judge is transformers' own test-suite. Only the source distribution holds it, so it is fetched from there.

`fetch()` downloads the source distribution of the installed version with pip, and unpacks the common tests into
`.judge/<version>/transformers_tests`, an importable package. Whatever else the tests import from their own tree is missing in the
source distribution and has a stub here. A second call does nothing.
"""

from __future__ import annotations

import importlib.metadata
import shutil
import subprocess
import sys
import tarfile
import tempfile
from email.parser import HeaderParser
from pathlib import Path

PLACE = Path(__file__).parents[2] / ".judge"
PACKAGE = "transformers_tests"
# A small library that the tests import, kept beside them.
HELPER = "parameterized==0.9.0"
# The common tests import these; their own tests are not in the source distribution.
STUBS = {
    "exporters/test_export.py": "class ExportTesterMixin:\n    pass\n",
    "generation/test_utils.py": "class GenerationTesterMixin:\n    pass\n",
    "utils/test_configuration_utils.py": "config_common_kwargs = {}\n",
}


class NoJudgeError(Exception):
    """The test-suite is neither here nor can be fetched; says why in one line."""


def fetch(place: Path = PLACE) -> Path:
    """The folder to put on `sys.path`, filled when it is not there yet."""
    version = importlib.metadata.version("transformers")
    folder = place / version
    if not _is_whole(folder):
        place.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place) as scratch:
            new = Path(scratch) / "new"
            _unpack(_download(f"transformers=={version}", Path(scratch)), version, new)
            _pip("install", HELPER, "--no-deps", "--target", str(new))
            # Another process may have been faster.
            if not _is_whole(folder):
                shutil.rmtree(folder, ignore_errors=True)
                new.rename(folder)
    return folder


def _is_whole(folder: Path) -> bool:
    """Folders are moved here when they are complete."""
    return (folder / PACKAGE / "__init__.py").is_file() and (folder / "parameterized").is_dir()


def _pip(command: str, *arguments: str) -> None:
    call = [sys.executable, "-m", "pip", command, "--quiet", "--disable-pip-version-check", "--retries", "1", *arguments]
    done = subprocess.run(call, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or [done.stderr.strip() or "no message"]
        raise NoJudgeError(f"transformers' test-suite cannot be fetched, is there a network? pip {command} said: {lines[-1]}")


def _download(requirement: str, folder: Path) -> Path:
    _pip("download", requirement, "--no-deps", "--no-binary", "transformers", "--dest", str(folder))
    return next(folder.glob("transformers-*.tar.gz"))


def _unpack(archive: Path, version: str, folder: Path) -> None:
    package = folder / PACKAGE
    package.mkdir(parents=True)
    with tarfile.open(archive) as tar:
        for member in tar:
            _, _, inner = member.name.partition("/")
            content = tar.extractfile(member) if member.isfile() else None
            if content is None:
                continue
            if inner == "PKG-INFO":
                found = HeaderParser().parsestr(content.read().decode())["Version"]
                if found != version:
                    raise NoJudgeError(f"the source distribution is of transformers {found}, and {version} is installed")
            elif inner.startswith("tests/") and inner.count("/") == 1 and inner.endswith(".py"):
                (package / Path(inner).name).write_bytes(content.read())
    if not (package / "test_modeling_common.py").is_file():
        raise NoJudgeError(f"the source distribution of transformers {version} holds no tests/test_modeling_common.py")
    for name, text in STUBS.items():
        stub = package / name
        stub.parent.mkdir(exist_ok=True)
        (stub.parent / "__init__.py").touch()
        stub.write_text(text, encoding="utf-8")
    (package / "__init__.py").touch()


if __name__ == "__main__":
    try:
        print(fetch())
    except NoJudgeError as error:
        sys.exit(str(error))
