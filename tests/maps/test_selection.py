"""Joining and cutting as matrices, against torch's own."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from mixlab import MixlabError
from mixlab.maps import DenseMap
from mixlab.maps.selection import cutting, joining

ROWS = {
    "Concatenation of tokens and of channels as matrices [torch.cat]": "test_joined_tokens_and_channels_are_sums_of_products",
    "Slicing of tokens and of channels as matrices [slices]": "test_cut_tokens_and_channels",
}


def test_joined_tokens_and_channels_are_sums_of_products() -> None:
    parts = [torch.randn(n, 5) for n in (2, 4, 1)]
    matrices = joining([2, 4, 1])
    assert torch.equal(torch.stack([p @ x for p, x in zip(matrices, parts, strict=True)]).sum(0), torch.cat(parts))
    wide = [x.T for x in parts]
    assert torch.equal(torch.stack([x @ p.T for p, x in zip(matrices, wide, strict=True)]).sum(0), torch.cat(wide, dim=1))


def test_a_cut_undoes_a_join_and_parts_do_not_meet() -> None:
    first, second = joining([2, 3])
    assert torch.equal(first.T, cutting(5, 0, 2))
    assert torch.equal(second.T, cutting(5, 2, 5))
    assert torch.equal(first.T @ first, torch.eye(2))
    assert not (first.T @ second).any()
    assert torch.equal(first @ first.T + second @ second.T, torch.eye(5))
    assert int(torch.linalg.matrix_rank(second)) == 3


def test_cut_tokens_and_channels() -> None:
    x = torch.randn(2, 6, 4)
    assert torch.equal(DenseMap(cutting(6, 1, 4)[None])(x), x[:, 1:4])
    assert torch.equal(x @ cutting(4, 2, 4).T, x[..., 2:4])


def test_a_matrix_behind_joined_channels_is_a_sum() -> None:
    """Which is what a convolution of 1 x 1 makes of a skip."""
    skip, below, layer = torch.randn(7, 3), torch.randn(7, 5), nn.Linear(8, 2, bias=False)
    first, second = joining([3, 5])
    summed = skip @ (first.T @ layer.weight.T) + below @ (second.T @ layer.weight.T)
    torch.testing.assert_close(summed, layer(torch.cat([skip, below], dim=1)))


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (2, 2), (3, 1), (0, 6)])
def test_rows_that_are_not_there_are_refused(start: int, stop: int) -> None:
    with pytest.raises(MixlabError, match=f"rows {start} to {stop} of 5"):
        cutting(5, start, stop)


def test_empty_parts_are_refused() -> None:
    for sizes in ([], [2, 0]):
        with pytest.raises(MixlabError, match="at least one"):
            joining(sizes)
