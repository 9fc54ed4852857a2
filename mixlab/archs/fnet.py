"""FNet: the Fourier transform in place of attention, with nothing to learn (Lee-Thorp et al. 2021, arXiv:2105.03824).

    E = norm(token + position + segment) W_e + b_e
    A = norm(X + Re(F_n X F_d))                   F: Fourier matrices, F[j, k] = exp(-2 pi i j k / n), without a factor
    Y = norm(A + gelu(A W_1) W_2)                 W_1: d x f,  W_2: f x d

Post-norm, as BERT. Every token reads every other with a weight of its place alone, so that padding cannot be hidden, and a shorter text is
another transform, not a part of a longer one.

Axes: b batch, n tokens, d model, f expanded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from torch import Tensor, nn

from mixlab.accounting import Line, in_group
from mixlab.accounting.parts import embedding, feed_forward, fourier, layer_norm, linear, sums
from mixlab.layers import FeedForward, LearnedPositions, Tokens
from mixlab.layers.fourier import FourierMixing
from mixlab.modeling.architecture import Architecture, Preset, stack
from mixlab.modeling.config import MixerConfig
from mixlab.modeling.foreign import TOKENS, Importer, Rename, State, count_layers, modules
from mixlab.modeling.rewriting import check_shared
from mixlab.modeling.traits import TEXT_TASKS, Traits


class FNetConfig(MixerConfig):
    """The shell's fields with FNet's defaults; hidden_size = d, intermediate_size = f."""

    model_type = "mixlab-fnet"

    layer_norm_eps = 1e-12
    final_norm = False
    head_transform = True
    head_bias = True
    type_vocab_size = 4
    intermediate_size: int = 3072
    hidden_act: Literal["gelu", "gelu_pytorch_tanh"] = "gelu_pytorch_tanh"

    @property
    def stem_dropout(self) -> float:
        """Positions come after the stem, and dropout after their projection."""
        return 0.0

    @property
    def transform_act(self) -> str:
        return self.hidden_act

    @property
    def traits(self) -> Traits:
        return Traits(
            masks=False,
            causal=False,
            length="cap",
            modalities=("text",),
            tasks=tuple(task for task in TEXT_TASKS if task != "causal-lm"),
            order=(1,),
            attention=False,
        )


class Block(nn.Module):
    """The transform, then the feed-forward network, each with its norm behind the sum."""

    def __init__(self, config: FNetConfig, layer: int) -> None:
        super().__init__()
        d, eps = config.hidden_size, config.layer_norm_eps
        self.fourier = FourierMixing()
        self.fourier_norm = nn.LayerNorm(d, eps=eps)
        self.ffn = FeedForward(d, config.intermediate_size, activation=config.hidden_act)
        self.ffn_norm = nn.LayerNorm(d, eps=eps)
        self.dropout = nn.Dropout(config.hidden_dropout)

    def forward(self, tokens: Tokens) -> Tokens:
        x = self.fourier_norm(tokens.x + self.fourier(tokens))  # b n d
        return tokens.with_x(self.ffn_norm(x + self.dropout(self.ffn(x))))


class Body(nn.Module):
    """Positions, a norm and a projection, then the blocks."""

    def __init__(self, config: FNetConfig) -> None:
        super().__init__()
        d = config.hidden_size
        self.positions = LearnedPositions(config.length, d, std=config.initializer_range)
        self.norm = nn.LayerNorm(d, eps=config.layer_norm_eps)
        self.projection = nn.Linear(d, d)
        self.dropout = nn.Dropout(config.hidden_dropout)
        self.stack = stack(config, Block)

    def forward(self, tokens: Tokens) -> Tokens:
        x = self.projection(self.norm(self.positions(tokens)))  # b n d
        return self.stack(tokens.with_x(self.dropout(x)))


def account(config: FNetConfig, n: int) -> list[Line]:
    """The lines of the body for n tokens. A fast Fourier transform is no product of matrices, so it counts no multiply-adds."""
    d, f = config.hidden_size, config.intermediate_size
    block = [
        fourier(n, d),
        layer_norm("fourier norm", d, n),
        *feed_forward(d, f, n),
        layer_norm("feed-forward norm", d, n),
        sums(d, n, 2),
    ]
    start = [embedding("positions", config.length, d), layer_norm("embedding norm", d, n), linear("W_e", d, d, n)]
    final = [layer_norm("final norm", d, n)] if config.final_norm else []
    return [*start, *in_group("body", block, times=config.num_hidden_layers), *final]


BASE = {"num_hidden_layers": 12, "hidden_size": 768, "intermediate_size": 3072}
ENGLISH = {"vocab_size": 32000, "max_position_embeddings": 512, "pad_token_id": 3, "bos_token_id": 1, "eos_token_id": 2}
SMALL = {"num_hidden_layers": 4, "hidden_size": 128, "intermediate_size": 384}
PRESETS = {
    "fnet-base": Preset({**ENGLISH, **BASE}, "masked-lm", "Lee-Thorp et al. 2021", "83M"),
    "fnet-tiny": Preset({**SMALL, "vocab_size": 2000, "max_position_embeddings": 128}, "masked-lm", "tests and demos"),
}

LAYER = r"fnet\.encoder\.layer\.(\d+)\."
EMBEDDINGS = "fnet.embeddings."
HEAD = "cls.predictions."
MODULES = {
    "fourier.output.LayerNorm": "fourier_norm",
    "intermediate.dense": "ffn.widen",
    "output.dense": "ffn.narrow",
    "output.LayerNorm": "ffn_norm",
}
LEFT_BEHIND = ("fnet.pooler.", "cls.seq_relationship.", HEAD + "decoder.", EMBEDDINGS + "position_ids", EMBEDDINGS + "token_type_ids")


def _settings(state: Mapping[str, Tensor]) -> dict[str, Any]:
    vocabulary, hidden = state[EMBEDDINGS + "word_embeddings.weight"].shape
    return {
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "intermediate_size": len(state["fnet.encoder.layer.0.intermediate.dense.bias"]),
        "num_hidden_layers": count_layers(state, LAYER + r"intermediate\.dense\.bias"),
        "max_position_embeddings": len(state[EMBEDDINGS + "position_embeddings.weight"]),
        "type_vocab_size": len(state[EMBEDDINGS + "token_type_embeddings.weight"]),
    }


def _prepare(state: State) -> State:
    """Named as inside a model with a head. Left behind: what is made from numbers, repeats others, or serves next-sentence prediction."""
    named = {name if name.startswith(("fnet.", "cls.")) else f"fnet.{name}": tensor for name, tensor in state.items()}
    check_shared(named, HEAD + "decoder.weight", EMBEDDINGS + "word_embeddings.weight")
    return {name: tensor for name, tensor in named.items() if not name.startswith(LEFT_BEHIND) and ".fourier.self." not in name}


def _finish(state: State) -> State:
    """The head repeats the table of tokens and its own bias."""
    if HEAD + "bias" not in state:
        return state
    repeated = {"decoder.weight": state[EMBEDDINGS + "word_embeddings.weight"], "decoder.bias": state[HEAD + "bias"]}
    return {**state, **{HEAD + name: tensor for name, tensor in repeated.items()}}


IMPORTERS = [
    Importer(
        "transformers",
        recognises=lambda state: any(name.endswith("encoder.layer.0.fourier.output.LayerNorm.weight") for name in state),
        settings=_settings,
        task=lambda state: "masked-lm" if HEAD + "bias" in state else "features",
        prepare=_prepare,
        finish=_finish,
        renames=[
            Rename(r"fnet\.embeddings\.word_embeddings\.weight", "model.stem.tokens.weight"),
            Rename(r"fnet\.embeddings\.token_type_embeddings\.weight", "model.stem.segments.weight"),
            Rename(r"fnet\.embeddings\.position_embeddings\.weight", "model.body.positions.weight"),
            Rename(r"fnet\.embeddings\.LayerNorm\.(weight|bias)", r"model.body.norm.\1"),
            Rename(r"fnet\.embeddings\.projection\.(weight|bias)", r"model.body.projection.\1"),
            *modules(LAYER, MODULES, "model.body.stack.blocks"),
            Rename(r"cls\.predictions\.transform\.dense\.(weight|bias)", r"transform.dense.\1"),
            Rename(r"cls\.predictions\.transform\.LayerNorm\.(weight|bias)", r"transform.norm.\1"),
            Rename(r"cls\.predictions\.bias", "lm_head.bias"),
        ],
        note="where no config.json tells, gelu by tanh is assumed; others need --set hidden_act=gelu. "
        "The pooler and next-sentence prediction are left behind",
        told={name: name for name in ("layer_norm_eps", "hidden_act")} | TOKENS,
    ),
]

ARCH = Architecture("fnet", FNetConfig, body=Body, account=account, presets=PRESETS, importers=IMPORTERS)
