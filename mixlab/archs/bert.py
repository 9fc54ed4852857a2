"""BERT: the Transformer encoder that gMLP is measured against (Devlin et al. 2019, arXiv:1810.04805).

    E = norm(token + position + segment)
    A = norm(X + attend(X))                       attend: h heads, softmax(q k^T / sqrt(d / h)) v, q, k, v and output d x d
    Y = norm(A + gelu(A W_1) W_2)                 W_1: d x f,  W_2: f x d

Post-norm: every branch is normalised after it joined, so there is no final norm. The language-model head has a transform and a bias.

Axes: b batch, n tokens, d model, f expanded, h heads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from mixlab.accounting import Line, in_group
from mixlab.accounting.parts import embedding, layer_norm, linear
from mixlab.errors import MixlabError
from mixlab.layers import FeedForward, LearnedPositions, SelfAttention, Tokens
from mixlab.modeling.architecture import Architecture, Preset, stack
from mixlab.modeling.config import MixerConfig, Number
from mixlab.modeling.foreign import Importer, Rename, State, count_layers, modules
from mixlab.modeling.traits import TEXT_TASKS, Traits


class BertConfig(MixerConfig):
    """The shell's fields with BERT's defaults, and the attention's."""

    model_type = "mixlab-bert"

    intermediate_size: int = 3072
    num_attention_heads: int = 8
    attention_dropout: Number = 0.0
    hidden_act: Literal["gelu", "gelu_pytorch_tanh"] = "gelu"

    def __post_init__(self, **kwargs: object) -> None:
        super().__post_init__(**kwargs)
        self.check_rate("attention_dropout")
        if self.num_attention_heads < 1 or self.hidden_size % self.num_attention_heads:
            raise MixlabError(f"hidden_size {self.hidden_size} cannot be split into num_attention_heads={self.num_attention_heads}")
        if self.modality != "text" or self.intermediate_size < 1:
            raise MixlabError(f"bert reads text, and intermediate_size is at least 1; got {self.modality!r}, {self.intermediate_size}")

    @property
    def stem_dropout(self) -> float:
        """Positions come after the stem, and dropout after their norm."""
        return 0.0

    @property
    def traits(self) -> Traits:
        return Traits(masks=True, causal=True, length="cap", modalities=("text",), tasks=TEXT_TASKS, order=(3,), attention=True)


class Block(nn.Module):
    """Attention, then the feed-forward network, each with its norm behind the sum."""

    def __init__(self, config: BertConfig, layer: int) -> None:
        super().__init__()
        d, eps = config.hidden_size, config.layer_norm_eps
        heads, drop = config.num_attention_heads, config.attention_dropout
        self.attention = SelfAttention(d, d, d, heads=heads, causal=config.causal, dropout=drop, kinds=("attention", "maps"))
        self.attention_norm = nn.LayerNorm(d, eps=eps)
        self.ffn = FeedForward(d, config.intermediate_size, activation=config.hidden_act)
        self.ffn_norm = nn.LayerNorm(d, eps=eps)
        self.dropout = nn.Dropout(config.hidden_dropout)

    def forward(self, tokens: Tokens) -> Tokens:
        x = self.attention_norm(tokens.x + self.dropout(self.attention(tokens)))  # b n d
        return tokens.with_x(self.ffn_norm(x + self.dropout(self.ffn(x))))


class Body(nn.Module):
    """Positions and a norm, then the blocks."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.positions = LearnedPositions(config.length, config.hidden_size, std=config.initializer_range)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout)
        self.stack = stack(config, Block)

    def forward(self, tokens: Tokens) -> Tokens:
        x = self.norm(self.positions(tokens))  # b n d
        return self.stack(tokens.with_x(self.dropout(x)))


def account(config: BertConfig, n: int) -> list[Line]:
    """The lines of the body for n tokens."""
    d, f = config.hidden_size, config.intermediate_size
    block = [
        linear("W_qkv", d, 3 * d, n),
        Line("q k^T and its product with v", "0", "2*n*n*d", {"n": n, "d": d}),
        linear("W_o", d, d, n),
        layer_norm("attention norm", d),
        linear("W_1", d, f, n),
        linear("W_2", f, d, n),
        layer_norm("feed-forward norm", d),
    ]
    start = [embedding("positions", config.length, d), layer_norm("embedding norm", d)]
    return [*start, *in_group("body", block, times=config.num_hidden_layers)]


BASE = {"layer_norm_eps": 1e-12, "final_norm": False, "head_transform": True, "head_bias": True, "type_vocab_size": 2}
ENGLISH = {**BASE, "vocab_size": 30522, "max_position_embeddings": 512, "pad_token_id": 0}
SMALL = {"num_hidden_layers": 4, "hidden_size": 128, "intermediate_size": 384, "num_attention_heads": 4}

PRESETS = {
    "bert-base": Preset(
        {**ENGLISH, "num_hidden_layers": 12, "hidden_size": 768, "num_attention_heads": 12}, "masked-lm", "Devlin et al. 2019", "110M"
    ),
    "bert-large": Preset(
        {**ENGLISH, "num_hidden_layers": 24, "hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16},
        "masked-lm",
        "Devlin et al. 2019",
        "340M",
    ),
    "bert-tiny": Preset({**BASE, **SMALL, "vocab_size": 2000, "max_position_embeddings": 128}, "masked-lm", "tests and demos"),
}

LAYER = r"bert\.encoder\.layer\.(\d+)\."
MODULES = {
    "attention.output.dense": "attention.out",
    "attention.output.LayerNorm": "attention_norm",
    "intermediate.dense": "ffn.widen",
    "output.dense": "ffn.narrow",
    "output.LayerNorm": "ffn_norm",
}
HEAD = "cls.predictions."


def _settings(state: Mapping[str, Tensor]) -> dict[str, Any]:
    vocabulary, hidden = state["bert.embeddings.word_embeddings.weight"].shape
    return {
        **BASE,
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "num_attention_heads": max(1, hidden // 64),
        "intermediate_size": len(state["bert.encoder.layer.0.intermediate.dense.bias"]),
        "num_hidden_layers": count_layers(state, LAYER + r"intermediate\.dense\.bias"),
        "max_position_embeddings": len(state["bert.embeddings.position_embeddings.weight"]),
        "type_vocab_size": len(state["bert.embeddings.token_type_embeddings.weight"]),
    }


def _prepare(state: State) -> State:
    """Three projections become one; what only repeats, or only serves next-sentence prediction, stays behind."""
    state = {name: tensor for name, tensor in state.items() if not name.startswith(("bert.pooler.", "cls.seq_relationship."))}
    for dropped in ("bert.embeddings.position_ids", HEAD + "decoder.weight", HEAD + "decoder.bias"):
        state.pop(dropped, None)
    for query in [name for name in state if ".attention.self.query." in name]:
        parts = [state.pop(query.replace("query", part)) for part in ("query", "key", "value")]
        state[query.replace("self.query", "qkv")] = torch.cat(parts)
    return state


IMPORTERS = [
    Importer(
        "transformers",
        recognises=lambda state: "bert.embeddings.word_embeddings.weight" in state,
        settings=_settings,
        task=lambda state: "masked-lm" if HEAD + "bias" in state else "features",
        prepare=_prepare,
        renames=[
            Rename(r"bert\.embeddings\.word_embeddings\.weight", "model.stem.tokens.weight"),
            Rename(r"bert\.embeddings\.token_type_embeddings\.weight", "model.stem.segments.weight"),
            Rename(r"bert\.embeddings\.position_embeddings\.weight", "model.body.positions.weight"),
            Rename(r"bert\.embeddings\.LayerNorm\.(weight|bias)", r"model.body.norm.\1"),
            *modules(LAYER, {"attention.qkv": "attention.qkv"}, "model.body.stack.blocks"),
            *modules(LAYER, MODULES, "model.body.stack.blocks"),
            Rename(r"cls\.predictions\.transform\.dense\.(weight|bias)", r"transform.dense.\1"),
            Rename(r"cls\.predictions\.transform\.LayerNorm\.(weight|bias)", r"transform.norm.\1"),
            Rename(r"cls\.predictions\.bias", "lm_head.bias"),
        ],
        note="heads of 64 channels are assumed; other files need --set num_attention_heads=N. The pooler is left behind",
    ),
]

ARCH = Architecture("bert", BertConfig, body=Body, account=account, presets=PRESETS, importers=IMPORTERS)
