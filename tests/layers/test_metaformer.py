"""The block that leaves the mixing open, and its scales, against the formula written out."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F

from mixlab.layers import FeedForward, MetaFormerBlock, SpatialGate, Tokens
from mixlab.layers.scale import Affine, LayerScale
from tests.reference.compare import assert_same, random_input, randomised

N, D = 5, 6


def make(**more) -> MetaFormerBlock:
    mixing = SpatialGate(D, N, gate="linear", norm=False)
    return MetaFormerBlock(mixing, FeedForward(D, 10), partial(Affine, D), scale=partial(LayerScale, D, 0.1), **more)


def test_against_the_formula():
    block = randomised(make())

    def reference(p, mask, x):
        def affine(x, name):
            return torch.stack([p[f"{name}.alpha"] * token + p[f"{name}.beta"] for token in x])

        mixed = p["token_mixing.spatial.weight"][0] @ affine(x, "token_norm") + p["token_mixing.bias"][0][:, None]
        x = x + mixed * p["token_scale.scale"]
        wide = F.gelu(affine(x, "channel_norm") @ p["channel_mixing.widen.weight"].mT + p["channel_mixing.widen.bias"])
        narrow = wide @ p["channel_mixing.narrow.weight"].mT + p["channel_mixing.narrow.bias"]
        return x + narrow * p["channel_scale.scale"]

    assert_same(block, lambda x: block(Tokens(x)).x, reference, random_input(2, N, D))


def test_beginnings():
    """The affine is the identity, the scale what was asked for, and both return there on reset."""
    for layer, name, value in ((Affine(D), "alpha", 1.0), (Affine(D), "beta", 0.0), (LayerScale(D, 0.25), "scale", 0.25)):
        randomised(layer)
        assert not (getattr(layer, name) == value).all()
        layer.reset_parameters()
        assert (getattr(layer, name) == value).all()
    x = torch.randn(2, N, D)
    assert torch.equal(Affine(D)(x), x)
    assert torch.equal(LayerScale(D, 0.25)(x), x / 4)


def test_dropout_and_stochastic_depth_belong_to_training():
    for more in ({"dropout": 0.5}, {"drop_path": 0.5}):
        block = make(**more)
        x = Tokens(torch.randn(8, N, D))
        assert not torch.equal(block(x).x, block(x).x)
        block.eval()
        assert torch.equal(block(x).x, block(x).x)
