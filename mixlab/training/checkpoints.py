"""Checkpoint folders that exist only whole: staged, hashed, synced to the disk, renamed. Knows files, and nothing about training.

`manifest.json` holds the size and the sha256 of every file. It finds accidents (a flipped bit, a lost or half-written file), not attackers,
who could write a manifest of their own. Names: `step-<N>` is a checkpoint, `<name>.damaged-<k>` one that was set aside, and `.staging-*`
is unfinished work that the next start removes.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from mixlab.errors import MixlabError, one_line

FORMAT = 1
MANIFEST = "manifest.json"
STAGING = ".staging-"
STEP = re.compile(r"step-(\d+)")
SET_ASIDE = re.compile(r"step-\d+\.damaged-\d+")
CHUNK = 1 << 20

log = logging.getLogger("mixlab.training")


class NoValidCheckpointError(MixlabError):
    """There were checkpoints, and none of them is valid any more."""

    exit_code = 3


def stage_hook(name: str) -> None:
    """Called between the steps of a save: staged, filled, hashed, fsynced, renamed, rotated. Tests kill the process here."""


@contextlib.contextmanager
def writing_to(path: Path) -> Iterator[None]:
    """What the disk refuses becomes one line that names the place."""
    try:
        yield
    except OSError as error:
        why = one_line(error.strerror or error)
        raise MixlabError(f"{path} cannot be written: {why}; mend that and run the same command again, or choose another folder") from error


def name_of(step: int) -> str:
    return f"step-{step}"


def step_of(folder: Path) -> int:
    """The step that a checkpoint's name tells."""
    match = STEP.fullmatch(folder.name)
    if match is None:
        raise MixlabError(f"{folder} is not named like a checkpoint, step-<N>")
    return int(match[1])


def write(target: Path, fill: Callable[[Path], None]) -> None:
    """Let `fill` write files into an empty folder, and make it the checkpoint `target`, whole or not at all.

    A valid checkpoint of that name is kept as it is; a damaged one is set aside.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    if os.path.lexists(target):
        if not problems(target):
            return
        set_aside(target)
    staging = Path(tempfile.mkdtemp(prefix=f"{STAGING}{target.name}-", dir=target.parent))
    try:
        stage_hook("staged")
        fill(staging)
        stage_hook("filled")
        (staging / MANIFEST).write_text(_render(_hashes(staging)), encoding="utf-8")
        stage_hook("hashed")
        for path in [*_files(staging), *_folders(staging), staging]:
            sync(path)
        stage_hook("fsynced")
        os.chmod(staging, 0o777 & ~_umask())  # mkdtemp makes it private
        os.rename(staging, target)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    stage_hook("renamed")
    sync(target.parent)


def problems(folder: Path) -> list[str]:
    """Every file that is damaged, missing, unknown or unreadable, by name; empty when the checkpoint is valid."""
    if folder.is_symlink() or not folder.is_dir():
        return [f"{folder.name}: not a folder"]
    manifest = folder / MANIFEST
    if manifest.is_symlink() or (manifest.exists() and not manifest.is_file()):
        return [f"{MANIFEST}: not an ordinary file"]
    try:
        text = manifest.read_text(encoding="utf-8")
        expected = json.loads(text)["files"]
        if _render(expected) != text:
            return [f"{MANIFEST}: damaged"]
    except FileNotFoundError:
        return [f"{MANIFEST}: missing"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return [f"{MANIFEST}: unreadable ({one_line(error)[:80]})"]
    found = {_relative(path, folder): path for path in _files(folder)}
    found.pop(MANIFEST, None)
    wrong = [f"{name}: missing" for name in expected if name not in found]
    parents = {str(parent) for name in expected for parent in Path(name).parents}
    wrong += [f"{_relative(path, folder)}: unknown folder" for path in _folders(folder) if _relative(path, folder) not in parents]
    for name, path in found.items():
        if name not in expected:
            wrong.append(f"{name}: unknown file")
        elif (fault := _fault(path, expected[name])) is not None:
            wrong.append(f"{name}: {fault}")
    return sorted(wrong)


def _fault(path: Path, expected: dict[str, Any]) -> str | None:
    try:
        if path.is_symlink() or not path.is_file():
            return "not an ordinary file"
        size = path.stat().st_size
        if size != expected["size"]:
            return f"damaged ({size} bytes instead of {expected['size']})"
        return None if _sha256(path) == expected["sha256"] else "damaged (its sha256 differs)"
    except OSError as error:
        return f"unreadable ({error.strerror})"


def all_in(folder: Path) -> list[Path]:
    """The checkpoints of a folder, the newest first, valid or not."""
    found = [path for path in _listing(folder) if STEP.fullmatch(path.name)]
    return sorted(found, key=step_of, reverse=True)


def newest_valid(folder: Path) -> Path | None:
    """The newest checkpoint that is whole. Damaged ones that stand before it are set aside, with a message.

    None where there never was a checkpoint; NoValidCheckpointError where there were, and all are damaged.
    """
    for candidate in all_in(folder):
        wrong = problems(candidate)
        if not wrong:
            return candidate
        log.warning("checkpoint %s is damaged (%s)", candidate, "; ".join(wrong[:3]))
        set_aside(candidate)
    lost = [path.name for path in _listing(folder) if SET_ASIDE.fullmatch(path.name) or STEP.fullmatch(path.name)]
    if lost:
        raise NoValidCheckpointError(
            f"no valid checkpoint is left in {folder} (damaged: {', '.join(sorted(lost)[:3])}); "
            "restore one from a backup, or delete the folder to begin again"
        )
    return None


def set_aside(folder: Path, why: str = "damaged") -> Path | None:
    """Rename a checkpoint so that it is neither used nor in the way; None when the folder above cannot be written."""
    k = 1
    while os.path.lexists(aside := folder.with_name(f"{folder.name}.{why}-{k}")):
        k += 1
    try:
        os.rename(folder, aside)
        sync(folder.parent)
    except OSError as error:
        log.warning("%s could not be set aside: %s", folder, error.strerror)
        return None
    log.warning("set aside as %s", aside.name)
    return aside


def rotate(folder: Path, keep: int) -> None:
    """Delete all but the newest `keep` valid checkpoints. Damaged ones do not count, and the last valid one always stays."""
    kept = 0
    for candidate in all_in(folder):
        if problems(candidate):
            log.warning("checkpoint %s is damaged", candidate)
            set_aside(candidate)
        elif kept < max(keep, 1):
            kept += 1
        else:
            doomed = Path(tempfile.mkdtemp(prefix=f"{STAGING}old-", dir=folder))
            os.rename(candidate, doomed / candidate.name)  # at once, so that a kill leaves no half of a checkpoint
            shutil.rmtree(doomed, ignore_errors=True)
    stage_hook("rotated")


def clean(folder: Path) -> None:
    """Remove what killed processes left unfinished. Only the one writer of a run may call this."""
    for path in _listing(folder):
        if path.name.startswith(STAGING):
            shutil.rmtree(path, ignore_errors=True)


def sync(path: Path) -> None:
    """Have the disk confirm a file, or the names in a folder."""
    if os.name == "nt" and path.is_dir():
        return  # Windows cannot open folders, and keeps their entries itself
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _listing(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _walk(folder: Path) -> Iterator[tuple[Path, bool]]:
    """Everything below a folder, and whether it is a folder; links are not followed."""
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        inside = entry.is_dir(follow_symlinks=False)
        yield Path(entry.path), inside
        if inside:
            yield from _walk(Path(entry.path))


def _files(folder: Path) -> list[Path]:
    return [path for path, inside in _walk(folder) if not inside]


def _folders(folder: Path) -> list[Path]:
    return [path for path, inside in _walk(folder) if inside]


def _relative(path: Path, folder: Path) -> str:
    return path.relative_to(folder).as_posix()


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(CHUNK):
            digest.update(block)
    return digest.hexdigest()


def _hashes(folder: Path) -> dict[str, dict[str, Any]]:
    return {_relative(path, folder): {"sha256": _sha256(path), "size": path.stat().st_size} for path in _files(folder)}


def _render(files: dict[str, dict[str, Any]]) -> str:
    """The only text that a manifest of these files can have; it is hashed too, so that a flipped bit in it is seen."""
    body = json.dumps(files, sort_keys=True)
    seal = hashlib.sha256(body.encode()).hexdigest()
    return json.dumps({"files": files, "format": FORMAT, "sha256": seal}, indent=1, sort_keys=True) + "\n"


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
