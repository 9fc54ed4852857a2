"""The spatial gate against its naive reference, and what follows from the paper: padding, cropping, causality, initialisation."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given

from mixlab import MixlabError
from mixlab.layers import SpatialGate, Tokens
from tests.layers.common import GATES, Past, both_ways, few_examples, padded_batches, sizes, structures
from tests.reference.block import spatial_weight
from tests.reference.compare import assert_same, mask_of, positions_of, random_input, randomised
from tests.reference.gate import gate as reference_gate

CAP = 9  # longer than any text below, so that W and b are always cropped


def make(kind="split", structure="dense", width=12, heads=3, causal=False, **more) -> SpatialGate:
    return randomised(SpatialGate(width, CAP, gate=kind, structure=structure, heads=heads, causal=causal, **more))


def reference(gate: SpatialGate, *, causal: bool = False, tanh: bool = False):
    def run(p, mask, z, extra=None):
        W = spatial_weight(p, "spatial.", len(z), causal)
        norm = (p["norm.weight"], p["norm.bias"])
        return reference_gate(z, W, p["bias"], *norm, kind=gate.gate, causal=causal, mask=mask, extra=extra, tanh=tanh)

    return run


@sizes
@GATES
@structures
@both_ways
@pytest.mark.parametrize("padding", ["full", "right", "left", "holes"])
def test_against_reference(kind, structure, causal, n, width, heads, padding):
    """Padding on the right needs a mask alone; elsewhere, positions say where each token is in its own text."""
    gate = make(kind, structure, width, heads, causal)
    mask = mask_of(padding, n)
    positions = None if padding in ("full", "right") else positions_of(mask)
    assert_same(
        gate,
        lambda z: gate(z, Tokens(z, mask, positions)),
        reference(gate, causal=causal),
        random_input(2, n, width),
        mask=mask,
    )


@GATES
@structures
@pytest.mark.parametrize("activation", ["identity", "tanh"])
def test_extra_and_activation(kind, structure, activation):
    """`extra` joins f(v) before the activation and the product."""
    gate = make(kind, structure, activation=activation)
    z, extra = random_input(2, 5, 12), random_input(2, 5, gate.out_width, seed=3)
    assert_same(gate, lambda z, extra: gate(z, extra=extra), reference(gate, tanh=activation == "tanh"), z, extra)


@structures
@both_ways
@given(batch=padded_batches(CAP))
@few_examples
def test_padded_equals_alone(structure, causal, batch):
    """What the gate says about a text depends neither on its padding, be it NaN, nor on its neighbours."""
    mask, z = batch
    gate = make(structure=structure, causal=causal)
    out = gate(z.masked_fill(~mask[..., None], float("nan")), Tokens(z, mask, positions_of(mask)))
    for row, own, real in zip(out, z, mask, strict=True):
        torch.testing.assert_close(row[real], gate(own[real][None])[0], rtol=1e-12, atol=1e-12)


@structures
@both_ways
def test_padding_gets_no_gradient(structure, causal):
    gate = make(structure=structure, causal=causal)
    mask = mask_of("right", 7)
    z = random_input(2, 7, 12).requires_grad_()
    gate(z, Tokens(z, mask))[mask].sum().backward()
    assert torch.equal(z.grad[~mask], torch.zeros_like(z.grad[~mask]))


@GATES
@structures
def test_causal(kind, structure):
    """No output depends on a later token: exactly, also through positions."""
    gate = make(kind, structure, causal=True)
    z = random_input(1, 6, 12)
    places = torch.arange(6)[None]
    for tokens in (None, Tokens(z, None, places)):
        jacobian = torch.autograd.functional.jacobian(lambda z, tokens=tokens: gate(z, tokens).sum((0, 2)), z)[:, 0].abs().sum(-1)
        assert torch.equal(jacobian.triu(1), torch.zeros(6, 6, dtype=torch.float64))
        assert (jacobian.tril().diagonal() > 0).all()


@pytest.mark.parametrize("steps", [(1, 1, 1, 1, 1), (3, 2), (4, 1), (1, 4)], ids=str)
@pytest.mark.parametrize("padding", ["full", "left", "holes"])
@structures
def test_cached(structure, steps, padding):
    """Token by token, or in chunks, from a cache of the past: as in one go."""
    gate = make(structure=structure, causal=True)
    z, mask = random_input(2, 5, 12), mask_of(padding, 5)
    places = None if mask is None else positions_of(mask)
    whole = gate(z, Tokens(z, mask, places))
    past, out = Past(), []
    for step in steps:
        seen = past.tokens + step
        now = z[:, past.tokens : seen]
        seen_mask, seen_places = (None, None) if mask is None else (mask[:, :seen], places[:, :seen])
        out.append(gate(now, Tokens(now, seen_mask, seen_places, caches=[past], past=past.tokens)))
        past.tokens = seen
    counts = slice(None) if mask is None else mask
    torch.testing.assert_close(torch.cat(out, 1)[counts], whole[counts], rtol=1e-12, atol=1e-12)


@GATES
@structures
def test_initialisation(kind, structure):
    """W near 0; b = 1 where it multiplies, so that the gate opens as the identity on u, and 0 elsewhere."""
    torch.manual_seed(0)
    n = 64
    gate = SpatialGate(32, n, gate=kind, structure=structure)
    multiplies = kind in ("multiplicative", "split")
    assert torch.equal(gate.bias, torch.full((1, n), float(multiplies)))
    z = torch.randn(8, n, 32)
    u = z[..., :16] if kind == "split" else z
    closed = {"linear": torch.zeros_like(z), "additive": z}.get(kind, u)
    # W norm(v) is a sum of n independent terms with deviation 1e-3 * 1: sqrt(n) / 1000 = 0.008. That is the relative error where it
    # is multiplied by u, and the error itself where it is added. A W at a linear layer's default, 1 / sqrt(3 n), would give 0.58.
    deviation = n**0.5 * 1e-3
    error = (gate(z) - closed).pow(2).mean().sqrt() / (u.pow(2).mean().sqrt() if multiplies else 1.0)
    assert 0.5 * deviation < error < 2 * deviation


@GATES
def test_bias_init(kind):
    """An explicit start of b wins, and survives `reset_parameters`."""
    gate = SpatialGate(4, 3, gate=kind, bias_init=0.25)
    gate.reset_parameters()
    assert torch.equal(gate.bias, torch.full((1, 3), 0.25))


@GATES
@structures
@pytest.mark.parametrize("length", [5, 12])
def test_resize(kind, structure, length):
    """Shared positions act alike; a new position starts with b as a new gate has it, and with W = 0."""
    gate = make(kind, structure)
    n = min(length, CAP)
    z = random_input(2, n, 12)
    before, b = gate(z), gate.bias.detach().clone()
    gate.resize(length)
    assert torch.equal(gate(z), before)
    assert torch.equal(gate.bias[:, :n], b[:, :n])
    assert torch.equal(gate.bias[:, n:], torch.full((3, length - n), gate.bias_init, dtype=torch.float64))
    assert gate(random_input(2, length, 12)).shape == (2, length, gate.out_width)


@pytest.mark.parametrize("prefix", [0, 1])
def test_resize_image(prefix):
    """An image of equal tokens looks the same to W and b at any resolution."""
    gate = SpatialGate(4, prefix + 9, init_std=0.1).double()
    with torch.no_grad():
        gate.spatial.weight.fill_(0.3)
        gate.bias[:, :prefix], gate.bias[:, prefix:] = 0.2, 0.7
    token = random_input(1, 1, 4)
    before = gate(token.expand(1, prefix + 9, 4))
    gate.resize(prefix + 25, (3, 5), prefix)
    after = gate(token.expand(1, prefix + 25, 4))
    torch.testing.assert_close(after[:, :prefix], before[:, :prefix])
    torch.testing.assert_close(after[:, prefix:], before[:, -1:].expand(-1, 25, -1))


@structures
def test_make_causal(structure):
    gate = make(structure=structure)
    full = gate.spatial.at(CAP).dense()
    gate.make_causal()
    torch.testing.assert_close(gate.spatial.at(CAP).dense(), full.tril(), check_dtype=False, rtol=1e-6, atol=1e-6)


MISTAKES = {
    "odd width": (lambda: SpatialGate(7, 4), "7 is odd"),
    "heads, split": (lambda: SpatialGate(10, 4, heads=3), "5 gated channels cannot be shared by 3"),
    "heads": (lambda: SpatialGate(10, 4, gate="linear", heads=3), "10 gated channels cannot be shared by 3"),
    "no token": (lambda: SpatialGate(8, 0), "8 channels for 0 tokens"),
    "no channel": (lambda: SpatialGate(0, 4), "0 channels for 4 tokens"),
    "no head": (lambda: SpatialGate(10, 4, heads=0), "0 gate heads"),
    "gate": (lambda: SpatialGate(8, 4, gate="multiplicativ"), "did you mean 'multiplicative'"),
    "structure": (lambda: SpatialGate(8, 4, structure="circulant"), "unknown structure 'circulant'"),
    "activation": (lambda: SpatialGate(8, 4, activation="relu"), "'relu'"),
    "width": (lambda: SpatialGate(8, 4)(torch.zeros(1, 4, 6)), r"shape \(1, 4, 6\), expected \(batch, tokens, 8\)"),
    "no batch": (lambda: SpatialGate(8, 4)(torch.zeros(4, 8)), r"shape \(4, 8\), expected \(batch, tokens, 8\)"),
    "long": (lambda: SpatialGate(8, 4)(torch.zeros(1, 5, 8)), "5 tokens, but this gate reads at most 4"),
    "long with a past": (lambda: SpatialGate(8, 4)(torch.zeros(1, 1, 8), Tokens(torch.zeros(1, 1, 8), past=4)), "5 tokens"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes(mistake):
    """Refused in one line that names the value, never ignored."""
    do, says = MISTAKES[mistake]
    with pytest.raises(MixlabError, match=says) as caught:
        do()
    assert "\n" not in str(caught.value)


@GATES
def test_odd_width_without_split(kind):
    """Only the split gate needs an even width."""
    if kind != "split":
        assert SpatialGate(7, 4, gate=kind)(torch.zeros(1, 4, 7)).shape == (1, 4, 7)
