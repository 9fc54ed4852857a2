"""aMLP: gMLP with a sip of attention in every gate (Liu et al. 2021, "Pay Attention to MLPs", arXiv:2105.08050, section 4.3).

    Z  = gelu(norm(X) U)                                      as in gMLP
    Z~ = u * (W norm(v) + b + attend(norm(X)))                [u, v] = Z
    Y  = X + Z~ V

    attend(x) = softmax(q k^T / sqrt(a)) v W_o,   [q, k, v] = x W_qkv,   one head of width a

The attention reads the block's normalised input (d channels, not the f expanded ones) and is added to the gate before the product.

Axes: b batch, n tokens, d model, f expanded, e gated, a attention.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor

from mixlab.accounting import Line, in_group
from mixlab.accounting.parts import attention, linear, sums
from mixlab.archs import gmlp
from mixlab.layers import SelfAttention, Tokens
from mixlab.modeling.architecture import Architecture, Preset, stack
from mixlab.modeling.config import Number
from mixlab.modeling.foreign import Importer, Rename, shape_of
from mixlab.modeling.traits import Traits


class AMLPConfig(gmlp.GMLPConfig):
    """gMLP's fields and those of the tiny attention."""

    model_type = "mixlab-amlp"

    attention_size: int = 64  # a
    num_attention_heads: int = 1
    qkv_bias: bool = True
    attention_dropout: Number = 0.0

    def __post_init__(self, **kwargs: object) -> None:
        super().__post_init__(**kwargs)
        self.check_split("attention_size", "num_attention_heads")

    @property
    def traits(self) -> Traits:
        mine = super().traits
        # q k^T v is of degree 3; under a product with u, 4.
        return replace(mine, order=(*mine.order, 2 + mine.order[0]), attention=True)


class Block(gmlp.Block):
    """gMLP's block, and the tiny attention beside its gate."""

    def __init__(self, config: AMLPConfig, layer: int) -> None:
        super().__init__(config, layer)
        self.attention = SelfAttention(
            config.hidden_size,
            config.gated_size,
            config.attention_size,
            heads=config.num_attention_heads,
            causal=config.causal,
            qkv_bias=config.qkv_bias,
            dropout=config.attention_dropout,
        )
        self.order = config.traits.order

    def forward(self, tokens: Tokens) -> Tokens:
        x = self.norm(tokens.x)  # b n d
        z = self.activation(self.U(x))  # b n f
        gated = self.gate(z, tokens, extra=self.attention(tokens.with_x(x)))  # b n e
        return tokens.with_x(self.add(tokens.x, self.V(gated)))  # b n d


def account(config: AMLPConfig, n: int) -> list[Line]:
    """gMLP's lines, and three per block for the attention."""
    d, e, a = config.hidden_size, config.gated_size, config.attention_size
    sip = [
        linear("W_qkv", d, 3 * a, n, bias=config.qkv_bias, shared=True),
        attention(n, n, a, config.num_attention_heads, channels=d, order=config.traits.order[-1]),
        linear("W_o", a, e, n),
        sums(e, n),
    ]
    return [*gmlp.account(config, n), *in_group("body", sip, times=config.num_hidden_layers)]


def _language(layers: int, d: int, a: int, published: str) -> Preset:
    settings = {"num_hidden_layers": layers, "hidden_size": d, "attention_size": a, "max_position_embeddings": 512}
    return Preset(settings, "masked-lm", "Tables 5 and 6", published, counted_as="flops-elementwise-labelled")


TINY = {**gmlp.TINY, "attention_size": 32}

PRESETS = {
    "amlp-base": _language(36, 512, 64, "109M"),
    "amlp-large": _language(72, 768, 128, "316M"),
    "amlp-tiny": Preset({**TINY, "vocab_size": 2000, "max_position_embeddings": 128}, "masked-lm", "tests and demos"),
    "amlp-tiny-image": Preset(
        {**TINY, **gmlp.IMAGE, "image_size": 32, "patch_size": 4, "num_labels": 10}, "image-classification", "tests and demos"
    ),
}


def _settings(state: Mapping[str, Tensor]) -> dict[str, Any]:
    width = shape_of(state, gmlp.LUCIDRAINS + r"attn\.to_qkv\.weight")[0] // 3
    return {**gmlp.lucidrains_settings(state), "attention_size": width, "qkv_bias": False}


IMPORTERS = [
    Importer(
        "g-mlp-pytorch",
        recognises=lambda state: any(".attn.to_qkv." in name and ".fn." in name for name in state),
        settings=_settings,
        task=gmlp.lucidrains_task,
        renames=[
            *gmlp.LUCIDRAINS_RENAMES,
            Rename(gmlp.LUCIDRAINS + r"attn\.to_qkv\.weight", r"model.body.blocks.\1.attention.qkv.weight"),
            Rename(gmlp.LUCIDRAINS + r"attn\.to_out\.(weight|bias)", r"model.body.blocks.\1.attention.out.\2"),
        ],
        prepare=gmlp.lucidrains_prepare,
        note=gmlp.LUCIDRAINS_NOTE,
    ),
]

ARCH = Architecture("amlp", AMLPConfig, body=partial(stack, block=Block), account=account, presets=PRESETS, importers=IMPORTERS)
