"""Windows of a grid: the fast path against the numbers, the bias by offset, shifts that wrap, and cuts that do not fit."""

from __future__ import annotations

import pytest
import torch

from mixlab import MixlabError
from mixlab.maps import BlockDiagonalMap, DenseMap, SoftmaxMap, TokenMap, WindowBias, Windows
from tests.reference.compare import random_input, randomised

ROWS = {
    "Token maps: block-diagonal, windows shifted or not, with gradients [einsum]": "test_fast_path_is_dense_with_gradients",
    "Token maps: the bias of windows by offset [naive loops]": "test_bias_by_offset",
}

CUTS = {
    "square": Windows((4, 4), 2),
    "oblong": Windows((2, 6), 2),
    "shifted": Windows((4, 4), 2, 1),
    "shifted oblong": Windows((3, 6), 3, 1),
    "one window": Windows((3, 3), 3, 1),
    "single tokens": Windows((2, 3), 1),
}
cuts = pytest.mark.parametrize("windows", CUTS.values(), ids=CUTS)
BATCH, HEADS, CHANNELS = 2, 3, 6


def window_of(windows: Windows, token: int) -> tuple[int, int]:
    """Of one token, from its row and column alone; shifted windows begin `shift` further on, where an axis has more than one."""
    rows, columns = windows.grid
    place = []
    for at, extent in ((token // columns, rows), (token % columns, columns)):
        shift = windows.shift if extent > windows.side else 0
        place.append((at - shift) % extent // windows.side)
    return place[0], place[1]


def tokens(windows: Windows) -> int:
    return windows.grid[0] * windows.grid[1]


def softmax(windows: Windows, q: torch.Tensor, k: torch.Tensor, bias: torch.Tensor) -> BlockDiagonalMap:
    near = windows.neighbours()
    allowed = None if near is None else near[:, None].repeat(BATCH, 1, 1, 1)
    return BlockDiagonalMap(SoftmaxMap(q, k, allowed, bias), windows)


def inputs(windows: Windows, kind: str) -> list[torch.Tensor]:
    s, blocks = windows.side**2, BATCH * windows.count
    shapes = {"static": [(HEADS, s, s)], "per window": [(blocks, HEADS, s, s)]}
    shapes["softmax"] = [(blocks, HEADS, s, 2), (blocks, HEADS, s, 2), (1, HEADS, s, s)]
    return [random_input(*shape, seed=i).requires_grad_() for i, shape in enumerate(shapes[kind])]


def make(windows: Windows, kind: str, given: list[torch.Tensor]) -> BlockDiagonalMap:
    return softmax(windows, *given) if kind == "softmax" else BlockDiagonalMap(DenseMap(*given), windows)


KINDS = pytest.mark.parametrize("kind", ["static", "per window", "softmax"])


@cuts
@KINDS
def test_fast_path_is_dense_with_gradients(windows: Windows, kind: str) -> None:
    """`map(v)` is the product with `map.dense()`, channel by channel; so are the gradients of v and of what made the map."""
    given = inputs(windows, kind)
    v = random_input(BATCH, tokens(windows), CHANNELS, seed=9).requires_grad_()
    matrix = make(windows, kind, given).dense().expand(BATCH, HEADS, tokens(windows), tokens(windows))
    slow = torch.einsum("bhij,bjhc->bihc", matrix, v.unflatten(-1, (HEADS, -1))).flatten(2)
    fast = make(windows, kind, given)(v)
    torch.testing.assert_close(fast, slow, rtol=1e-12, atol=1e-12)
    weights = random_input(*fast.shape, seed=3)
    ours, theirs = (torch.autograd.grad((y * weights).sum(), [v, *given]) for y in (fast, slow))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


@cuts
@KINDS
def test_gradients(windows: Windows, kind: str) -> None:
    v = random_input(BATCH, tokens(windows), CHANNELS, seed=9).requires_grad_()
    assert torch.autograd.gradcheck(lambda v, *given: make(windows, kind, list(given))(v), (v, *inputs(windows, kind)), fast_mode=True)


@cuts
def test_who_is_in_whose_window(windows: Windows) -> None:
    """Entries are there exactly for two tokens of one window, block after block as `inner` has them."""
    n = tokens(windows)
    matrix = make(windows, "static", inputs(windows, "static")).dense()[0]
    for i in range(n):
        for j in range(n):
            assert bool(matrix[i, j] != 0) == (window_of(windows, i) == window_of(windows, j)), (i, j)
    x = random_input(BATCH, n, CHANNELS)
    assert torch.equal(windows.join(windows.cut(x)), x)
    assert windows.cut(x).shape == (BATCH * windows.count, windows.side**2, CHANNELS)
    assert torch.equal(windows.places().flatten().sort().values, torch.arange(n))


@cuts
def test_attention_does_not_wrap_around(windows: Windows) -> None:
    """A token reads those of its window that are less than a side away in both directions."""
    matrix = softmax(windows, *inputs(windows, "softmax")).dense()
    torch.testing.assert_close(matrix.sum(-1), torch.ones_like(matrix[..., 0]))
    columns = windows.grid[1]
    for i in range(tokens(windows)):
        for j in range(tokens(windows)):
            near = abs(i // columns - j // columns) < windows.side and abs(i % columns - j % columns) < windows.side
            assert bool((matrix[:, :, i, j] > 0).all()) == (near and window_of(windows, i) == window_of(windows, j)), (i, j)


@pytest.mark.parametrize("side", [1, 2, 3])
def test_bias_by_offset(side: int) -> None:
    """Two pairs of tokens share a number exactly if they are equally far apart, rows and columns told apart."""
    bias = randomised(WindowBias(side, HEADS))
    found = bias()
    assert found.shape == (1, HEADS, side**2, side**2)
    for to in range(side**2):
        for frm in range(side**2):
            rows, columns = to // side - frm // side, to % side - frm % side
            wanted = bias.table[(rows + side - 1) * (2 * side - 1) + columns + side - 1]
            assert torch.equal(found[0, :, to, frm], wanted)
    assert sum(p.numel() for p in bias.parameters()) == (2 * side - 1) ** 2 * HEADS
    assert torch.unique(found[0, 0]).numel() == (2 * side - 1) ** 2


def test_macs() -> None:
    """Each window pays for its own tokens: n s per channel, not n^2."""
    windows = Windows((4, 6), 2)
    assert BlockDiagonalMap(DenseMap(torch.zeros(3, 4, 4)), windows).macs(6) == 24 * 4 * 6
    q = torch.zeros(2 * 6, 3, 4, 7)
    assert BlockDiagonalMap(SoftmaxMap(q, q), windows).macs(6) == 24 * 4 * (3 * 7 + 6)


@cuts
@KINDS
def test_terms(windows: Windows, kind: str) -> None:
    """One per head; a window of one token leaves room for one, unless every window has a number of its own."""
    made = make(windows, kind, inputs(windows, kind))
    assert isinstance(made, TokenMap)
    assert made.terms() == (1 if windows.side == 1 and kind != "per window" else HEADS)
    matrices = made.dense().reshape(-1, HEADS, tokens(windows) ** 2)
    assert all(int(torch.linalg.matrix_rank(heads)) == made.terms() for heads in matrices)


@pytest.mark.parametrize(
    ("grid", "side", "shift", "said"),
    [
        ((4, 4), 5, 0, "windows of 5 x 5 on a grid of 4 x 4; give a side of at most 4"),
        ((8, 4), 8, 0, "give a side of at most 4"),
        ((4, 4), 0, 0, "windows of 0 x 0"),
        ((4, 6), 4, 0, "a grid of 4 x 6 cannot be cut into windows of 4 x 4"),
        ((4, 4), 2, 2, "shifted by 2; shift by at least 0 and less"),
        ((4, 4), 2, -1, "shifted by -1"),
    ],
)
def test_cuts_that_do_not_fit_are_refused(grid: tuple[int, int], side: int, shift: int, said: str) -> None:
    with pytest.raises(MixlabError, match=said) as caught:
        Windows(grid, side, shift)
    assert "\n" not in str(caught.value)
