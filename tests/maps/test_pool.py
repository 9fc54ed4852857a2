"""Pool maps: fast path, dense truth and a naive loop agree, with gradients."""

from __future__ import annotations

import pytest
import torch

from mixlab import MixlabError
from mixlab.maps import PoolMap, TokenMap
from tests.reference.compare import random_input

ROWS = {
    "Token maps: pool, with gradients [naive loops]": "test_fast_path_dense_and_loop_agree_with_gradients",
}

CASES = pytest.mark.parametrize(
    ("grid", "window"), [((1, 1), 3), ((3, 4), 1), ((3, 4), 3), ((5, 2), 5), ((2, 3), 7), ((1, 6), 3)], ids=lambda value: str(value)
)
kinds = pytest.mark.parametrize("less_itself", [False, True], ids=["mean", "less-itself"])


def loop(x: torch.Tensor, grid: tuple[int, int], window: int, less_itself: bool) -> torch.Tensor:
    """One place after the other, from the places that lie in its window."""
    rows, columns = grid
    image, far = x.unflatten(0, grid), window // 2
    out = torch.zeros_like(image)
    for i in range(rows):
        for j in range(columns):
            around = [image[k, m] for k in range(rows) for m in range(columns) if abs(k - i) <= far and abs(m - j) <= far]
            out[i, j] = sum(around) / len(around) - (image[i, j] if less_itself else 0)
    return out.flatten(0, 1)


@CASES
@kinds
def test_fast_path_dense_and_loop_agree_with_gradients(grid, window, less_itself):
    n = grid[0] * grid[1]
    v, weights = random_input(2, n, 3).requires_grad_(), random_input(2, n, 3, seed=2)
    made = PoolMap(grid, window, less_itself, torch.float64)
    results = []
    for run in (lambda: made(v), lambda: made.dense() @ v, lambda: torch.stack([loop(x, grid, window, less_itself) for x in v])):
        out = run()
        results.append((out, *torch.autograd.grad((out * weights).sum(), v)))
    for fast, dense, naive in zip(*results, strict=True):
        torch.testing.assert_close(fast, naive, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(dense, naive, rtol=1e-12, atol=1e-12)
    assert torch.autograd.gradcheck(made, (v,))


@CASES
def test_rows_are_means(grid, window):
    """What is there sums to 1, in the corners too; less itself, to 0: a flat image has nothing to mix."""
    n = grid[0] * grid[1]
    torch.testing.assert_close(PoolMap(grid, window).dense().sum(-1), torch.ones(1, n))
    torch.testing.assert_close(PoolMap(grid, window, less_itself=True).dense().sum(-1), torch.zeros(1, n))


def test_it_is_a_token_map_that_counts():
    made = PoolMap((3, 4))
    assert isinstance(made, TokenMap)
    assert (made.macs(5), made.terms(), made.structure) == (0, 1, "pool")


@pytest.mark.parametrize("window", [0, 2, -1])
def test_a_window_without_a_middle_is_refused(window):
    with pytest.raises(MixlabError, match=f"a window of {window} x {window} has no middle"):
        PoolMap((3, 3), window)
