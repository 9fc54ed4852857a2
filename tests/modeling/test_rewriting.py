"""Changes to whole state dicts, there and back."""

from __future__ import annotations

import pytest
import torch

from mixlab.modeling.rewriting import join, part, respell, with_batch, without_batch

QKV = ("q_proj", "k_proj", "v_proj")


def state() -> dict[str, torch.Tensor]:
    shapes = {"weight": (2, 3), "bias": (2,)}
    names = [f"{layer}.{part}.{kind}" for layer in "01" for part in QKV for kind in shapes]
    return {**{name: torch.randn(shapes[name.rpartition(".")[2]]) for name in names}, "norm.weight": torch.randn(3)}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_parts_are_joined_in_their_order_and_parted_again() -> None:
    before = state()
    joined = join(before, QKV, "qkv")
    assert set(joined) == {f"{layer}.qkv.{kind}" for layer in "01" for kind in ("weight", "bias")} | {"norm.weight"}
    assert torch.equal(joined["1.qkv.weight"][2:4], before["1.k_proj.weight"])
    assert same(part(joined, "qkv", QKV), before)


def test_parts_may_be_of_different_sizes() -> None:
    before = {"a.up": torch.randn(5, 2), "a.down": torch.randn(1, 2)}
    joined = join(before, ("up", "down"), "both")
    assert same(part(joined, "both", ("up", "down"), lambda tensor: [len(tensor) - 1, 1]), before)


def test_only_names_within_a_prefix_are_joined() -> None:
    before = state()
    joined = join(before, QKV, "qkv", "1.")
    assert same(
        joined, {**{name: before[name] for name in before if not name.startswith("1.")}, **{n: joined[n] for n in joined if "qkv" in n}}
    )
    assert {name for name in joined if "qkv" in name} == {"1.qkv.weight", "1.qkv.bias"}


def test_a_part_that_is_missing_is_named() -> None:
    broken = state()
    del broken["1.k_proj.bias"]
    with pytest.raises(KeyError, match=r"1\.k_proj\.bias"):
        join(broken, QKV, "qkv")


def test_names_are_respelled_in_order() -> None:
    spelled = respell({"attention.output.dense": torch.zeros(1), "output.dense": torch.ones(1)}, {"attention.output": "o", "output": "f"})
    assert set(spelled) == {"o.dense", "f.dense"}


def test_a_batch_of_one_comes_and_goes() -> None:
    positions = torch.randn(1, 4, 3)
    assert torch.equal(with_batch(without_batch(positions)), positions)
    assert without_batch(positions).shape == (4, 3)
