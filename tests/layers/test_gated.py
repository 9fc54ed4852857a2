"""GLU, highway and squeeze-and-excitation against naive loops, their counts, and what they refuse."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from mixlab import MixlabError
from mixlab.layers import GLU, Highway, SqueezeExcite
from tests.reference import gated
from tests.reference.compare import assert_same, mask_of, random_input, randomised


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("gate", gated.GATES)
def test_glu_against_reference(gate: str, bias: bool) -> None:
    layer = randomised(GLU(4, 3, gate=gate, bias=bias))
    assert_same(layer, layer, lambda p, _, x: gated.glu(x, p, gate), random_input(2, 5, 4))


@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_highway_against_reference(activation: str) -> None:
    layer = randomised(Highway(4, activation=activation))
    assert_same(layer, layer, lambda p, _, x: gated.highway(x, p, activation), random_input(2, 5, 4))


def test_highway_begins_by_passing_on() -> None:
    """b_T = -2: 88% of the input goes through; far below 0, all of it. `reset_parameters` comes back to it."""
    x = random_input(2, 5, 4).float()
    layer = Highway(4)
    assert torch.equal(layer.gate.bias, torch.full((4,), -2.0))
    closed = Highway(4, bias_init=-50.0)
    torch.testing.assert_close(closed(x), x)
    nn.init.zeros_(layer.gate.bias)
    layer.reset_parameters()
    assert torch.equal(layer.gate.bias, torch.full((4,), -2.0))


@pytest.mark.parametrize("padding", ["full", "right", "left", "holes"])
def test_squeeze_excite_against_reference(padding: str) -> None:
    layer, mask = randomised(SqueezeExcite(6, reduction=2)), mask_of(padding, 5)
    assert_same(layer, lambda x: layer(x, mask), lambda p, row, x: gated.squeeze_excite(x, p, row), random_input(2, 5, 6), mask=mask)


def test_squeeze_excite_never_reads_padding() -> None:
    layer, mask, x = randomised(SqueezeExcite(6, reduction=2)), mask_of("left", 5), random_input(2, 5, 6)
    noisy = layer(x.masked_fill(~mask[..., None], float("nan")), mask)
    torch.testing.assert_close(noisy[mask], layer(x, mask)[mask])
    torch.testing.assert_close(noisy[1, mask[1]], layer(x[1:, mask[1]])[0])


def test_squeeze_excite_is_blind_to_order() -> None:
    layer, x, order = randomised(SqueezeExcite(6, reduction=3)), random_input(2, 7, 6), torch.randperm(7)
    torch.testing.assert_close(layer(x[:, order]), layer(x)[:, order])


# Parameters, and multiply-adds for n tokens, of d = 32 channels.
COUNTS = {
    "glu": (GLU, (32, 48), 2 * 32 * 48 + 2 * 48, lambda n: n * 2 * 32 * 48),
    "highway": (Highway, (32,), 2 * 32 * 32 + 2 * 32, lambda n: 2 * n * 32 * 32),
    "se": (SqueezeExcite, (32,), 2 * 32 * 32 // 16 + 32 // 16 + 32, lambda n: 2 * 32 * 32 // 16),
}


@pytest.mark.parametrize("name", COUNTS)
def test_counts(name: str) -> None:
    build, sizes, params, macs = COUNTS[name]
    with torch.device("meta"):
        layer, x = build(*sizes), torch.zeros(1, 7, 32)
    assert sum(p.numel() for p in layer.parameters()) == params
    with FlopCounterMode(display=False) as counter:
        layer(x)
    assert counter.get_total_flops() == 2 * macs(7)


MISTAKES = {
    "glu gate": (lambda: GLU(4, 3, gate="sigmiod"), "did you mean 'sigmoid'"),
    "glu channels": (lambda: GLU(4, 0), "from 4 to 0 channels"),
    "highway activation": (lambda: Highway(4, activation="rely"), "did you mean 'relu'"),
    "highway channels": (lambda: Highway(0), "a highway of 0 channels"),
    "highway bias": (lambda: Highway(4, bias_init=1.0), "bias_init is 1.0: .* give a number below 0"),
    "se": (lambda: SqueezeExcite(20), "20 channels cannot be squeezed by reduction=16; choose a divisor"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes(mistake: str) -> None:
    """Refused in one line that names the value."""
    do, says = MISTAKES[mistake]
    with pytest.raises(MixlabError, match=says) as caught:
        do()
    assert "\n" not in str(caught.value)
