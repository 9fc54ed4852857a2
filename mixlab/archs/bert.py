"""BERT: the Transformer encoder that gMLP is measured against (Devlin et al. 2019, arXiv:1810.04805).

    E = norm(token + position + segment)
    A = norm(X + attend(X))                       attend: h heads, softmax(q k^T / sqrt(d / h)) v, q, k, v and output d x d
    Y = norm(A + gelu(A W_1) W_2)                 W_1: d x f,  W_2: f x d

Two variants know distances in place of positions (Liu et al. 2021, "Pay Attention to MLPs", arXiv:2105.08050, Table 3), by a learned number
for every offset, head and layer:

    relative          softmax(q k^T / sqrt(d / h) + b_(i - j)) v           "+ rel pos"
    relative_alone    softmax(b_(i - j)) v, without queries and keys       "+ rel pos - attn"

Post-norm: every branch is normalised after it joined, so there is no final norm. The language-model head has a transform and a bias.

Axes: b batch, n tokens, d model, f expanded, h heads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from torch import Tensor, nn

from mixlab.accounting import Line, Mixing, in_group
from mixlab.accounting.parts import attention, embedding, feed_forward, layer_norm, linear, sums
from mixlab.errors import MixlabError
from mixlab.layers import DistanceAttention, FeedForward, LearnedPositions, RelativeBias, SelfAttention, Tokens
from mixlab.modeling.architecture import Architecture, Preset, stack
from mixlab.modeling.config import MixerConfig, Number
from mixlab.modeling.foreign import TOKENS, Importer, Rename, State, count_layers, modules
from mixlab.modeling.rewriting import check_shared, join, part, respell
from mixlab.modeling.traits import TEXT_TASKS, Traits


class BertConfig(MixerConfig):
    """The shell's fields with BERT's defaults, and the attention's."""

    model_type = "mixlab-bert"

    final_norm = False  # a block ends with its own
    intermediate_size: int = 3072
    num_attention_heads: int = 8
    attention_dropout: Number = 0.0
    hidden_act: Literal["gelu", "gelu_pytorch_tanh"] = "gelu"
    positions: Literal["absolute", "relative", "relative_alone"] = "absolute"

    def __post_init__(self, **kwargs: object) -> None:
        super().__post_init__(**kwargs)
        self.check_split("hidden_size", "num_attention_heads")

    @property
    def stem_dropout(self) -> float:
        """Positions come after the stem, and dropout after their norm."""
        return 0.0

    @property
    def transform_act(self) -> str:
        """The head's activation is that of the blocks."""
        return self.hidden_act

    @property
    def traits(self) -> Traits:
        by_content = self.positions != "relative_alone"
        able: dict[str, Any] = {"masks": True, "causal": True, "attention": by_content, "order": (3,) if by_content else (1,)}
        return Traits(**able, length="cap", modalities=("text",), tasks=TEXT_TASKS)


def attend(config: BertConfig) -> nn.Module:
    d, heads, causal, drop = config.hidden_size, config.num_attention_heads, config.causal, config.attention_dropout
    relative = config.positions != "absolute"
    bias = RelativeBias(config.length, heads, causal=causal, std=config.initializer_range) if relative else None
    if bias is not None and config.positions == "relative_alone":
        return DistanceAttention(d, d, d, bias, causal=causal, dropout=drop)
    return SelfAttention(d, d, d, heads=heads, causal=causal, dropout=drop, kinds=("attention", "maps"), logit_bias=bias)


class Block(nn.Module):
    """Attention, then the feed-forward network, each with its norm behind the sum."""

    def __init__(self, config: BertConfig, layer: int) -> None:
        super().__init__()
        d, eps = config.hidden_size, config.layer_norm_eps
        self.attention = attend(config)
        self.attention_norm = nn.LayerNorm(d, eps=eps)
        self.ffn = FeedForward(d, config.intermediate_size, activation=config.hidden_act)
        self.ffn_norm = nn.LayerNorm(d, eps=eps)
        self.dropout = nn.Dropout(config.hidden_dropout)

    def forward(self, tokens: Tokens) -> Tokens:
        x = self.attention_norm(tokens.x + self.dropout(self.attention(tokens)))  # b n d
        return tokens.with_x(self.ffn_norm(x + self.dropout(self.ffn(x))))


class Body(nn.Module):
    """Positions, where they are absolute, and a norm, then the blocks."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        absolute = config.positions == "absolute"
        self.positions = LearnedPositions(config.length, config.hidden_size, std=config.initializer_range) if absolute else None
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout)
        self.stack = stack(config, Block)

    def forward(self, tokens: Tokens) -> Tokens:
        x = self.norm(tokens.x if self.positions is None else self.positions(tokens))  # b n d
        return self.stack(tokens.with_x(self.dropout(x)))


def account(config: BertConfig, n: int) -> list[Line]:
    """The lines of the body for n tokens."""
    d, f, alone, absolute = (
        config.hidden_size,
        config.intermediate_size,
        config.positions == "relative_alone",
        config.positions == "absolute",
    )
    heads = config.num_attention_heads
    taps = Line("relative bias", "H*N" if config.causal else "H*(2*N - 1)", "0", {"H": heads, "N": config.length})
    product = Line(
        "softmax(b), and its product with v",
        "0",
        "n*n*d",
        {"n": n, "d": d, "h": heads},
        work="5*h*n*n",
        kept="n*d + h*n*n",
        live="2*n*d + h*n*n",
        state="d",
        mixing=Mixing(1, "h", "n*d", "n"),
    )
    block = [
        *([] if absolute else [taps]),
        *([linear("W_v", d, d, n), product] if alone else [linear("W_qkv", d, 3 * d, n), attention(n, n, d, heads, biased=not absolute)]),
        linear("W_o", d, d, n),
        layer_norm("attention norm", d, n),
        *feed_forward(d, f, n),
        layer_norm("feed-forward norm", d, n),
        sums(d, n, 2),
    ]
    start = [*([embedding("positions", config.length, d)] if absolute else []), layer_norm("embedding norm", d, n)]
    final = [layer_norm("final norm", d, n)] if config.final_norm else []
    return [*start, *in_group("body", block, times=config.num_hidden_layers), *final]


def _ablation(layers: int, table: str, published: str, positions: str = "absolute", note: str = "") -> Preset:
    sizes = {"num_hidden_layers": layers, "hidden_size": 768, "num_attention_heads": 12, "max_position_embeddings": 128}
    settings = {"final_norm": False, "positions": positions, **sizes}
    return Preset(settings, "masked-lm", f"Liu et al. 2021, {table}", published, note, counted_as="flops-elementwise-labelled")


BASE = {"layer_norm_eps": 1e-12, "final_norm": False, "head_transform": True, "head_bias": True, "type_vocab_size": 2}
ENGLISH = {**BASE, "vocab_size": 30522, "max_position_embeddings": 512, "pad_token_id": 0}
SMALL = {
    "num_hidden_layers": 4,
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_attention_heads": 4,
    "vocab_size": 2000,
    "max_position_embeddings": 128,
}

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
    "bert-l6": _ablation(6, "Table 4", "67M"),
    "bert-l12": _ablation(12, "Tables 3 and 4", "110M"),
    "bert-l24": _ablation(24, "Table 4", "195M"),
    "bert-l48": _ablation(48, "Table 4", "365M"),
    "bert-l12-relative": _ablation(12, "Table 3, + rel pos", "110M", "relative"),
    "bert-l12-relative-alone": _ablation(12, "Table 3, + rel pos - attn", "96M", "relative_alone", "95.5M, rounded up"),
    "bert-tiny": Preset({**BASE, **SMALL}, "masked-lm", "tests and demos"),
    "bert-tiny-relative": Preset({**BASE, **SMALL, "positions": "relative"}, "masked-lm", "tests and demos"),
    "bert-tiny-relative-alone": Preset({**BASE, **SMALL, "positions": "relative_alone"}, "masked-lm", "tests and demos"),
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
    segments = len(state["bert.embeddings.token_type_embeddings.weight"])
    if segments < 2:
        raise MixlabError("names are BERT's, but there is one segment: a RoBERTa, whose positions begin elsewhere; only BERT can be read")
    return {
        **BASE,
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "num_attention_heads": max(1, hidden // 64),
        "intermediate_size": len(state["bert.encoder.layer.0.intermediate.dense.bias"]),
        "num_hidden_layers": count_layers(state, LAYER + r"intermediate\.dense\.bias"),
        "max_position_embeddings": len(state["bert.embeddings.position_embeddings.weight"]),
        "type_vocab_size": segments,
    }


PROJECTIONS = [f"attention.self.{name}." for name in ("query", "key", "value")]
# What only repeats, or only serves next-sentence prediction, stays behind.
LEFT_BEHIND = ("bert.pooler.", "cls.seq_relationship.", "bert.embeddings.position_ids", HEAD + "decoder.")


def _prepare(state: State) -> State:
    """With one prefix and today's names, three projections as one."""
    bare = not any(name.startswith("bert.") for name in state)
    state = {f"bert.{name}" if bare and not name.startswith("cls.") else name: tensor for name, tensor in state.items()}
    check_shared(state, HEAD + "decoder.weight", "bert.embeddings.word_embeddings.weight")
    state = respell(state, {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"})
    return join({name: tensor for name, tensor in state.items() if not name.startswith(LEFT_BEHIND)}, PROJECTIONS, "attention.qkv.")


def _finish(state: State) -> State:
    return part(state, "attention.qkv.", PROJECTIONS)


IMPORTERS = [
    Importer(
        "transformers",
        recognises=lambda state: any(name.removeprefix("bert.") == "encoder.layer.0.attention.self.query.weight" for name in state),
        settings=_settings,
        task=lambda state: "masked-lm" if HEAD + "bias" in state else "features",
        prepare=_prepare,
        finish=_finish,
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
        note="where no config.json tells, heads of 64 channels are assumed; others need --set num_attention_heads=N. "
        "The pooler is left behind",
        told={name: name for name in ("num_attention_heads", "layer_norm_eps", "hidden_act")} | TOKENS,
        fixed={"is_decoder": False, "position_embedding_type": "absolute"},
    ),
]

ARCH = Architecture("bert", BertConfig, body=Body, account=account, presets=PRESETS, importers=IMPORTERS)
