"""The small language of layers: `conv 3x3 64->64 on 256x256`, `attention n=512 d=768 h=12`. One rule for each first word."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mixlab.accounting import conv_layers, dense_layers, mixing_layers
from mixlab.accounting.layer import Layer
from mixlab.accounting.reader import Reader
from mixlab.errors import MixlabError, unknown

MOST_CHARACTERS = 500


@dataclass(frozen=True)
class Rule:
    usage: str
    example: str
    build: Callable[[Reader], Layer]


PLACES = "[on SIZE [-> SIZE]] [stride N] [same|full|valid] [bias]"
RULES = {
    "dense": Rule("dense SIZE -> SIZE [bias]", "dense 1024x64 -> 100x64", dense_layers.dense),
    "mlp": Rule("mlp N -> N -> N ... [bias]", "mlp 1024 -> 2048 -> 100", dense_layers.mlp),
    "tokens": Rule("tokens N -> N [d=N] [per-channel] [bias]", "tokens 1024 -> 100 d=64", dense_layers.tokens),
    "pointwise": Rule("pointwise N->N [on SIZE] [bias]", "pointwise 64->64 on 512", dense_layers.pointwise),
    "conv": Rule(f"conv SIZE N->N {PLACES}", "conv 3x3 64->64 on 256x256", conv_layers.conv),
    "depthwise": Rule(f"depthwise SIZE N {PLACES}", "depthwise 3x3 64 on 256x256", conv_layers.depthwise),
    "separable": Rule(f"separable SIZE N->N {PLACES}", "separable 3x3 512->1024", conv_layers.separable),
    "attention": Rule("attention n=N d=N [h=N] [a=N] [window=N] [bias]", "attention n=512 d=768 h=12", mixing_layers.attention_layer),
    "ffn": Rule("ffn d=N [f=N] [n=N] [bias]", "ffn n=512 d=768", mixing_layers.ffn),
    "transformer": Rule("transformer d=N [n=N] [h=N] [f=N] [bias]", "transformer n=512 d=768 h=12 bias", mixing_layers.transformer),
    "gram": Rule("gram n=N d=N", "gram n=512 d=768", mixing_layers.gram),
    "fourier": Rule("fourier n=N d=N", "fourier n=512 d=768", mixing_layers.fourier),
    "sgu": Rule("sgu n=N d_ffn=N [dense|toeplitz] [causal] [heads=N] [bias]", "sgu n=128 d_ffn=3072 toeplitz", mixing_layers.sgu),
    "patches": Rule("patches SIZE by N [channels=N] [d=N] [bias]", "patches 256 by 3", dense_layers.patches),
    "embedding": Rule("embedding NxN", "embedding 30522x768", dense_layers.embedding_table),
    "norm": Rule("norm N [n=N]", "norm 768", dense_layers.norm),
}


def is_expression(text: str) -> bool:
    """Whether a text begins as an expression does; the name of a preset does not."""
    return (text.split() or [""])[0] in RULES


def parse(expression: str) -> Layer:
    """The layer that an expression describes."""
    if len(expression) > MOST_CHARACTERS:
        raise MixlabError(f"an expression has at most {MOST_CHARACTERS} characters, and this one {len(expression)}; shorten it")
    read = Reader(expression)
    first = read.word(f"a layer: {', '.join(RULES)}")
    if first.text not in RULES:
        raise read.error_at(first.position, str(unknown("layer", first.text, RULES)))
    return RULES[first.text].build(read)
