"""Checkpoint folders: whole or absent, every damage seen and named, the newest valid one used, whatever fails while saving."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import resource
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from mixlab.errors import MixlabError
from mixlab.training import checkpoints, state
from tests.training.survival import fork, wait

HOOKS = ("staged", "filled", "hashed", "fsynced", "renamed", "rotated")
FILES = ("config.json", "model.safetensors", "state/optimizer.json", "state/optimizer.safetensors")


def fill(folder: Path) -> None:
    (folder / "config.json").write_text('{"hidden_size": 16}', encoding="utf-8")
    save_file({"w": torch.arange(40.0)}, folder / "model.safetensors")
    (folder / "state").mkdir()
    state.write_tree(folder / "state", "optimizer", {"step": torch.tensor(3.0), "lr": 0.1})


def some(folder: Path, *steps: int) -> list[Path]:
    for step in steps:
        checkpoints.write(folder / f"step-{step}", fill)
    return [folder / f"step-{step}" for step in steps]


def flip(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


def flips_that_are_missed(folder: Path, count: int) -> list[str]:
    """Flip bits one at a time, spread over all files, and put each back; those that were not seen in the right file."""
    (checkpoint,) = some(folder, 1)
    files = [path for path in sorted(checkpoint.rglob("*")) if path.is_file()]
    assert {str(path.relative_to(checkpoint)) for path in files} == {*FILES, "manifest.json"}
    draw = random.Random(0)
    missed = []
    for attempt in range(count):
        path = files[attempt % len(files)]
        bit = draw.randrange(path.stat().st_size * 8)
        flip(path, bit)
        if [line.partition(":")[0] for line in checkpoints.problems(checkpoint)] != [str(path.relative_to(checkpoint))]:
            missed.append(f"{path.name} bit {bit}: {checkpoints.problems(checkpoint)}")
        flip(path, bit)
    assert checkpoints.problems(checkpoint) == []
    return missed


def test_every_flipped_bit_is_seen_and_its_file_named(tmp_path: Path) -> None:
    assert flips_that_are_missed(tmp_path, 1000) == []


def test_the_test_of_flipped_bits_can_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "_fault", lambda path, expected: None)
    assert len(flips_that_are_missed(tmp_path, 50)) >= 40


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def link(path: Path) -> None:
    """To the right content, but elsewhere, where anyone may change it."""
    outside = path.rename(path.parents[2] / f"outside-{path.name}")
    path.symlink_to(outside)


def pipe(path: Path) -> None:
    """Reading it would wait for ever."""
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("damage", [cut, empty, Path.unlink, link, pipe])
@pytest.mark.parametrize("name", [*FILES, "manifest.json"])
def test_cut_lost_and_replaced_files_are_named(tmp_path: Path, name: str, damage: Callable[[Path], None]) -> None:
    (checkpoint,) = some(tmp_path / "run", 1)
    damage(checkpoint / name)
    wrong = checkpoints.problems(checkpoint)
    assert len(wrong) == 1, wrong
    assert wrong[0].startswith(f"{name}:")


def test_unknown_files_and_folders_are_named(tmp_path: Path) -> None:
    (checkpoint,) = some(tmp_path, 1)
    (checkpoint / "state" / "evil.bin").write_bytes(b"?")
    (checkpoint / "empty").mkdir()
    assert checkpoints.problems(checkpoint) == ["empty: unknown folder", "state/evil.bin: unknown file"]
    assert checkpoints.problems(tmp_path / "step-9") == ["step-9: not a folder"]


def test_the_newest_valid_one_is_used_and_damaged_ones_are_set_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first, second, third = some(tmp_path, 5, 10, 100)
    flip(third / "model.safetensors", 700)
    (second / "config.json").unlink()
    assert checkpoints.newest_valid(tmp_path) == first
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-10.damaged-1", "step-100.damaged-1", "step-5"]
    assert "model.safetensors: damaged" in caplog.text
    assert "config.json: missing" in caplog.text


def test_none_at_all_is_told_from_none_left(tmp_path: Path) -> None:
    assert checkpoints.newest_valid(tmp_path / "absent") is None
    assert checkpoints.newest_valid(tmp_path) is None
    (only,) = some(tmp_path, 5)
    flip(only / "manifest.json", 40)
    for _ in range(2):  # the second time it is aside already, and starting anew would still lose a run
        with pytest.raises(checkpoints.NoValidCheckpointError, match="no valid checkpoint is left") as caught:
            checkpoints.newest_valid(tmp_path)
        assert caught.value.exit_code == 3
        assert "\n" not in str(caught.value)


def test_a_damaged_folder_gives_way_to_a_new_one_and_a_valid_one_stays(tmp_path: Path) -> None:
    (checkpoint,) = some(tmp_path, 5)
    before = (checkpoint / "manifest.json").stat().st_mtime_ns
    some(tmp_path, 5)
    assert (checkpoint / "manifest.json").stat().st_mtime_ns == before
    flip(checkpoint / "config.json", 3)
    some(tmp_path, 5)
    assert checkpoints.problems(checkpoint) == []
    assert (tmp_path / "step-5.damaged-1").is_dir()


def test_rotation_counts_valid_ones_only_and_keeps_the_last(tmp_path: Path) -> None:
    some(tmp_path, 1, 2, 3, 4, 5)
    flip(tmp_path / "step-5" / "config.json", 1)
    flip(tmp_path / "step-3" / "config.json", 1)
    checkpoints.rotate(tmp_path, keep=2)
    assert {path.name for path in tmp_path.iterdir()} == {"step-4", "step-2", "step-5.damaged-1", "step-3.damaged-1"}
    checkpoints.rotate(tmp_path, keep=0)
    assert [path.name for path in checkpoints.all_in(tmp_path)] == ["step-4"]


class Fails:
    """A function that raises OSError on its n-th call."""

    def __init__(self, inner: Callable[..., Any], nth: int) -> None:
        self.inner, self.nth, self.calls = inner, nth, 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        if self.calls == self.nth:
            raise OSError(errno.EIO, "Input/output error")
        return self.inner(*args, **kwargs)


@pytest.mark.parametrize(
    ("module", "name"),
    [(os, "fsync"), (os, "rename"), (os, "chmod"), (os, "open"), (Path, "write_text"), (checkpoints, "_sha256"), (state, "save_file")],
)
def test_an_error_in_any_call_leaves_the_previous_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: Any, name: str
) -> None:
    (previous,) = some(tmp_path, 1)
    nth = 0
    while True:
        nth += 1
        fails = Fails(getattr(module, name), nth)
        with monkeypatch.context() as patch:
            patch.setattr(module, name, lambda *args, fails=fails, **kwargs: fails(*args, **kwargs))
            with contextlib.suppress(OSError):
                checkpoints.write(tmp_path / "step-2", fill)
        assert checkpoints.problems(previous) == []
        left = {path.name for path in tmp_path.iterdir()}
        assert left <= {"step-1", "step-2"}
        assert "step-2" not in left or checkpoints.problems(tmp_path / "step-2") == []
        if fails.calls < nth:
            break
        shutil.rmtree(tmp_path / "step-2", ignore_errors=True)
    assert nth > 1


@pytest.mark.parametrize("hook", HOOKS)
def test_an_error_at_any_hook_leaves_the_previous_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hook: str) -> None:
    (previous,) = some(tmp_path, 1)

    def fail(name: str) -> None:
        if name == hook:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoints, "stage_hook", fail)

    def save() -> None:
        some(tmp_path, 2)
        checkpoints.rotate(tmp_path, 2)

    with pytest.raises(OSError, match="No space left"):
        save()
    assert checkpoints.problems(previous) == []
    assert {path.name for path in tmp_path.iterdir()} == ({"step-1"} if HOOKS.index(hook) < 4 else {"step-1", "step-2"})


def test_a_full_disk_leaves_the_previous_checkpoint(tmp_path: Path) -> None:
    (previous,) = some(tmp_path, 1)

    def big(folder: Path) -> None:
        fill(folder)
        save_file({"w": torch.zeros(1 << 20)}, folder / "big.safetensors")

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
        checkpoints.write(tmp_path / "step-2", big)

    assert wait(fork(limited)) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["step-1"]
    assert checkpoints.newest_valid(tmp_path) == previous


def test_what_killed_saves_left_is_cleaned(tmp_path: Path) -> None:
    some(tmp_path, 1)
    (tmp_path / f"{checkpoints.STAGING}step-2-abc" / "deep").mkdir(parents=True)
    checkpoints.clean(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["step-1"]


def killed_without_a_rename(folder: Path) -> None:
    """A save that writes to its final place and is killed there: what staging and renaming are for."""
    some(folder, 1)

    def careless() -> None:
        (folder / "step-2").mkdir()
        fill(folder / "step-2")
        os.kill(os.getpid(), signal.SIGKILL)

    assert wait(fork(careless)) == -signal.SIGKILL


def test_a_save_without_rename_is_seen_as_damage(tmp_path: Path) -> None:
    killed_without_a_rename(tmp_path)
    assert checkpoints.newest_valid(tmp_path) == tmp_path / "step-1"


def test_the_test_of_the_rename_can_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed_without_a_rename(tmp_path)
    monkeypatch.setattr(checkpoints, "problems", lambda folder: [])
    assert checkpoints.newest_valid(tmp_path) == tmp_path / "step-2"


def test_state_comes_back_to_the_bit(tmp_path: Path) -> None:
    tree = {
        "floats": [0.1, 1e-310, -0.0, float("inf"), 1 / 3],
        "tuple": (1, None, True, "text", (2.5,)),
        "by number": {0: {"exp_avg": torch.randn(3, 2).T, "step": torch.tensor(7.0)}, 1: {}},
        "half": torch.randn(3).bfloat16(),
        "shared": [(same := torch.arange(3)), same],
    }
    state.write_tree(tmp_path, "tree", tree)
    back = state.read_tree(tmp_path, "tree")
    assert repr(back) == repr(tree)
    assert torch.equal(back["by number"][0]["exp_avg"], tree["by number"][0]["exp_avg"])
    assert str(back["floats"][2]) == "-0.0"


def test_what_would_need_pickle_is_refused(tmp_path: Path) -> None:
    for value in (object(), {1.5: 2}, {"a": {3}}):
        with pytest.raises(MixlabError, match="without pickle"):
            state.write_tree(tmp_path, "tree", {"deep": [value]})


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.AdamW(p, 0.1, amsgrad=True),
        lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
        lambda p: torch.optim.Adafactor(p, 0.1),
        lambda p: torch.optim.RMSprop(p, 0.1),
    ],
)
def test_optimizers_continue_to_the_bit(tmp_path: Path, make: Callable[[Any], torch.optim.Optimizer]) -> None:
    def run(model: torch.nn.Linear, optimizer: torch.optim.Optimizer, steps: range) -> None:
        for step in steps:
            generator = torch.Generator().manual_seed(step)
            model(torch.randn(4, 3, generator=generator)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    model = torch.nn.Linear(3, 2)
    optimizer = make(model.parameters())
    run(model, optimizer, range(3))
    other = torch.nn.Linear(3, 2)
    other.load_state_dict(model.state_dict())
    state.write_tree(tmp_path, "optimizer", optimizer.state_dict())
    resumed = make(other.parameters())
    state.load_optimizer(resumed, state.read_tree(tmp_path, "optimizer"))
    run(model, optimizer, range(3, 6))
    run(other, resumed, range(3, 6))
    assert torch.equal(model.weight, other.weight)
    with pytest.raises(MixlabError, match="does not fit"):
        state.load_optimizer(make([*other.parameters(), torch.nn.Parameter(torch.zeros(1))]), state.read_tree(tmp_path, "optimizer"))


def test_random_generators_come_back(tmp_path: Path) -> None:
    import numpy as np

    def draw() -> list[float]:
        return [random.random(), random.gauss(0, 1), float(np.random.rand()), float(np.random.randn()), float(torch.randn(1))]

    draw()
    state.write_tree(tmp_path, "random", state.random_state())
    expected = draw()
    draw()
    state.set_random_state(state.read_tree(tmp_path, "random"))
    assert draw() == expected


def test_values_that_are_not_finite_are_found_by_name() -> None:
    assert state.non_finite({"a": [torch.ones(2), {"b": torch.tensor([1.0, float("nan")])}]}) == "a.1.b"
    assert state.non_finite({"a": [1, 2.0, torch.tensor(3)], "b": None}) is None
    assert state.non_finite([float("inf")]) == "0"
