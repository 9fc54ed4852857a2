"""The gMLP and aMLP blocks against their naive reference, stochastic depth, padding, and how a new block begins."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from hypothesis import given

from mixlab import MixlabError
from mixlab.archs.amlp import AMLPConfig
from mixlab.archs.amlp import Block as AMLPBlock
from mixlab.layers import DropPath, GMLPBlock, Tokens
from mixlab.layers.drop_path import drop_path_rate
from tests.layers.common import GATES, both_ways, few_examples, padded_batches, sizes, structures
from tests.reference.block import block as reference_block
from tests.reference.block import gelu, gelu_tanh
from tests.reference.compare import assert_same, mask_of, positions_of, random_input, randomised

D, CAP = 6, 9
ACTIVATIONS = {"gelu": gelu, "gelu_pytorch_tanh": gelu_tanh}
paddings = pytest.mark.parametrize("padding", ["full", "right", "left", "holes"])


def gmlp(kind="split", structure="dense", width=12, heads=3, causal=False, **more) -> GMLPBlock:
    return randomised(GMLPBlock(D, width, CAP, gate=kind, structure=structure, heads=heads, causal=causal, **more))


def amlp(kind="split", structure="dense", width=12, heads=3, causal=False, **more) -> AMLPBlock:
    config = AMLPConfig(
        hidden_size=D,
        intermediate_size=width,
        max_position_embeddings=CAP,
        gate=kind,
        spatial_structure=structure,
        gate_heads=heads,
        causal=causal,
        pooling="last" if causal else "cls",
        attention_size=9,
        **more,
    )
    return randomised(AMLPBlock(config, 0))


def reference(**options):
    return lambda p, mask, x: reference_block(x, p, mask=mask, **options)


@sizes
@GATES
@structures
@both_ways
@paddings
def test_gmlp_against_reference(kind, structure, causal, n, width, heads, padding):
    """Through `forward(x, mask)`, wherever the mask hides tokens."""
    block, mask = gmlp(kind, structure, width, heads, causal), mask_of(padding, n)
    assert_same(block, partial(block, mask=mask), reference(kind=kind, causal=causal), random_input(2, n, D), mask=mask)


@sizes
@GATES
@structures
@both_ways
@paddings
def test_amlp_against_reference(kind, structure, causal, n, width, heads, padding):
    """Its attention reads the normalised input and joins the gate before the product."""
    block, mask = amlp(kind, structure, width, heads, causal, num_attention_heads=heads), mask_of(padding, n)
    positions = None if padding in ("full", "right") else positions_of(mask)
    assert_same(
        block,
        lambda x: block(Tokens(x, mask, positions)).x,
        reference(kind=kind, causal=causal, heads=heads),
        random_input(2, n, D),
        mask=mask,
    )


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activation(activation):
    """The exact gelu by default; the two differ by up to 5e-4, far beyond the tolerance."""
    more = {} if activation == "gelu" else {"activation": activation}
    assert_same(block := gmlp(**more), block, reference(activation=ACTIVATIONS[activation]), random_input(2, 5, D))


@structures
@both_ways
@pytest.mark.parametrize("rubbish", [0.0, float("nan")], ids=str)
@given(batch=padded_batches(CAP, D))
@few_examples
def test_padded_equals_alone(structure, causal, rubbish, batch):
    """Neither padding, left, right or in between, nor what it holds, nor the neighbours in the batch change a text."""
    mask, x = batch
    block = gmlp(structure=structure, causal=causal)
    out = block(x.masked_fill(~mask[..., None], rubbish), mask)
    for row, own, real in zip(out, x, mask, strict=True):
        torch.testing.assert_close(row[real], block(own[real][None])[0], rtol=1e-12, atol=1e-12)


@structures
@both_ways
@pytest.mark.parametrize("rubbish", [0.0, float("nan")], ids=str)
def test_amlp_padded_equals_alone(structure, causal, rubbish):
    block, mask, x = amlp(structure=structure, causal=causal), mask_of("holes", 7), random_input(2, 7, D)
    out = block(Tokens(x.masked_fill(~mask[..., None], rubbish), mask, positions_of(mask))).x
    for row, own, real in zip(out, x, mask, strict=True):
        torch.testing.assert_close(row[real], block(Tokens(own[real][None])).x[0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("make", [gmlp, amlp], ids=["gmlp", "amlp"])
@structures
def test_causal(make, structure):
    block = make(structure=structure, causal=True)
    jacobian = torch.autograd.functional.jacobian(lambda x: block.forward(Tokens(x)).x if make is amlp else block(x), random_input(1, 6, D))
    influence = jacobian[0, :, :, 0].abs().sum((1, 3))
    assert torch.equal(influence.triu(1), torch.zeros(6, 6, dtype=torch.float64))
    assert (influence.tril() > 0).sum() == 21


@structures
@pytest.mark.parametrize("kind", ["multiplicative", "split"])
def test_new_block_is_its_ffn(kind, structure):
    """At the start, x + V u: no token reads another but by W's near-zero numbers.

    The gate is 1 + W norm(v), and the second term a sum of n independent numbers with deviation 1e-3: sqrt(n) / 1000 = 0.008 for
    n = 64. So the branch differs from V u by that part of itself, up to a factor of 2 for chance; without W, by nothing but rounding.
    """
    torch.manual_seed(0)
    n = 64
    block = GMLPBlock(16, 64, n, gate=kind, structure=structure).double()
    x = random_input(4, n, 16)
    z = block.activation(block.U(block.norm(x)))
    u = z[..., :32] if kind == "split" else z
    mixed = u @ block.V.weight.T
    error = (block(x) - (x + block.V(u))).norm() / mixed.norm()
    assert 0 < error < 2e-3 * n**0.5
    next(block.gate.spatial.parameters()).data.zero_()
    torch.testing.assert_close(block(x), x + block.V(u), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_drop_path(rate):
    """Each sample on its own is dropped whole or rescaled whole, and the mean stays what it was."""
    torch.manual_seed(0)
    samples = 20_000
    out = DropPath(rate)(torch.ones(samples, 3, 2, dtype=torch.float64))
    assert torch.equal(out, out[:, :1, :1].expand_as(out))
    kept = out[:, 0, 0] > 0
    torch.testing.assert_close(out[kept], torch.full_like(out[kept], 1 / (1 - rate)))
    deviation = (rate / (1 - rate) / samples) ** 0.5  # of the mean
    assert abs(out.mean().item() - 1) < 4 * deviation
    assert 0 < kept.sum() < samples


@pytest.mark.parametrize("drop", [DropPath(0.5).eval(), DropPath(0.0)], ids=["evaluation", "rate 0"])
def test_drop_path_off(drop):
    x = torch.randn(4, 3, 2)
    assert torch.equal(drop(x), x)


@pytest.mark.parametrize("rate", [-0.1, 1.0, 1.5])
def test_drop_path_rates(rate):
    """To drop every sample leaves nothing to rescale: 0 / 0."""
    with pytest.raises(MixlabError, match=str(rate)):
        DropPath(rate)


def test_drop_path_schedules():
    """Linear: from 0 at the first block to the full rate at the last. Constant: the same everywhere. One block has the rate."""
    assert [drop_path_rate(0.2, "linear", layer, 5) for layer in range(5)] == pytest.approx([0, 0.05, 0.1, 0.15, 0.2])
    assert {drop_path_rate(0.2, "constant", layer, 5) for layer in range(5)} == {0.2}
    assert drop_path_rate(0.2, "linear", 0, 1) == drop_path_rate(0.2, "constant", 0, 1) == 0.2


@pytest.mark.parametrize("make", [gmlp, amlp], ids=["gmlp", "amlp"])
def test_dropped_branch_leaves_the_residual(make):
    """A sample whose branch is dropped leaves the block as it came, the others with twice the branch."""
    torch.manual_seed(0)
    block = make(drop_path=0.5)
    x = random_input(1, 5, D).expand(64, -1, -1)
    run = block if make is gmlp else lambda x: block(Tokens(x)).x
    branch = run(x) - x
    block.eval()
    whole = run(x) - x
    dropped = (branch == 0).all(2).all(1)
    assert 16 < dropped.sum() < 48
    torch.testing.assert_close(branch[~dropped], 2 * whole[~dropped])


def test_dropout_only_in_training():
    block, x = gmlp(dropout=0.5), random_input(2, 5, D)
    assert not torch.equal(block(x), block(x))
    block.eval()
    assert torch.equal(block(x), block(x))


MISTAKES = {
    "odd width": (lambda: GMLPBlock(4, 7, 3), "7 is odd"),
    "heads": (lambda: GMLPBlock(4, 10, 3, heads=3), "5 gated channels cannot be shared by 3"),
    "gate": (lambda: GMLPBlock(4, 8, 3, gate="splitt"), "did you mean 'split'"),
    "structure": (lambda: GMLPBlock(4, 8, 3, structure="circulant"), "unknown structure 'circulant'"),
    "activation": (lambda: GMLPBlock(4, 8, 3, activation="gelu_new"), "'gelu_new'"),
    "no channels": (lambda: GMLPBlock(0, 8, 3), "a block of 0 channels"),
    "another width": (lambda: GMLPBlock(4, 8, 3)(torch.zeros(1, 3, 5)), r"x of shape \(1, 3, 5\), expected \(batch, tokens, 4\)"),
    "no batch": (lambda: GMLPBlock(4, 8, 3)(torch.zeros(3, 4)), r"x of shape \(3, 4\)"),
    "long": (lambda: GMLPBlock(4, 8, 3)(torch.zeros(1, 4, 4)), "4 tokens, but this gate reads at most 3"),
    "mask": (lambda: GMLPBlock(4, 8, 3)(torch.zeros(1, 3, 4), torch.ones(1, 2)), r"mask of shape \(1, 2\), expected \(1, 3\)"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes(mistake):
    """Refused in one line that names the value, never ignored."""
    do, says = MISTAKES[mistake]
    with pytest.raises(MixlabError, match=says) as caught:
        do()
    assert "\n" not in str(caught.value)
