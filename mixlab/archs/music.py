"""Music Transformer: attention that hears how long ago something was (Huang et al. 2018, "Music Transformer", arXiv:1809.04281).

    A = X + attend(norm(X))                       attend: h heads of c channels, softmax((q k^T + S) / sqrt(c)) v over the tokens up to each
    Y = A + relu(norm(A) W_1) W_2                 S[i, j] = q_i e_(i - j): a learned key e for each of the r nearest distances and each head

Then a norm. A piece is a text of events (note on, note off, time shift, velocity); there are no positions but the distances. S is made from
the n x r products of queries with keys of distances by the paper's skewing, in place of n x n x c gathered numbers.

Axes: b batch, n tokens, d model, a attention, f expanded, h heads, r distances.
"""

from __future__ import annotations

from functools import partial
from typing import Literal

from mixlab.accounting import Line, in_group
from mixlab.accounting.parts import attention, feed_forward, layer_norm, linear, sums
from mixlab.errors import MixlabError
from mixlab.layers import FeedForward, PreNormBlock, RelativeKeys, SelfAttention
from mixlab.modeling.architecture import Architecture, Preset, stack
from mixlab.modeling.config import MixerConfig, Number
from mixlab.modeling.traits import TEXT_TASKS, Traits


class MusicConfig(MixerConfig):
    """The shell's fields, the attention's and the network's."""

    model_type = "mixlab-music"

    causal = True
    pooling = "last"
    intermediate_size: int = 1024
    attention_size: int = 512  # a, of queries, keys and values
    num_attention_heads: int = 8
    max_relative_distance: int | None = None  # r; of what is farther, queries say nothing. None: of all distances
    shared_relative_keys: bool = False  # the same e for all heads
    attention_dropout: Number = 0.0
    hidden_act: Literal["gelu", "gelu_pytorch_tanh", "relu"] = "relu"

    def __post_init__(self, **kwargs: object) -> None:
        super().__post_init__(**kwargs)
        self.check_split("attention_size", "num_attention_heads")
        r = self.max_relative_distance
        if r is not None and r < 1:
            raise MixlabError(f"max_relative_distance is {r}; it must be at least 1 (None: all distances)")

    @property
    def distances(self) -> int:
        """How many a head has keys for."""
        reach = self.length if self.max_relative_distance is None else min(self.max_relative_distance, self.length)
        return reach if self.causal else 2 * reach - 1

    @property
    def traits(self) -> Traits:
        return Traits(masks=True, causal=True, length="cap", modalities=("text",), tasks=TEXT_TASKS, order=(3,), attention=True)


class Block(PreNormBlock):
    """The pre-norm block, whose attention has relative keys."""

    def __init__(self, config: MusicConfig, layer: int) -> None:
        d, a, heads = config.hidden_size, config.attention_size, config.num_attention_heads
        keys = RelativeKeys(
            config.length,
            heads,
            a // heads,
            farthest=config.max_relative_distance,
            causal=config.causal,
            shared=config.shared_relative_keys,
            std=config.initializer_range,
        )
        attention = SelfAttention(
            d,
            d,
            a,
            heads=heads,
            causal=config.causal,
            dropout=config.attention_dropout,
            kinds=("attention", "maps"),
            relative_keys=keys,
        )
        ffn = FeedForward(d, config.intermediate_size, activation=config.hidden_act)
        super().__init__(d, attention, ffn, eps=config.layer_norm_eps, dropout=config.hidden_dropout)


def account(config: MusicConfig, n: int) -> list[Line]:
    """The lines of the body for n tokens."""
    d, a, f = config.hidden_size, config.attention_size, config.intermediate_size
    heads = config.num_attention_heads
    seen = n if config.causal else 2 * n - 1  # distances of n tokens
    symbols = {
        "H": 1 if config.shared_relative_keys else heads,
        "r": config.distances,
        "c": a // heads,
        "n": n,
        "w": seen,
        "a": a,
        "h": heads,
    }
    block = [
        layer_norm("attention norm", d, n),
        linear("W_qkv", d, 3 * a, n),
        Line("relative keys", "H*r*c", "n*w*a", symbols, kept="H*w*c", live="n*a + w*a + h*n*w"),
        attention(n, n, a, heads, channels=d, biased=True),
        linear("W_o", a, d, n),
        layer_norm("feed-forward norm", d, n),
        *feed_forward(d, f, n, act="relu"),
        sums(d, n, 2),
    ]
    final = [layer_norm("final norm", d, n)] if config.final_norm else []
    return [*in_group("body", block, times=config.num_hidden_layers), *final]


# A performance as events: 128 notes on, 128 off, 100 steps of time, 32 loudnesses.
EVENTS = {"vocab_size": 388, "max_position_embeddings": 2048, "max_relative_distance": 1024}
PIANO = {"num_hidden_layers": 6, "hidden_size": 384, "attention_size": 512, "intermediate_size": 1024, "num_attention_heads": 8}
TINY = {"num_hidden_layers": 3, "hidden_size": 96, "attention_size": 128, "intermediate_size": 256, "num_attention_heads": 4}

PRESETS = {
    "music-piano": Preset({**EVENTS, **PIANO}, "causal-lm", "Huang et al. 2018, piano performances"),
    "music-tiny": Preset({**EVENTS, **TINY, "max_position_embeddings": 256, "max_relative_distance": 64}, "causal-lm", "tests and demos"),
}

ARCH = Architecture("music", MusicConfig, body=partial(stack, block=Block), account=account, presets=PRESETS)
