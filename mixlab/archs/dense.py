"""Fully connected layers over n tokens of d channels, and the two ways to simplify them.

    all                  vec(Y) = T vec(X) + b          T: (n d) x (n d), every number reads every other
    tokens               Y = M X + b                    M: n x n, shared by the channels (simplification I)
    tokens-per-channel   Y[:, c] = M_c X[:, c] + b_c    the same with a matrix for each channel
    channels             Y = X W + b                    W: d x d, shared by the tokens (simplification II): a 1 x 1 convolution
    none                 Y = X

A block is `X <- X + act(Y(norm(X)))`, or, with residual=False, `X <- act(Y)` alone. An image of one patch is one token: its patch
projection, an activation and the classifier are then the multilayer perceptron whose input, hidden and output layers are vectors.

Axes: b batch, n tokens, d channels, m tokens out, e channels out, H matrices M.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from mixlab.accounting import Line, Mixing, in_group
from mixlab.accounting.parts import activation, layer_norm, linear, sums
from mixlab.errors import MixlabError
from mixlab.layers import Tokens
from mixlab.layers.activation import ACTIVATIONS
from mixlab.layers.tokens import without_padding
from mixlab.maps import DenseWeight, IdentityMap
from mixlab.maps.base import StaticWeight
from mixlab.maps.dense import rescale_last
from mixlab.modeling.architecture import Architecture, Preset, stack
from mixlab.modeling.config import MixerConfig
from mixlab.modeling.traits import TASKS, Traits


class DenseConfig(MixerConfig):
    """hidden_size = d, max_position_embeddings = n; num_hidden_layers counts the layers of the body, without stem and head."""

    model_type = "mixlab-dense"

    mixing: Literal["all", "tokens", "tokens-per-channel", "channels", "none"] = "all"
    residual: bool = True
    hidden_act: Literal["gelu", "gelu_pytorch_tanh", "relu", "linear"] = "gelu"

    @property
    def across_tokens(self) -> bool:
        """Whether a weight knows where a token stands."""
        return self.mixing not in ("channels", "none")

    @property
    def traits(self) -> Traits:
        text = self.modality == "text"
        tasks = tuple(task for task in TASKS.get(self.modality, ()) if task != "causal-lm")
        return Traits(
            masks=text,
            causal=False,
            length=("cap" if text else "fixed") if self.across_tokens else "any",
            modalities=("text", "image"),
            tasks=tasks,
            order=(1,),
            attention=False,
            equivariance="none" if self.across_tokens else "permutation",
            reach=None if self.across_tokens else 0,
            maps=self.mixing != "all",
        )


class FullyConnected(nn.Module):
    """Every channel of every token from every other: m e numbers out of n d. Fewer tokens than n use the corner of T."""

    order = 1

    def __init__(self, n: int, d: int, m: int, e: int, std: float = 0.02) -> None:
        super().__init__()
        self.std = std
        self.weight = nn.Parameter(torch.empty(m, e, n, d))
        self.bias = nn.Parameter(torch.empty(m, e))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=self.std)
        nn.init.zeros_(self.bias)

    def forward(self, x: Float[Tensor, "b n d"], tokens: Tokens) -> Float[Tensor, "b m e"]:
        m, e, n, _ = self.weight.shape
        read = torch.arange(x.shape[1], device=x.device)
        written = read if m == n else torch.arange(m, device=x.device)
        corner = self.weight.index_select(0, written).index_select(2, read)  # m e n d
        y = F.linear(without_padding(x, tokens.mask).flatten(1), corner.flatten(2).flatten(0, 1))
        return y.unflatten(1, (-1, e)) + self.bias.index_select(0, written)

    def resize(self, length: int, grids: tuple[int, int] | None, prefix: int) -> str:
        n, d = self.weight.shape[2:]
        raise MixlabError(f"a tensor over {n} tokens of {d} channels has no meaning for {length}; build a new model of that length")


class AcrossTokens(nn.Module):
    """Simplification I: M X + b with a number of b per token; H = 1 matrix for all channels, or one for each."""

    order = 1

    def __init__(self, n: int, heads: int, std: float = 0.02) -> None:
        super().__init__()
        self.spatial: StaticWeight = DenseWeight(n, heads, init_std=std)
        self.bias = nn.Parameter(torch.empty(heads, n))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.bias)

    def forward(self, x: Float[Tensor, "b n d"], tokens: Tokens) -> Float[Tensor, "b n d"]:
        mix = self.spatial.at(x.shape[1])
        tokens.keep("maps", mix.dense)
        return mix(without_padding(x, tokens.mask)) + self.bias.mT[: x.shape[1]]  # n 1, or n d

    def resize(self, length: int, grids: tuple[int, int] | None, prefix: int) -> str:
        old, kept = self.bias.detach(), min(length, self.spatial.length)
        if grids is not None:
            self.spatial, said = self.spatial.interpolated(*grids, prefix)
            self.bias = nn.Parameter(rescale_last(old[None], *grids, prefix)[0])
            return said
        self.spatial, said = self.spatial.resized(length)
        self.bias = nn.Parameter(F.pad(old[:, :kept], (0, length - kept)))
        return said


class AcrossChannels(nn.Module):
    """Simplification II: X W + b; or, without W, X."""

    order = 1

    def __init__(self, d: int, weight: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(d, d) if weight else nn.Identity()

    def forward(self, x: Float[Tensor, "b n d"], tokens: Tokens) -> Float[Tensor, "b n d"]:
        tokens.keep("maps", IdentityMap(x.shape[1], x.dtype, x.device).dense)
        return self.linear(x)


class Block(nn.Module):
    def __init__(self, config: DenseConfig, layer: int) -> None:
        super().__init__()
        d, std = config.hidden_size, config.initializer_range
        self.residual = config.residual
        self.norm = nn.LayerNorm(d, eps=config.layer_norm_eps) if config.residual else nn.Identity()
        if config.mixing == "all":
            self.mixing = FullyConnected(config.length, d, config.length, d, std)
        elif config.across_tokens:
            self.mixing = AcrossTokens(config.length, 1 if config.mixing == "tokens" else d, std)
        else:
            self.mixing = AcrossChannels(d, weight=config.mixing == "channels")
        self.activation = ACTIVATIONS[config.hidden_act]
        self.dropout = nn.Dropout(config.hidden_dropout)

    def forward(self, tokens: Tokens) -> Tokens:
        y = self.dropout(self.activation(self.mixing(self.norm(tokens.x), tokens)))  # b n d
        return tokens.with_x(tokens.x + y if self.residual else y)


def account(config: DenseConfig, n: int) -> list[Line]:
    """The lines of the body for n tokens; the weights are those of all N that it can read."""
    d = config.hidden_size
    symbols = {"n": n, "d": d} | ({"N": config.length} if config.across_tokens else {})
    # Of a weight for N tokens, the part that is for n of them is a copy, which is kept.
    weights, copied, terms = {
        "all": ("N*d*N*d + N*d", "n*d*n*d", "min(n*n, d*d)"),
        "tokens": ("N*N + N", "n*n", "1"),
        "tokens-per-channel": ("d*N*N + d*N", "d*n*n", "min(d, n*n)"),
    }.get(config.mixing, ("", "", ""))
    macs, name = "n*d*n*d" if config.mixing == "all" else "n*n*d", {"all": "T", "tokens": "M"}.get(config.mixing, "M_c")
    mixing = Mixing(1, terms, "n*d", "n")
    mixed = Line(name, weights, macs, symbols, work="n*d", kept=f"n*d + {copied}", live=f"2*n*d + {copied}", mixing=mixing)
    lines = [mixed] if config.across_tokens else [linear("W", d, d, n)] if config.mixing == "channels" else []
    after = [
        *([] if config.hidden_act == "linear" else [replace(activation(config.hidden_act, d, n), kept="n*f")]),
        *([sums(d, n)] if config.residual else []),
    ]
    norms = [layer_norm("norm", d, n)] if config.residual else []
    final = [layer_norm("final norm", d, n)] if config.final_norm else []
    return [*in_group("body", [*norms, *lines, *after], times=config.num_hidden_layers), *final]


def _layer(mixing: str) -> Preset:
    """One layer over BERT-base's tokens and channels, alone: for its counts."""
    sizes = {"max_position_embeddings": 512, "hidden_size": 768, "num_hidden_layers": 1, "vocab_size": 30522}
    return Preset({**sizes, "mixing": mixing, "residual": False, "final_norm": False, "hidden_act": "linear"}, "features", "512 x 768")


MLP = {"modality": "image", "pooling": "mean", "image_size": 32, "patch_size": 32, "num_channels": 1, "num_labels": 100}
SMALL = {"num_hidden_layers": 3, "hidden_size": 24}

PRESETS = {
    "dense-all": _layer("all"),
    "dense-tokens": _layer("tokens"),
    "dense-tokens-per-channel": _layer("tokens-per-channel"),
    "dense-channels": _layer("channels"),
    "dense-mlp": Preset(
        {
            **MLP,
            "hidden_size": 2048,
            "num_hidden_layers": 1,
            "mixing": "none",
            "residual": False,
            "hidden_act": "relu",
            "final_norm": False,
        },
        "image-classification",
        "1024-2048-100",
    ),
    "dense-tiny": Preset({**SMALL, "vocab_size": 1000, "max_position_embeddings": 20}, "masked-lm", "tests and demos"),
    "dense-tiny-image": Preset(
        {
            **SMALL,
            "modality": "image",
            "pooling": "mean",
            "image_size": 32,
            "patch_size": 4,
            "mixing": "tokens-per-channel",
            "num_labels": 10,
        },
        "image-classification",
        "tests and demos",
    ),
}

ARCH = Architecture("dense", DenseConfig, body=partial(stack, block=Block), account=account, presets=PRESETS)
