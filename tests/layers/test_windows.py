"""Attention in windows and the merging of tokens, against loops over tokens; what does not fit is refused."""

from __future__ import annotations

import pytest
import torch

from mixlab import MixlabError
from mixlab.layers import Tokens
from mixlab.layers.tokens import Record
from mixlab.layers.windows import PatchMerging, WindowAttention
from tests.reference.compare import assert_same, random_input, randomised
from tests.reference.windows import merge, window_attention


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize(
    ("grid", "side", "shift"), [((4, 4), 2, 0), ((4, 4), 2, 1), ((6, 3), 3, 1), ((3, 6), 3, 2), ((3, 3), 3, 1), ((2, 2), 1, 0)]
)
def test_attention_against_loops(grid: tuple[int, int], side: int, shift: int, heads: int) -> None:
    attend = randomised(WindowAttention(6, side, heads=heads, shift=shift))

    def reference(p, mask, x):
        return window_attention(x, p, grid=grid, side=side, shift=shift, heads=heads)

    assert_same(attend, lambda x: attend(Tokens(x, grid=grid)), reference, random_input(2, grid[0] * grid[1], 6))


@pytest.mark.parametrize("grid", [(2, 2), (4, 6)])
def test_merging_against_loops(grid: tuple[int, int]) -> None:
    merging = randomised(PatchMerging(3, 5))
    assert merging(Tokens(random_input(2, grid[0] * grid[1], 3), grid=grid)).grid == (grid[0] // 2, grid[1] // 2)
    assert_same(
        merging, lambda x: merging(Tokens(x, grid=grid)).x, lambda p, _, x: merge(x, p, grid), random_input(2, grid[0] * grid[1], 3)
    )


def test_attention_is_shown_as_a_matrix_of_all_tokens() -> None:
    attend, record = randomised(WindowAttention(6, 2, heads=2, shift=1)), Record(frozenset({"attention", "maps"}))
    attend(Tokens(random_input(3, 16, 6), grid=(4, 4), record=record))
    (attention,), (maps,) = record.of("attention"), record.of("maps")
    assert torch.equal(attention, maps)
    assert attention.shape == (3, 2, 16, 16)
    torch.testing.assert_close(attention.sum(-1), torch.ones(3, 2, 16, dtype=torch.float64))
    assert int((attention[0, 0, 0] > 0).sum()) == 1  # the corner is left alone by the shift


def test_dropout_is_for_training() -> None:
    attend = randomised(WindowAttention(6, 2, dropout=0.5))
    tokens = Tokens(random_input(1, 16, 6), grid=(4, 4))
    assert not torch.equal(attend(tokens), attend(tokens))
    attend.eval()
    assert torch.equal(attend(tokens), attend(tokens))


def test_what_does_not_fit_is_refused() -> None:
    x = random_input(1, 12, 6)
    attend, merging = randomised(WindowAttention(6, 2)), randomised(PatchMerging(6, 4))
    with pytest.raises(MixlabError, match=r"needs the rows and columns of an image"):
        attend(Tokens(x))
    with pytest.raises(MixlabError, match="no mask"):
        attend(Tokens(x, torch.ones(1, 12, dtype=torch.bool), grid=(2, 6)))
    with pytest.raises(MixlabError, match="a grid of 4 x 3 cannot be cut into windows of 2 x 2"):
        attend(Tokens(x, grid=(4, 3)))
    with pytest.raises(MixlabError, match="windows of 2 x 2 on a grid of 1 x 12"):
        attend(Tokens(x, grid=(1, 12)))
    with pytest.raises(MixlabError, match="6 channels cannot be split into 4 heads"):
        WindowAttention(6, 2, heads=4)
    with pytest.raises(MixlabError, match="a grid of 4 x 3 has no squares of 2 x 2"):
        merging(Tokens(x, grid=(4, 3)))
    with pytest.raises(MixlabError, match="rows and columns"):
        merging(Tokens(x))
