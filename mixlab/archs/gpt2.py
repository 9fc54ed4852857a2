"""GPT-2: the Transformer that reads only what came before (Radford et al. 2019, "Language Models are Unsupervised Multitask Learners").

    E = token + position
    A = X + attend(norm(X))                       attend: h heads, softmax(q k^T / sqrt(d / h)) v over the tokens up to each
    Y = A + gelu(norm(A) W_1) W_2                 W_1: d x f,  W_2: f x d,  gelu by tanh

Then a norm; logits are products with the token table. The layers that write into the residual stream begin smaller than the others, by
1 / sqrt(number of such layers), so that the stream does not grow with depth.

Axes: b batch, n tokens, d model, f expanded, h heads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from mixlab.accounting import Line, in_group
from mixlab.accounting.parts import attention, embedding, feed_forward, layer_norm, linear, sums
from mixlab.layers import FeedForward, LearnedPositions, PreNormBlock, ScaledLinear, SelfAttention, Stack, Tokens
from mixlab.modeling.architecture import Architecture, Preset
from mixlab.modeling.config import MixerConfig, Number
from mixlab.modeling.foreign import TOKENS, Importer, Rename, State, count_layers, modules
from mixlab.modeling.traits import TEXT_TASKS, Traits


class GPT2Config(MixerConfig):
    """The shell's fields, the attention's and the network's."""

    model_type = "mixlab-gpt2"

    causal = True
    pooling = "last"
    layer_norm_eps = 1e-5
    intermediate_size: int = 3072
    num_attention_heads: int = 8
    attention_dropout: Number = 0.0
    hidden_act: Literal["gelu", "gelu_pytorch_tanh"] = "gelu_pytorch_tanh"

    def __post_init__(self, **kwargs: object) -> None:
        super().__post_init__(**kwargs)
        self.check_split("hidden_size", "num_attention_heads")

    @property
    def stem_dropout(self) -> float:
        """Positions come after the stem, and dropout after them."""
        return 0.0

    @property
    def residual_std(self) -> float:
        """Of the weights that write into the residual stream, two layers a block."""
        return self.initializer_range / math.sqrt(2 * self.num_hidden_layers)

    @property
    def traits(self) -> Traits:
        return Traits(masks=True, causal=True, length="cap", modalities=("text",), tasks=TEXT_TASKS, order=(3,), attention=True)


class Block(PreNormBlock):
    """The pre-norm block, whose two writing layers begin smaller."""

    def __init__(self, config: GPT2Config, layer: int) -> None:
        d, f, drop, std = config.hidden_size, config.intermediate_size, config.attention_dropout, config.residual_std
        kinds = ("attention", "maps")
        attention = SelfAttention(d, d, d, heads=config.num_attention_heads, causal=config.causal, dropout=drop, kinds=kinds)
        attention.out = ScaledLinear(d, d, std=std)
        ffn = FeedForward(d, f, activation=config.hidden_act)
        ffn.narrow = ScaledLinear(f, d, std=std)
        super().__init__(d, attention, ffn, eps=config.layer_norm_eps, dropout=config.hidden_dropout)


class Body(Stack):
    """Positions, then the blocks and the final norm."""

    def __init__(self, config: GPT2Config) -> None:
        d = config.hidden_size
        blocks = [Block(config, layer) for layer in range(config.num_hidden_layers)]
        super().__init__(blocks, nn.LayerNorm(d, eps=config.layer_norm_eps) if config.final_norm else nn.Identity())
        self.positions = LearnedPositions(config.length, d, std=config.initializer_range)
        self.dropout = nn.Dropout(config.hidden_dropout)

    def forward(self, tokens: Tokens) -> Tokens:
        return super().forward(tokens.with_x(self.dropout(self.positions(tokens))))


def account(config: GPT2Config, n: int) -> list[Line]:
    """The lines of the body for n tokens."""
    d, f = config.hidden_size, config.intermediate_size
    block = [
        layer_norm("attention norm", d, n),
        linear("W_qkv", d, 3 * d, n),
        attention(n, n, d, config.num_attention_heads),
        linear("W_o", d, d, n),
        layer_norm("feed-forward norm", d, n),
        *feed_forward(d, f, n),
        sums(d, n, 2),
    ]
    final = [layer_norm("final norm", d, n)] if config.final_norm else []
    return [embedding("positions", config.length, d), *in_group("body", block, times=config.num_hidden_layers), *final]


MISPRINT = "the paper's table is known to be misprinted; the weights that were released have our count"


def _published(layers: int, d: int, heads: int, published: str) -> Preset:
    sizes = {"num_hidden_layers": layers, "hidden_size": d, "intermediate_size": 4 * d, "num_attention_heads": heads}
    text = {"vocab_size": 50257, "max_position_embeddings": 1024, "bos_token_id": 50256, "eos_token_id": 50256}
    return Preset({**text, **sizes}, "causal-lm", "Radford et al. 2019, Table 2", published, MISPRINT)


SMALL = {"num_hidden_layers": 4, "hidden_size": 128, "intermediate_size": 384, "num_attention_heads": 4}

PRESETS = {
    "gpt2": _published(12, 768, 12, "117M"),
    "gpt2-medium": _published(24, 1024, 16, "345M"),
    "gpt2-large": _published(36, 1280, 20, "762M"),
    "gpt2-xl": _published(48, 1600, 25, "1542M"),
    "gpt2-tiny": Preset({**SMALL, "vocab_size": 2000, "max_position_embeddings": 128}, "causal-lm", "tests and demos"),
}

LAYER = r"transformer\.h\.(\d+)\."
PROJECTIONS = {"attn.c_attn": "attention.qkv", "attn.c_proj": "attention.out", "mlp.c_fc": "ffn.widen", "mlp.c_proj": "ffn.narrow"}
TABLE = "transformer.wte.weight"


def _transposed(weight_or_bias: Tensor) -> Tensor:
    """transformers keeps these matrices as (inputs, outputs)."""
    return weight_or_bias.mT if weight_or_bias.dim() == 2 else weight_or_bias


def _projection(theirs: str, ours: str) -> Rename:
    pattern = LAYER + theirs.replace(".", r"\.") + r"\.(weight|bias)"
    return Rename(pattern, rf"model.body.blocks.\1.{ours}.\2", _transposed, _transposed)


def _settings(state: Mapping[str, Tensor]) -> dict[str, Any]:
    vocabulary, hidden = state[TABLE].shape
    return {
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "num_attention_heads": max(1, hidden // 64),
        "intermediate_size": len(state["transformer.h.0.mlp.c_fc.bias"]),
        "num_hidden_layers": count_layers(state, LAYER + r"mlp\.c_fc\.bias"),
        "max_position_embeddings": len(state["transformer.wpe.weight"]),
        "tie_word_embeddings": "lm_head.weight" not in state,
    }


def _prepare(state: State) -> State:
    """With one prefix, and without the triangles of old files and what only repeats the token table."""
    bare = TABLE not in state
    state = {f"transformer.{name}" if bare and name != "lm_head.weight" else name: tensor for name, tensor in state.items()}
    state = {name: tensor for name, tensor in state.items() if not name.endswith((".attn.bias", ".attn.masked_bias"))}
    if "lm_head.weight" in state and torch.equal(state["lm_head.weight"], state[TABLE]):
        del state["lm_head.weight"]
    return state


IMPORTERS = [
    Importer(
        "transformers",
        recognises=lambda state: any(name.removeprefix("transformer.") == "h.0.attn.c_attn.weight" for name in state),
        settings=_settings,
        task=lambda _: "causal-lm",
        prepare=_prepare,
        finish=dict,
        renames=[
            Rename(r"transformer\.wte\.weight", "model.stem.tokens.weight"),
            Rename(r"transformer\.wpe\.weight", "model.body.positions.weight"),
            *[_projection(theirs, ours) for theirs, ours in PROJECTIONS.items()],
            *modules(LAYER, {"ln_1": "attention_norm", "ln_2": "ffn_norm"}),
            Rename(r"transformer\.ln_f\.(weight|bias)", r"model.body.norm.\1"),
            Rename(r"lm_head\.weight", "lm_head.weight"),
        ],
        note="where no config.json tells, heads of 64 channels are assumed; others need --set num_attention_heads=N. "
        "Which token ends a text stands in no weights: config.json brings it, --preset gpt2, or --set eos_token_id=N",
        told={"n_head": "num_attention_heads", "layer_norm_epsilon": "layer_norm_eps", "activation_function": "hidden_act"} | TOKENS,
        fixed={"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False},
    ),
]

ARCH = Architecture("gpt2", GPT2Config, body=Body, account=account, presets=PRESETS, importers=IMPORTERS)
