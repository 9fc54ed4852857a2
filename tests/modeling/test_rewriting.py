"""Changes to whole state dicts, there and back."""

from __future__ import annotations

import pytest
import torch

from mixlab.modeling.rewriting import (
    count_by_stage,
    count_through,
    join,
    kernel_as_matrix,
    matrix_as_kernel,
    part,
    respell,
    stage_starts,
    with_batch,
    without_batch,
)

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


NAMES = {
    "stages.0.blocks.0.norm.weight": "blocks.0.norm.weight",
    "stages.0.blocks.1.norm.weight": "blocks.1.norm.weight",
    "stages.1.down.conv.weight": "blocks.2.down.conv.weight",
    "stages.1.blocks.0.down_proj.bias": "blocks.2.down_proj.bias",
    "stages.1.blocks.10.norm.weight": "blocks.4.norm.weight",
    "stages.1.blocks.9.norm.weight": "blocks.3.norm.weight",
    "stages.2.down.norm.weight": "blocks.5.down.norm.weight",
    "stages.2.blocks.0.norm.weight": "blocks.5.norm.weight",
    "head.stages.weight": "head.stages.weight",
}


def test_blocks_are_counted_through() -> None:
    """In the order of their numbers, not of their names; all else keeps its name."""
    state = {name: torch.tensor(place) for place, name in enumerate(NAMES)}
    counted = count_through(state, before="down")
    assert {name: int(place) for name, place in counted.items()} == {name: place for place, name in enumerate(NAMES.values())}
    assert stage_starts(counted, before="down") == [0, 2, 5]


@pytest.mark.parametrize("stages", ["stages", "encoder.layers"])
def test_and_back(stages: str) -> None:
    names = ["0.blocks.0.a", "0.blocks.1.a", "1.down.w", "1.blocks.0.a", "2.down.w", "2.blocks.0.a", "2.blocks.1.a", "2.blocks.2.a"]
    state = {f"{stages}.{name}": torch.tensor(place) for place, name in enumerate(names)} | {"norm.weight": torch.tensor(-1)}
    assert count_by_stage(count_through(state, stages, "down"), stages, "down") == state


def test_a_pointwise_convolution_is_a_projection() -> None:
    kernel = torch.randn(5, 3, 1, 1)
    image = torch.randn(2, 3, 4, 6)
    tokens = image.flatten(2).mT @ kernel_as_matrix(kernel).mT
    torch.testing.assert_close(tokens, torch.nn.functional.conv2d(image, kernel).flatten(2).mT)
    assert torch.equal(matrix_as_kernel(kernel_as_matrix(kernel)), kernel)
