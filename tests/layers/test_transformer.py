"""The block with its norms before the branches, against the formula, written out."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from mixlab.layers import FeedForward, PreNormBlock, ScaledLinear, SelfAttention, Tokens
from tests.layers.common import both_ways
from tests.reference.attention import attention as reference_attention
from tests.reference.compare import assert_same, mask_of, random_input, randomised


@both_ways
@pytest.mark.parametrize("padding", ["full", "right"])
def test_against_the_formula(causal, padding):
    block = PreNormBlock(6, SelfAttention(6, 6, 4, heads=2, causal=causal), FeedForward(6, 10), eps=1e-3)
    randomised(block)
    mask = mask_of(padding, 5)

    def reference(p, mask, x):
        def norm(x, name):
            return F.layer_norm(x, (6,), p[f"{name}.weight"], p[f"{name}.bias"], 1e-3)

        projections = (p[f"attention.{part}"] for part in ("qkv.weight", "qkv.bias", "out.weight", "out.bias"))
        x = x + reference_attention(norm(x, "attention_norm"), *projections, heads=2, causal=causal, mask=mask)
        wide = F.gelu(norm(x, "ffn_norm") @ p["ffn.widen.weight"].mT + p["ffn.widen.bias"])
        return x + wide @ p["ffn.narrow.weight"].mT + p["ffn.narrow.bias"]

    assert_same(block, lambda x: block(Tokens(x, mask)).x, reference, random_input(2, 5, 6), mask=mask)


def test_dropout_and_stochastic_depth_belong_to_training():
    block = PreNormBlock(6, SelfAttention(6, 6, 4), FeedForward(6, 10), dropout=0.5, drop_path=0.5)
    x = Tokens(torch.randn(8, 5, 6))
    assert not torch.equal(block(x).x, block(x).x)
    block.eval()
    assert torch.equal(block(x).x, block(x).x)


@pytest.mark.parametrize("bias", [True, False])
def test_a_scaled_projection_begins_as_told_and_is_one(bias):
    layer = ScaledLinear(300, 200, std=0.003, bias=bias)
    assert layer.weight.std().item() == pytest.approx(0.003, rel=0.05)
    assert (layer.bias is not None) == bias
    assert layer.bias is None or not layer.bias.any()
    x = torch.randn(4, 300)
    assert torch.equal(layer(x), F.linear(x, layer.weight, layer.bias))
