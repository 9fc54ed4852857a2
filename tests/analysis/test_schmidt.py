"""Terms of linear layers: their sum is the layer again, and there are as many as its structure says; what is not linear is refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mixlab.maps
from mixlab import MixlabError
from mixlab.analysis import decompose, schmidt_rank
from mixlab.layers import GLU, DynamicConv, FeedForward, Highway, LightConv, SelfAttention, SpatialGate, SqueezeExcite
from mixlab.layers.fourier import FourierMixing
from mixlab.layers.patches import as_image, as_tokens
from mixlab.maps import (
    BandedMap,
    BandedWeight,
    BlockDiagonalMap,
    DenseMap,
    DenseWeight,
    DynamicBandedMap,
    FourierMap,
    GridBandedMap,
    IdentityMap,
    LowRankMap,
    LowRankWeight,
    PoolMap,
    SoftmaxMap,
    ToeplitzMap,
    ToeplitzWeight,
    Windows,
)
from mixlab.maps.selection import cutting
from tests.reference.compare import random_input, randomised

ROWS = {
    "Terms M X W of every token map and linear layer: their sum [the layer itself, einsum]": "test_the_terms_sum_to_the_layer",
    "Terms M X W: as many as the structure declares [closed form]": "test_there_are_as_many_terms_as_declared",
    "Terms M X W: none can be spared [orthogonality]": "test_the_terms_are_the_fewest",
    "Terms M X W: what is not linear has none [error]": "test_what_is_not_linear_is_refused",
}
N, D = 8, 4
GRID = (2, 4)


def full(tokens: int, channels: int, written: int, out: int) -> nn.Sequential:
    """All tokens and channels to all."""
    return nn.Sequential(nn.Flatten(1), nn.Linear(tokens * channels, written * out), nn.Unflatten(1, (written, out)))


def as_it_is(layer: Any) -> Callable[[Tensor], Tensor]:
    return layer


def on_sequences(layer: Any) -> Callable[[Tensor], Tensor]:
    return lambda x: layer(x.mT).mT


def on_images(layer: Any) -> Callable[[Tensor], Tensor]:
    return lambda x: as_tokens(layer(as_image(x, GRID)))


def queries(heads: int, samples: int = 1, tokens: int = N) -> tuple[Tensor, Tensor]:
    """And keys."""
    return random_input(samples, heads, tokens, 3), random_input(samples, heads, tokens, 3, seed=2)


def windows() -> BlockDiagonalMap:
    cut = Windows((2, 4), 2, shift=1)
    near = cut.neighbours()
    return BlockDiagonalMap(SoftmaxMap(*queries(D, cut.count, 4), allowed=None if near is None else near[:, None]), cut)


# A layer for N tokens of D channels, how it is called, and how many terms it must have.
MAPS = {
    "identity": (lambda: IdentityMap(N), 1),
    "dense": (lambda: DenseMap(random_input(1, 5, N)), 1),
    "dense per head": (lambda: DenseMap(random_input(2, 5, N)), 2),
    "dense per channel": (lambda: DenseMap(random_input(D, N, N)), D),
    "toeplitz": (lambda: ToeplitzMap(random_input(2, 2 * N - 1)), 2),
    "banded": (lambda: BandedMap(random_input(2, 3), N, 1), 2),
    "banded per channel": (lambda: BandedMap(random_input(D, 3), N, 1), 3),
    "banded on a grid": (lambda: GridBandedMap(random_input(D, 1, 3), GRID), 3),
    "dynamic banded": (lambda: DynamicBandedMap(random_input(1, 2, N, 3), 1), 2),
    "low rank": (lambda: LowRankMap(random_input(2, N, 1), random_input(2, 1, N)), 2),
    "fourier": (lambda: FourierMap(N, "sine"), 1),
    "pool": (lambda: PoolMap(GRID), 1),
    "pool, less the token itself": (lambda: PoolMap(GRID, less_itself=True), 1),
    "windows, one map for all": (lambda: BlockDiagonalMap(DenseMap(random_input(2, 4, 4)), Windows((2, 4), 2)), 2),
    "windows of attention, shifted": (windows, D),
    "softmax": (lambda: SoftmaxMap(*queries(2)), 2),
    "softmax with a bias": (lambda: SoftmaxMap(*queries(2), bias=random_input(1, 2, N, N)), 2),
    "softmax with keys of distances": (lambda: SoftmaxMap(*queries(2), relative=random_input(2, 2 * N - 1, 3)), 2),
    "softmax causal": (lambda: SoftmaxMap(*queries(D), causal=True), D),
    "dense weight": (lambda: randomised(DenseWeight(9, 2)), 2),
    "toeplitz weight": (lambda: randomised(ToeplitzWeight(9, D)), D),
    "banded weight": (lambda: randomised(BandedWeight(5, D, softmax=True)), D),
    "low-rank weight": (lambda: randomised(LowRankWeight(9, 2)), 1),
}
LAYERS = {
    "fully connected": (lambda: full(N, D, N, D), as_it_is, D * D),
    "fully connected, fewer tokens than channels": (lambda: full(N, D, 1, D), as_it_is, N),
    "linear over channels": (lambda: nn.Linear(D, 5), as_it_is, 1),
    "1 x 1 convolution": (lambda: nn.Conv1d(D, 5, 1), on_sequences, 1),
    "convolution": (lambda: nn.Conv1d(D, 5, 3, padding=1), on_sequences, 3),
    "convolution with a stride": (lambda: nn.Conv1d(D, 5, 3, stride=2), on_sequences, 3),
    "convolution wider than the text": (lambda: nn.Conv1d(D, 5, 19, padding="same"), on_sequences, 2 * N - 1),
    "dilated convolution": (lambda: nn.Conv1d(D, 5, 3, dilation=4, padding=4), on_sequences, 3),
    "grouped convolution": (lambda: nn.Conv1d(D, D, 5, padding=2, groups=D), on_sequences, D),
    "depthwise convolution": (lambda: nn.Conv1d(D, D, 3, padding=1, groups=D), on_sequences, 3),
    "one channel": (lambda: nn.Conv1d(D, 1, 9, padding=4), on_sequences, D),
    "depthwise separable": (lambda: nn.Sequential(nn.Conv1d(D, D, 3, padding=1, groups=D), nn.Conv1d(D, 7, 1)), on_sequences, 3),
    "1 x 1 on an image": (lambda: nn.Conv2d(D, 5, 1), on_images, 1),
    "3 x 3 on an image": (lambda: nn.Conv2d(D, 5, 3, padding=1), on_images, 9),
    "5 x 5 on a small image": (lambda: nn.Conv2d(D, 5, 5, padding=2), on_images, 3 * 5),
    "patches": (lambda: nn.Conv2d(D, 30, 2, stride=2), on_images, 4),
    "depthwise on an image": (lambda: nn.Conv2d(D, D, (1, 3), padding=(0, 1), groups=D), on_images, 3),
    "separable on an image": (
        lambda: nn.Sequential(nn.Conv2d(D, D, (1, 3), padding=(0, 1), groups=D), nn.Conv2d(D, 6, 1)),
        on_images,
        3,
    ),
}
ALL = {**{name: (build, None, terms) for name, (build, terms) in MAPS.items()}, **LAYERS}
every = pytest.mark.parametrize("name", ALL)


def make(name: str) -> tuple[Any, Callable[[Tensor], Tensor], int]:
    build, call, terms = ALL[name]
    layer = build()
    if isinstance(layer, nn.Module):
        layer = randomised(layer)
    if call is None:
        return layer, layer.at(N) if hasattr(layer, "at") else layer, terms
    return layer, call(layer), terms


def test_every_kind_of_map_is_among_them() -> None:
    kinds = {cls for name, cls in vars(mixlab.maps).items() if name.endswith("Map") and name != "TokenMap"}
    assert kinds <= {type(make(name)[1]) for name in MAPS}


@every
def test_the_terms_sum_to_the_layer(name: str) -> None:
    layer, run, _ = make(name)
    found = decompose(layer, N, D, grid=GRID)
    x = random_input(3, N, D, seed=5)
    expected = torch.cat([run(sample[None]) for sample in x])  # attention with fixed queries and keys is of one sample
    torch.testing.assert_close(found(x), expected, rtol=1e-9, atol=1e-9)
    # The same, written out.
    total = sum(torch.einsum("mn,nd,de->me", term.M, x[0], term.W) for term in found.terms) + found.offset
    torch.testing.assert_close(total, expected[0], rtol=1e-9, atol=1e-9)


@every
def test_there_are_as_many_terms_as_declared(name: str) -> None:
    layer, _, terms = make(name)
    found = decompose(layer, N, D, grid=GRID)
    assert found.rank == len(found.terms) == terms
    assert schmidt_rank(layer, N, grid=GRID) == terms


@every
def test_the_terms_are_the_fewest(name: str) -> None:
    """Both factors of different terms are orthogonal, so that none of them can be spared; the heaviest come first."""
    layer, _, terms = make(name)
    found = decompose(layer, N, D, grid=GRID)
    for factors in ([term.M.flatten() for term in found.terms], [term.W.flatten() for term in found.terms]):
        gram = torch.stack(factors) @ torch.stack(factors).T
        torch.testing.assert_close(gram, torch.diag(found.weights), rtol=1e-9, atol=1e-9)
    assert found.weights.tolist() == sorted(found.weights.tolist(), reverse=True)
    assert found.share(terms) == pytest.approx(1)
    assert terms == 1 or found.share(terms - 1) < 1


def test_biases_are_the_offset() -> None:
    layer = randomised(nn.Linear(D, 5))
    found = decompose(layer, N, D)
    torch.testing.assert_close(found.offset, layer.bias.expand(N, 5))
    torch.testing.assert_close(found.terms[0].M / found.terms[0].M[0, 0], torch.eye(N, dtype=torch.float64), atol=1e-12, rtol=0)


def test_sums_of_terms_by_hand_are_found_again() -> None:
    """FNet's mixing: the real part of a Fourier transform along both axes is C X C' - S X S'."""
    found = decompose(lambda x: torch.fft.fft2(x).real, N, D)
    assert found.rank == 2

    def waves(n: int, wave: Callable[[Tensor], Tensor]) -> Tensor:
        places = torch.arange(n, dtype=torch.float64)
        return wave(2 * math.pi * places[:, None] * places / n)

    x = random_input(N, D)
    expected = waves(N, torch.cos) @ x @ waves(D, torch.cos) - waves(N, torch.sin) @ x @ waves(D, torch.sin)
    torch.testing.assert_close(found(x), expected, rtol=1e-9, atol=1e-9)


def test_how_near_to_separable() -> None:
    """A separable layer and a little noise: one term explains nearly all of it, and no fewer than all terms explain it all."""
    M, W, noise = random_input(N, N), random_input(D, D, seed=2), random_input(N, N, D, D, seed=3)
    operator = torch.einsum("mn,de->mnde", M, W) + 0.01 * noise
    found = decompose(lambda x: torch.einsum("mnde,bnd->bme", operator, x), N, D)
    assert found.rank == D * D
    assert 0.99 < found.share(1) < 1


def test_layers_of_this_library() -> None:
    """What mixes by position alone; tokens are handed over where a layer asks for them."""
    assert decompose(randomised(LightConv(D, 3, 2)), N, D).rank == 2
    assert decompose(FourierMixing(), N, D).rank == len(FourierMixing().terms(N, D)) == 2
    assert decompose(nn.BatchNorm1d(D).eval(), N, D).rank == 1
    assert decompose(lambda x: cutting(N, 2, 5).double() @ x, N, D).rank == 1  # fewer tokens come out
    assert decompose(lambda x: x - x.mean(1, keepdim=True), N, D).rank == 1
    assert decompose(lambda x: 0 * x, N, D).rank == 0
    assert decompose(SoftmaxMap(torch.randn(1, 2, N, 3), torch.randn(1, 2, N, 3)), N, D).rank == 2  # in float32


def test_the_layer_is_left_alone() -> None:
    layer = nn.Linear(D, D)
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    decompose(layer, N, D)
    assert all(value.dtype == torch.float32 and torch.equal(value, before[name]) for name, value in layer.state_dict().items())


NOT_LINEAR = {
    "feed-forward": lambda: FeedForward(D, 8),
    "relu": nn.ReLU,
    "layer norm": lambda: nn.LayerNorm(D),
    "batch norm in training": lambda: nn.BatchNorm1d(D),
    "glu": lambda: GLU(D, D),
    "highway": lambda: Highway(D),
    "squeeze-and-excitation": lambda: SqueezeExcite(D, reduction=2),
    "attention": lambda: SelfAttention(D, D, D),
    "dynamic convolution": lambda: DynamicConv(D, 3, 2),
    "gate": lambda: SpatialGate(D, N),
    "a function": lambda: lambda x: x @ x.mT @ x,
}


@pytest.mark.parametrize("name", NOT_LINEAR)
def test_what_is_not_linear_is_refused(name: str) -> None:
    layer = NOT_LINEAR[name]()
    layer = randomised(layer) if isinstance(layer, nn.Module) else layer
    with pytest.raises(MixlabError, match=r"is not linear: off by .*; decompose its linear parts") as caught:
        decompose(layer, N, D)
    assert "\n" not in str(caught.value)


MISTAKES = {
    "dropout": (lambda: decompose(nn.Dropout(0.5), N, D), "Dropout answers the same input differently; call eval"),
    "no grid": (lambda: decompose(nn.Conv2d(D, D, 3), N, D), r"say with grid=\(rows, columns\)"),
    "another grid": (lambda: decompose(nn.Linear(D, D), N, D, grid=(2, 2)), r"8 tokens of 4 channels on the grid \(2, 2\)"),
    "no token": (lambda: decompose(nn.Linear(D, D), 0, D), "0 tokens of 4 channels"),
    "too large": (lambda: decompose(nn.Identity(), 512, 64), "1,073,741,824 numbers, more than 16,777,216"),
    "a map of two samples": (lambda: decompose(DynamicBandedMap(random_input(2, 1, N, 3), 1), N, D), r"makes \(2, 8, 4\) of \(1, 8, 4\)"),
    "not a layer": (lambda: decompose("convolution", N, D), "a str is not a layer"),
    "no closed form": (lambda: schmidt_rank(nn.ReLU(), N), r"of this ReLU; decompose\(...\).rank counts them"),
    "two wide layers": (lambda: schmidt_rank(nn.Sequential(nn.Conv1d(2, 2, 3), nn.Conv1d(2, 2, 3)), N), "of this Sequential"),
    "closed form without a grid": (lambda: schmidt_rank(nn.Conv2d(D, D, 3), N), r"grid=\(rows, columns\)"),
    "border": (lambda: schmidt_rank(nn.Conv1d(D, D, 3, padding=1, padding_mode="circular"), N), "padding_mode='circular'"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes(mistake: str) -> None:
    """Refused in one line that names the value."""
    do, says = MISTAKES[mistake]
    with pytest.raises(MixlabError, match=says) as caught:
        do()
    assert "\n" not in str(caught.value)


def test_two_wide_layers_are_counted() -> None:
    """Two kernels of 3 are one of 5: fewer terms than the product, in the middle of a text at least."""
    layer = randomised(nn.Sequential(nn.Conv1d(D, D, 3), nn.Conv1d(D, D, 3)))
    assert decompose(layer, 9, D).rank == 5
    assert math.prod(schmidt_rank(part, 9) for part in layer) == 9
