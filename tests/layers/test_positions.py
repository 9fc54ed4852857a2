"""Learned positions: what is added where, and what is left of them when the length changes."""

from __future__ import annotations

import pytest
import torch

from mixlab.layers import LearnedPositions, Tokens
from tests.reference.compare import random_input, randomised


def make(length: int = 7, d: int = 5) -> LearnedPositions:
    return randomised(LearnedPositions(length, d))


def test_each_token_gets_the_vector_of_its_place():
    positions, x = make(), random_input(2, 4, 5)
    assert torch.equal(positions(Tokens(x)), x + positions.weight[:4])
    assert torch.equal(positions(Tokens(x, past=3)), x + positions.weight[3:7])
    places = torch.tensor([[0, 0, 1, 2], [3, 1, 0, 6]])
    assert torch.equal(positions(Tokens(x, positions=places)), x + positions.weight[places])


@pytest.mark.parametrize("length", [1, 4, 7, 11])
def test_a_resized_table_keeps_what_both_know(length):
    positions = make()
    old = positions.weight.detach().clone()
    said = positions.resize(length, None, 0)
    kept = min(length, 7)
    assert positions.weight.shape == (length, 5)
    assert positions.weight.dtype == torch.float64
    assert positions.weight.requires_grad
    assert torch.equal(positions.weight[:kept], old[:kept])
    assert not positions.weight[kept:].any()
    assert ("cropped" if length <= 7 else "zero") in said


def test_an_image_is_interpolated_behind_its_prefix():
    positions = make(length=1 + 9)
    old = positions.weight.detach().clone()
    assert "3 x 3 to 6 x 6" in positions.resize(1 + 36, (3, 6), 1)
    image = old[1:].mT.unflatten(-1, (3, 3))[None]
    wanted = torch.nn.functional.interpolate(image, size=(6, 6), mode="bilinear", align_corners=False)[0].flatten(1).mT
    assert torch.equal(positions.weight[0], old[0])
    torch.testing.assert_close(positions.weight[1:], wanted)


def test_the_table_begins_with_the_deviation_that_was_asked_for():
    assert LearnedPositions(500, 40, std=0.3).weight.std().item() == pytest.approx(0.3, rel=0.05)
