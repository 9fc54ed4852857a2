"""Fourier maps and FNet's mixing: fast path, dense truth and scipy's matrix agree, with gradients."""

from __future__ import annotations

import math

import pytest
import scipy.linalg
import torch

from mixlab import MixlabError
from mixlab.layers import Tokens
from mixlab.layers.fourier import FourierMixing
from mixlab.layers.tokens import Record
from mixlab.maps import FourierMap, TokenMap
from tests.reference.compare import random_input

ROWS = {
    "Token maps: Fourier, with gradients [naive loops]": "test_fast_path_dense_and_loop_agree_with_gradients",
    "Token maps: Fourier [scipy]": "test_against_scipy",
    "FNet's mixing is two terms M X W [einsum]": "test_the_mixing_is_two_terms",
}

parts = pytest.mark.parametrize("part", ["cosine", "sine"])
lengths = pytest.mark.parametrize("n", [1, 2, 5, 8])


def loop(v: torch.Tensor, part: str) -> torch.Tensor:
    """Naive sums."""
    wave = math.cos if part == "cosine" else math.sin
    n = len(v)
    return torch.stack([sum(wave(2 * math.pi * to * frm / n) * v[frm] for frm in range(n)) for to in range(n)])


@parts
@lengths
def test_fast_path_dense_and_loop_agree_with_gradients(part, n):
    v, weights = random_input(2, n, 3).requires_grad_(), random_input(2, n, 3, seed=2)
    made = FourierMap(n, part, torch.float64)
    results = []
    for run in (lambda: made(v), lambda: made.dense() @ v, lambda: torch.stack([loop(x, part) for x in v])):
        out = run()
        results.append((out, *torch.autograd.grad((out * weights).sum(), v)))
    for fast, dense, naive in zip(*results, strict=True):
        torch.testing.assert_close(fast, naive, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(dense, naive, rtol=1e-12, atol=1e-12)
    assert torch.autograd.gradcheck(made, (v,))


@lengths
def test_against_scipy(n):
    matrix = torch.from_numpy(scipy.linalg.dft(n))
    torch.testing.assert_close(FourierMap(n, "cosine", torch.float64).dense()[0], matrix.real)
    torch.testing.assert_close(FourierMap(n, "sine", torch.float64).dense()[0], -matrix.imag)


def test_far_entries_are_exact():
    """The last row is the second one, by symmetry, although its products of places go into the millions."""
    row = FourierMap(4096).dense()[0, 4095]
    torch.testing.assert_close(row, FourierMap(4096).dense()[0, 1])


@parts
def test_it_is_a_token_map_that_counts(part):
    made = FourierMap(5, part)
    assert isinstance(made, TokenMap)
    assert (made.macs(3), made.terms(), made.structure) == (5 * 5 * 3, 1, "fourier")
    assert list(FourierMixing().parameters()) == []


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_types_are_kept(dtype):
    x = random_input(1, 4, 6).to(dtype)
    assert FourierMap(4)(x).dtype == FourierMixing()(Tokens(x)).dtype == dtype


def test_a_shorter_text_has_another_map():
    """Not the corner of a longer one, as that of a static weight would be."""
    assert not torch.allclose(FourierMap(8).dense()[:, :4, :4], FourierMap(4).dense())


@pytest.mark.parametrize(("n", "d"), [(1, 1), (5, 4), (6, 6)])
def test_the_mixing_is_two_terms(n, d):
    """The real part of the transform along both axes, as its two terms and as a sum over everything."""
    x = random_input(2, n, d)
    record = Record(frozenset(["maps"]))
    mixed = FourierMixing()(Tokens(x, record=record))
    terms = FourierMixing().terms(n, d, torch.float64)
    torch.testing.assert_close(mixed, sum(m @ x @ w for m, w in terms), rtol=1e-11, atol=1e-11)
    naive = torch.zeros_like(x)
    for k in range(n):
        for c in range(d):
            for i in range(n):
                for e in range(d):
                    naive[:, k, c] += math.cos(2 * math.pi * (k * i / n + c * e / d)) * x[:, i, e]
    torch.testing.assert_close(mixed, naive, rtol=1e-11, atol=1e-11)
    (maps,) = record.of("maps")
    assert torch.equal(maps, torch.cat([m for m, _ in terms]))
    assert maps.shape == (2, n, n)
    if n > 2 and d > 2:
        operator = sum(torch.kron(m[0].flatten()[:, None], w.flatten()[None]) for m, w in terms)
        assert int(torch.linalg.matrix_rank(operator)) == 2


def test_mistakes():
    with pytest.raises(MixlabError, match="unknown part of a Fourier transform 'sin'"):
        FourierMap(4, "sin")
    with pytest.raises(MixlabError, match="of 0 tokens; give at least 1"):
        FourierMap(0)
