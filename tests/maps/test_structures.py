"""Identity, banded, dynamic banded and low-rank maps: fast path, dense truth and a naive loop agree, with gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mixlab import MixlabError
from mixlab.maps import (
    BandedMap,
    BandedWeight,
    DenseMap,
    DynamicBandedMap,
    GridBandedMap,
    IdentityMap,
    LowRankMap,
    LowRankWeight,
    SoftmaxMap,
    ToeplitzMap,
    TokenMap,
)
from mixlab.maps.banded import band
from tests.reference import banded
from tests.reference.compare import random_input, randomised

ROWS = {
    "Token maps: identity, banded, on a grid, by input, low rank, with gradients [naive loops]": (
        "test_fast_path_dense_and_loop_agree_with_gradients"
    ),
    "Token maps: the same, multiply-adds and terms [closed form]": "test_it_is_a_token_map_that_counts",
}
N, E = 5, 6


def identity(v: Tensor) -> Tensor:
    return v


def static(ahead: int):
    def run(v: Tensor, taps: Tensor) -> Tensor:
        return torch.stack([banded.convolve(x, lambda _, h: taps[h], len(taps), ahead) for x in v])

    return run


def dynamic(ahead: int):
    def run(v: Tensor, taps: Tensor) -> Tensor:
        return torch.stack([banded.convolve(x, lambda i, h, own=own: own[h, i], len(own), ahead) for x, own in zip(v, taps, strict=True)])

    return run


def grid(v: Tensor, taps: Tensor) -> Tensor:
    return torch.stack([banded.convolve_grid(x, taps, (3, 4)) for x in v])


def low_rank(v: Tensor, left: Tensor, right: Tensor) -> Tensor:
    heads, written, rank = left.shape
    out = torch.zeros(len(v), written, E, dtype=v.dtype)
    for b in range(len(v)):
        for to in range(written):
            for e in range(E):
                h = e // (E // heads)
                out[b, to, e] = sum(left[h, to, r] * right[h, r, frm] * v[b, frm, e] for r in range(rank) for frm in range(v.shape[1]))
    return out


# Shapes of the tensors, the map made of them, the naive loop, tokens read, multiply-adds per channel, terms.
MAPS = {
    "identity": ((), lambda: IdentityMap(N, torch.float64), identity, N, 0, 1),
    "banded": (((3, 3),), lambda w: BandedMap(w, N, 1), static(1), N, N * 3, 3),
    "banded one head": (((1, 3),), lambda w: BandedMap(w, N, 1), static(1), N, N * 3, 1),
    "banded per channel": (((E, 3),), lambda w: BandedMap(w, N, 1), static(1), N, N * 3, 3),
    "banded causal": (((2, 4),), lambda w: BandedMap(w, N), static(0), N, N * 4, 2),
    "banded all ahead": (((2, 2),), lambda w: BandedMap(w, N, 1), static(1), N, N * 2, 2),
    "banded wider than the text": (((E, 7),), lambda w: BandedMap(w, 2, 3), static(3), 2, 2 * 7, 3),
    "grid": (((2, 3, 5),), lambda w: GridBandedMap(w, (3, 4)), grid, 12, 12 * 15, 2),
    "grid per channel": (((E, 1, 3),), lambda w: GridBandedMap(w, (3, 4)), grid, 12, 12 * 3, 3),
    "grid wider than the image": (((E, 7, 3),), lambda w: GridBandedMap(w, (3, 4)), grid, 12, 12 * 21, 6),
    "dynamic": (((2, 3, N, 3),), lambda w: DynamicBandedMap(w, 1), dynamic(1), N, N * 3, 3),
    "dynamic one head": (((2, 1, N, 5),), lambda w: DynamicBandedMap(w, 2), dynamic(2), N, N * 5, 1),
    "dynamic causal": (((2, 2, N, 4),), DynamicBandedMap, dynamic(0), N, N * 4, 2),
    "dynamic wider than the text": (((2, E, 2, 7),), lambda w: DynamicBandedMap(w, 3), dynamic(3), 2, 2 * 7, 4),
    "low rank": (((3, 4, 2), (3, 2, N)), LowRankMap, low_rank, N, 2 * (4 + N), 3),
    "low rank one head": (((1, 4, 1), (1, 1, N)), LowRankMap, low_rank, N, 4 + N, 1),
}
kinds = pytest.mark.parametrize("kind", MAPS)


def make(kind: str):
    shapes, build, reference, read, macs, terms = MAPS[kind]
    tensors = [random_input(*shape, seed=i).requires_grad_() for i, shape in enumerate(shapes)]
    return tensors, build, reference, random_input(2, read, E, seed=9).requires_grad_(), macs, terms


def product(matrix: Tensor, v: Tensor) -> Tensor:
    """The dense operator applied, each head to its own contiguous channels."""
    by_head = v.unflatten(2, (matrix.shape[-3], -1))
    return torch.einsum("bhmt,bthc->bmhc", matrix.expand(len(v), *matrix.shape[-3:]), by_head).flatten(2)


@kinds
def test_fast_path_dense_and_loop_agree_with_gradients(kind: str) -> None:
    tensors, build, reference, v, *_ = make(kind)
    weights = random_input(*reference(v, *tensors).shape, seed=3)
    results = []
    for run in (lambda: build(*tensors)(v), lambda: product(build(*tensors).dense(), v), lambda: reference(v, *tensors)):
        out = run()
        results.append((out, *torch.autograd.grad((out * weights).sum(), [v, *tensors])))
    for fast, dense, naive in zip(*results, strict=True):
        torch.testing.assert_close(fast, naive, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(dense, naive, rtol=1e-12, atol=1e-12)


@kinds
def test_gradients_are_exact(kind: str) -> None:
    tensors, build, _, v, *_ = make(kind)
    assert torch.autograd.gradcheck(lambda v, *tensors: build(*tensors)(v), (v, *tensors))


@kinds
def test_it_is_a_token_map_that_counts(kind: str) -> None:
    tensors, build, _, _, macs, terms = make(kind)
    made = build(*tensors)
    assert isinstance(made, TokenMap)
    assert made.macs(E) == macs * E
    assert made.terms() == terms
    matrices = made.dense()
    for heads in matrices.reshape(-1, matrices.shape[-3], matrices.shape[-2] * matrices.shape[-1]):  # one sample after the other
        assert int(torch.linalg.matrix_rank(heads)) == terms


@pytest.mark.parametrize(("kernel", "causal", "ahead"), [(1, False, 0), (3, False, 1), (7, False, 3), (4, True, 0), (3, True, 0)])
def test_weight_gives_the_map_of_any_length(kernel: int, causal: bool, ahead: int) -> None:
    weight = randomised(BandedWeight(kernel, 2, causal=causal))
    assert sum(p.numel() for p in weight.parameters()) == 2 * kernel
    for n in (1, 4, 9):
        assert torch.equal(weight.at(n).dense(), weight.at(9).dense()[:, :n, :n])
        for to in range(n):
            for frm in range(n):
                j = to - frm + ahead
                expected = weight.taps[:, j] if 0 <= j < kernel else torch.zeros(2, dtype=torch.float64)
                assert torch.equal(weight.at(n).dense()[:, to, frm], expected)


def test_softmaxed_taps_are_weights() -> None:
    weight = randomised(BandedWeight(5, 3, softmax=True))
    taps = weight.at(4).taps
    torch.testing.assert_close(taps.sum(-1), torch.ones(3, dtype=torch.float64))
    torch.testing.assert_close(taps, torch.stack([banded.softmax(row) for row in weight.taps]))


@pytest.mark.parametrize("batched", [False, True])
def test_band_by_places(batched: bool) -> None:
    """Entries by position are entries of the full matrix, in any order and with repetitions; taps may belong to places."""
    to, frm = torch.tensor([[7, 0, 3], [2, 2, 5]]), torch.tensor([[0, 7, 4, 4, 1], [6, 5, 2, 0, 3]])
    if batched:
        taps = random_input(2, 3, 8, 3)
        full = DynamicBandedMap(taps, 1).dense()
        own = torch.stack([rows[:, t] for rows, t in zip(taps, to, strict=True)])
        given = band(own, to, frm, 1)
        wanted = torch.stack([rows[:, t][:, :, f] for rows, t, f in zip(full, to, frm, strict=True)])
    else:
        taps = random_input(3, 3)
        full = BandedMap(taps, 8, 1).dense()
        given = band(taps[:, None], to, frm, 1)
        wanted = torch.stack([full[:, t][:, :, f] for t, f in zip(to, frm, strict=True)])
    assert torch.equal(given, wanted)


def test_low_rank_weight() -> None:
    """2 n r numbers; shorter texts use the corner; entries begin with the deviation that was asked for."""
    weight = randomised(LowRankWeight(7, 2, 3))
    assert sum(p.numel() for p in weight.parameters()) == 3 * 2 * 7 * 2
    torch.testing.assert_close(weight.at(4).dense(), weight.at(7).dense()[:, :4, :4])
    assert int(torch.linalg.matrix_rank(weight.at(7).dense()[0])) == 2
    torch.manual_seed(0)
    assert LowRankWeight(200, 8, 4, init_std=0.01).at(200).dense().std().item() == pytest.approx(0.01, rel=0.1)


MISTAKES = {
    "even": (lambda: BandedWeight(4), "a kernel of 4 taps has no middle; use an odd one, or causal=True"),
    "empty": (lambda: BandedWeight(0, causal=True), "a kernel of 0 taps"),
    "even grid": (lambda: GridBandedMap(torch.zeros(1, 3, 4), (5, 5)), "3 x 4 taps have no middle"),
    "rank": (lambda: LowRankWeight(4, 5), "rank 5 of a map of 4 tokens; choose 1..4"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes(mistake: str) -> None:
    """Refused in one line that names the value."""
    do, says = MISTAKES[mistake]
    with pytest.raises(MixlabError, match=says) as caught:
        do()
    assert "\n" not in str(caught.value)


HEADS_OF_THREE = {
    "dense": DenseMap(torch.zeros(3, N, N)),
    "toeplitz": ToeplitzMap(torch.zeros(3, 2 * N - 1)),
    "softmax": SoftmaxMap(torch.zeros(2, 3, N, 2), torch.zeros(2, 3, N, 2)),
    "low rank": LowRankMap(torch.zeros(3, N, 2), torch.zeros(3, 2, N)),
    "banded": BandedMap(torch.zeros(3, 3), N, 1),
    "grid banded": GridBandedMap(torch.zeros(3, 3, 3), (1, N)),
    "dynamic banded": DynamicBandedMap(torch.zeros(2, 3, N, 3), 1),
}


@pytest.mark.parametrize("kind", HEADS_OF_THREE)
def test_channels_that_heads_do_not_divide_are_refused(kind: str) -> None:
    assert HEADS_OF_THREE[kind](torch.zeros(2, N, 6)).shape == (2, N, 6)
    with pytest.raises(MixlabError, match="4 channels cannot be split among 3 heads; use a multiple of 3"):
        HEADS_OF_THREE[kind](torch.zeros(2, N, 4))
