"""How many damages of a trained checkpoint are found, named and survived: python -m tests.training.damage [FLIPS]

Single bits are flipped over all files in turn, every file is cut at several places, and every file is taken away. Each time the verifier
must name just that file, and the older checkpoint must be the one that is used; then all is put back.
"""

from __future__ import annotations

import logging
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from mixlab.training import checkpoints
from tests.training.job import Job, train


def damages(files: list[Path], flips: int, seed: int = 0) -> Iterator[tuple[str, Path, bytes | None]]:
    """The kind of damage, the file, and what it holds then; None: the file is gone."""
    draw = random.Random(seed)
    for attempt in range(flips):
        path = files[attempt % len(files)]
        content = bytearray(path.read_bytes())
        bit = draw.randrange(len(content) * 8)
        content[bit // 8] ^= 1 << bit % 8
        yield "flipped bit", path, bytes(content)
    for path in files:
        whole = path.read_bytes()
        for length in sorted({0, 1, len(whole) // 2, len(whole) - 1}):
            yield "cut file", path, whole[:length]
        yield "missing file", path, None


def fault(newest: Path, older: Path, path: Path, content: bytes | None) -> str | None:
    """None, or how a damage got past the verifier."""
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    named = [line.partition(":")[0] for line in checkpoints.problems(newest)]
    if named != [path.relative_to(newest).as_posix()]:
        return f"the verifier named {named}"
    used = checkpoints.newest_valid(newest.parent)
    (aside,) = newest.parent.glob(f"{newest.name}.damaged-*")
    aside.rename(newest)
    return None if used == older else f"{used} was used"


def survey(folder: Path, flips: int) -> tuple[Counter[str], Counter[str], list[str]]:
    """Of each kind of damage: how many, how many were found; and what went wrong. `folder` is that of a run with two checkpoints."""
    newest, older = checkpoints.all_in(folder / "checkpoints")
    files = sorted(path for path in newest.rglob("*") if path.is_file())
    done, found, wrong = Counter[str](), Counter[str](), []
    for kind, path, content in damages(files, flips):
        whole = path.read_bytes()
        why = fault(newest, older, path, content)
        path.write_bytes(whole)
        done[kind] += 1
        found[kind] += why is None
        if why is not None:
            wrong.append(f"{kind} in {path.name}: {why}")
    if checkpoints.problems(newest):
        wrong.append("the checkpoint was not put back")
    return done, found, wrong


def told(done: Counter[str], found: Counter[str], files: int) -> str:
    counts = ", ".join(f"{kind}: {found[kind]}/{number}" for kind, number in done.items())
    return f"damages found and named, and the older checkpoint used, over {files} files: {counts}"


def main() -> int:
    checkpoints.log.setLevel(logging.ERROR)
    flips = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    with tempfile.TemporaryDirectory() as place:
        train(Path(place), Job(steps=10))
        done, found, wrong = survey(Path(place), flips)
        files = len([path for path in (Path(place) / "checkpoints" / "step-10").rglob("*") if path.is_file()])
    print(told(done, found, files), *wrong, sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
