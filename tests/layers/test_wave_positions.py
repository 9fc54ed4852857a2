"""Fixed positions of patches against the formula, number by number."""

from __future__ import annotations

import math

import pytest
import torch

from mixlab import MixlabError
from mixlab.layers import Tokens, WavePositions


def by_hand(side: int, d: int, prefix: int) -> list[list[float]]:
    rows = [[0.0] * d for _ in range(prefix)]
    for row in range(side):
        for column in range(side):
            w = [10000 ** (-4 * i / d) for i in range(d // 4)]
            rows.append([f(place * x) for place in (column, row) for f in (math.sin, math.cos) for x in w])
    return rows


@pytest.mark.parametrize(("side", "d", "prefix"), [(3, 8, 0), (4, 12, 1), (1, 4, 2)])
def test_against_the_formula(side: int, d: int, prefix: int) -> None:
    positions = WavePositions(prefix + side * side, d, prefix=prefix)
    torch.testing.assert_close(positions.weight, torch.tensor(by_hand(side, d, prefix)), rtol=0, atol=1e-6)
    assert not positions.weight.requires_grad


def test_tokens_get_those_of_their_own_places() -> None:
    positions, x = WavePositions(9, 8), torch.randn(2, 3, 8)
    places = torch.tensor([[8, 0, 4], [1, 2, 3]])
    assert torch.equal(positions(Tokens(x, positions=places)), x + positions.weight[places])


def test_another_size_has_its_own_waves() -> None:
    positions = WavePositions(1 + 9, 8, prefix=1)
    assert "16 patches" in positions.resize(1 + 16, (3, 4), 1)
    assert torch.equal(positions.weight, WavePositions(1 + 16, 8, prefix=1).weight)
    assert not positions.weight.requires_grad


@pytest.mark.parametrize(("length", "d"), [(9, 6), (10, 8)])
def test_what_has_no_waves_is_refused(length: int, d: int) -> None:
    with pytest.raises(MixlabError, match="give a square image and a multiple of 4 channels"):
        WavePositions(length, d)
