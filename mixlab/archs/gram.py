"""Tokens mixed by their own products: attention without a weight, f(X) = X X^T X.

    A = X + f(norm(X)) / (n d)      f(X) = X X^T X: token i reads token j as much as x_i and x_j point the same way
    Y = A + gelu(norm(A) W_1) W_2   W_1: d x c,  W_2: c x d

f keeps the shape n x d for any n, has no parameters, and is of degree 3. With X = U S V^T it is U S^3 V^T: the same rank and the same
singular vectors, the singular values cubed. Attention is what becomes of it with projections of X on either side and a softmax in between.
Divided by n d, products are means over channels and tokens, and a long text weighs no more than a short one; padding is not counted.
Causal: of X X^T the lower triangle, and n is the number of tokens so far. The order of the tokens is not seen, unless positions are added.

Axes: b batch, n tokens, t tokens seen so far, d channels.
"""

from __future__ import annotations

from functools import partial
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mixlab.accounting import Line, in_group
from mixlab.accounting.parts import embedding, feed_forward, gram, layer_norm, sums
from mixlab.layers import FeedForward, LearnedPositions, MetaFormerBlock, Tokens
from mixlab.layers.tokens import without_padding
from mixlab.maps import DenseMap
from mixlab.modeling.architecture import Architecture, Preset, stack
from mixlab.modeling.config import MixerConfig
from mixlab.modeling.traits import TASKS, Traits


class GramConfig(MixerConfig):
    """hidden_size = d, intermediate_size = c; without positions there is no longest sequence."""

    model_type = "mixlab-gram"

    intermediate_size: int = 2048
    positions: Literal["none", "learned"] = "none"
    hidden_act: Literal["gelu", "gelu_pytorch_tanh"] = "gelu"

    @property
    def traits(self) -> Traits:
        text, placed = self.modality == "text", self.positions == "learned"
        return Traits(
            masks=self.modality != "image",
            causal=text,
            length=("fixed" if self.modality == "image" else "cap") if placed else "any",
            modalities=("text", "image", "audio"),
            tasks=TASKS[self.modality],
            order=(3,),
            attention=False,
            equivariance="none" if placed or self.causal else "permutation",
            drops=True,
        )


class Gram(nn.Module):
    """X X^T X; `averaged`: the mean over channels and over the tokens that are read, in place of their sums."""

    order = 3

    def __init__(self, *, averaged: bool = False, causal: bool = False) -> None:
        super().__init__()
        self.averaged, self.causal = averaged, causal

    def forward(self, x: Float[Tensor, "b n d"], tokens: Tokens) -> Float[Tensor, "b n d"]:
        x = without_padding(x, tokens.mask)
        seen = x if tokens.cache is None else tokens.cache.append("gram", x)  # b t d
        products = x @ seen.mT  # b n t
        read = torch.ones_like(seen[..., 0], dtype=torch.bool) if tokens.mask is None else tokens.mask
        read = read.unsqueeze(-2)  # b 1 t
        if self.causal:
            read = read & (tokens.seen_places(seen.shape[1]).unsqueeze(-2) <= tokens.places().unsqueeze(-1))  # b n t
            products = products.masked_fill(~read, 0.0)
        if self.averaged:
            products = products / (x.shape[-1] * read.sum(-1, keepdim=True).clamp(min=1))
        mix = DenseMap(products.unsqueeze(1))  # b 1 n t
        tokens.keep("maps", mix.dense)
        return mix(seen)


class Block(MetaFormerBlock):
    def __init__(self, config: GramConfig, layer: int) -> None:
        d = config.hidden_size
        super().__init__(
            Gram(averaged=True, causal=config.causal),
            FeedForward(d, config.intermediate_size, activation=config.hidden_act),
            partial(nn.LayerNorm, d, eps=config.layer_norm_eps),
            dropout=config.hidden_dropout,
        )


class Body(nn.Module):
    """Positions, if there are any, then the blocks."""

    def __init__(self, config: GramConfig) -> None:
        super().__init__()
        placed = config.positions == "learned"
        self.positions = LearnedPositions(config.length, config.hidden_size, std=config.initializer_range) if placed else None
        self.stack = stack(config, Block)

    def forward(self, tokens: Tokens) -> Tokens:
        return self.stack(tokens if self.positions is None else tokens.with_x(self.positions(tokens)))


def account(config: GramConfig, n: int) -> list[Line]:
    """The lines of the body for n tokens."""
    d, c = config.hidden_size, config.intermediate_size
    block = [
        layer_norm("token norm", d, n),
        gram(n, d),
        layer_norm("channel norm", d, n),
        *feed_forward(d, c, n),
        sums(d, n, 2),
    ]
    start = [embedding("positions", config.length, d)] if config.positions == "learned" else []
    final = [layer_norm("final norm", d, n)] if config.final_norm else []
    return [*start, *in_group("body", block, times=config.num_hidden_layers), *final]


SMALL = {"num_hidden_layers": 4, "hidden_size": 64, "intermediate_size": 256}

PRESETS = {
    "gram-tiny": Preset(
        {**SMALL, "vocab_size": 2000, "max_position_embeddings": 128, "positions": "learned"}, "masked-lm", "tests and demos"
    ),
    "gram-tiny-image": Preset(
        {**SMALL, "modality": "image", "pooling": "mean", "image_size": 32, "patch_size": 4, "num_labels": 10},
        "image-classification",
        "tests and demos",
    ),
}

ARCH = Architecture("gram", GramConfig, body=Body, account=account, presets=PRESETS)
