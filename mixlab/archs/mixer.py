"""MLP-Mixer: one network across the tokens, one across the channels (Tolstikhin et al. 2021, arXiv:2105.01601).

    A = X + (W_2 gelu(W_1 norm(X) + b_1) + b_2)        W_1: s x n,  W_2: n x s: the same for every channel
    Y = A + gelu(norm(A) W_3 + b_3) W_4 + b_4          W_3: d x c,  W_4: c x d: the same for every token

Then a norm and the mean over the tokens. W_1 and W_2 know where a token is, so there are no positions, and one size of image only.

Axes: b batch, n tokens, k tokens that are left when others are dropped, d model, s hidden over tokens, c hidden over channels.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mixlab.accounting import Line, Mixing, in_group
from mixlab.accounting.parts import activation, feed_forward, layer_norm, sums
from mixlab.errors import MixlabError
from mixlab.layers import FeedForward, MetaFormerBlock, Tokens
from mixlab.layers.drop_path import drop_path_rate
from mixlab.maps.dense import rescale_last
from mixlab.modeling.architecture import Architecture, Preset, stack
from mixlab.modeling.config import MixerConfig, Number
from mixlab.modeling.foreign import Importer, Rename, count_layers, image_settings, modules, shape_of
from mixlab.modeling.traits import IMAGE_TASKS, Traits


class MixerMlpConfig(MixerConfig):
    """hidden_size = d, tokens_intermediate_size = s, intermediate_size = c."""

    model_type = "mixlab-mixer"

    modality = "image"
    pooling = "mean"
    intermediate_size: int = 2048
    tokens_intermediate_size: int = 256
    hidden_act: Literal["gelu", "gelu_pytorch_tanh"] = "gelu"
    drop_path: Number = 0.0
    drop_path_schedule: Literal["constant", "linear"] = "linear"

    def __post_init__(self, **kwargs: object) -> None:
        super().__post_init__(**kwargs)
        if self.tokens_intermediate_size < 1:
            raise MixlabError(f"tokens_intermediate_size is {self.tokens_intermediate_size}; it must be at least 1")

    @property
    def traits(self) -> Traits:
        return Traits(
            masks=False,
            causal=False,
            length="fixed",
            modalities=("image",),
            tasks=IMAGE_TASKS,
            order=(1,),
            attention=False,
            maps=False,
            drops=True,
        )


class TokenMixing(nn.Module):
    """W_2 gelu(W_1 x + b_1) + b_2, along the tokens."""

    order = 1

    def __init__(self, n: int, s: int, activation: Any) -> None:
        super().__init__()
        self.mlp = FeedForward(n, s, activation=activation)

    def forward(self, x: Float[Tensor, "b n d"], tokens: Tokens) -> Float[Tensor, "b n d"]:
        if tokens.positions is None:
            return self.mlp(x.mT).mT
        # Some tokens were left out: only the columns of W_1 and the rows of W_2 that belong to the others are used.
        widen, narrow, places = self.mlp.widen, self.mlp.narrow, tokens.positions
        hidden = self.mlp.activation(widen.weight.mT[places].mT @ x + widen.bias[:, None])  # b s d
        return narrow.weight[places] @ hidden + narrow.bias[places][..., None]  # b k d

    def resize(self, length: int, grids: tuple[int, int] | None, prefix: int) -> str:
        if grids is None:
            raise MixlabError("the token mixing of an MLP-Mixer can be resized from one square image to another only")
        old, new = grids
        before = self.mlp
        self.mlp = FeedForward(length, before.widen.out_features).to(before.widen.weight)
        self.mlp.activation = before.activation
        with torch.no_grad():
            # A finer image has more tokens to sum over, so each must count for less.
            self.mlp.widen.weight.copy_(rescale_last(before.widen.weight, old, new, prefix) * (old * old / (new * new)))
            self.mlp.widen.bias.copy_(before.widen.bias)
            self.mlp.narrow.weight.copy_(rescale_last(before.narrow.weight.mT, old, new, prefix).mT)
            self.mlp.narrow.bias.copy_(rescale_last(before.narrow.bias, old, new, prefix))
        return f"token mixing interpolated in 2-D from {old} x {old} to {new} x {new} patches (bilinear, sums kept)"


class Block(MetaFormerBlock):
    def __init__(self, config: MixerMlpConfig, layer: int) -> None:
        d, activation = config.hidden_size, config.hidden_act
        super().__init__(
            TokenMixing(config.length, config.tokens_intermediate_size, activation),
            FeedForward(d, config.intermediate_size, activation=activation),
            partial(nn.LayerNorm, d, eps=config.layer_norm_eps),
            dropout=config.hidden_dropout,
            drop_path=drop_path_rate(config.drop_path, config.drop_path_schedule, layer, config.num_hidden_layers),
        )


def account(config: MixerMlpConfig, n: int) -> list[Line]:
    """The lines of the body when n tokens are there; the weights are those of all tokens."""
    d, s, c = config.hidden_size, config.tokens_intermediate_size, config.intermediate_size
    symbols = {"N": config.length, "n": n, "s": s, "d": d}
    block = [
        layer_norm("token norm", d, n),
        Line("W_1", "N*s + s", "n*s*d", symbols, work="s*d", kept="n*d", live="n*d + s*d", mixing=Mixing(1, "1", "n*d", "n")),
        activation("gelu", d, s),
        Line("W_2", "s*N + N", "n*s*d", symbols, work="n*d", kept="s*d", live="n*d + s*d"),
        layer_norm("channel norm", d, n),
        *feed_forward(d, c, n, names=("W_3", "W_4")),
        sums(d, n, 2),
    ]
    final = [layer_norm("final norm", d, n)] if config.final_norm else []
    return [*in_group("body", block, times=config.num_hidden_layers), *final]


def _published(layers: int, d: int, patch: int, published: str) -> Preset:
    sizes = {"hidden_size": d, "tokens_intermediate_size": d // 2, "intermediate_size": 4 * d}
    settings = {"num_hidden_layers": layers, "patch_size": patch, "num_labels": 1000, **sizes}
    return Preset(
        settings, "image-classification", "Tolstikhin et al. 2021", published, "printed without the classifier", "macs-without-head"
    )


TINY = Preset(
    {
        "num_hidden_layers": 4,
        "hidden_size": 128,
        "tokens_intermediate_size": 64,
        "intermediate_size": 512,
        "image_size": 32,
        "patch_size": 4,
        "num_labels": 10,
    },
    "image-classification",
    "tests and demos",
)
PRESETS = {
    "mixer-s-32": _published(8, 512, 32, "19M"),
    "mixer-s-16": _published(8, 512, 16, "18M"),
    "mixer-b-32": _published(12, 768, 32, "60M"),
    "mixer-b-16": _published(12, 768, 16, "59M"),
    "mixer-l-32": _published(24, 1024, 32, "206M"),
    "mixer-l-16": _published(24, 1024, 16, "207M"),
    "mixer-tiny": TINY,
    "mixer-tiny-image": TINY,
}

TIMM = r"blocks\.(\d+)\."


def _timm_settings(state: Mapping[str, Tensor]) -> dict[str, Any]:
    hidden, tokens = shape_of(state, TIMM + r"mlp_tokens\.fc1\.weight")
    d, channels, patch, _ = state["stem.proj.weight"].shape
    settings = {
        "num_hidden_layers": count_layers(state, TIMM + r"mlp_tokens\.fc1\.weight"),
        "hidden_size": d,
        "max_position_embeddings": tokens,
        "tokens_intermediate_size": hidden,
        "intermediate_size": shape_of(state, TIMM + r"mlp_channels\.fc1\.weight")[0],
    }
    return image_settings(settings, patch, channels, len(state["head.bias"]))


IMPORTERS = [
    Importer(
        "timm",
        recognises=lambda state: "blocks.0.mlp_tokens.fc1.weight" in state,
        settings=_timm_settings,
        task=lambda _: "image-classification",
        renames=[
            Rename(r"stem\.proj\.(weight|bias)", r"model.stem.projection.\1"),
            *modules(
                TIMM,
                {
                    "norm1": "token_norm",
                    "mlp_tokens.fc1": "token_mixing.mlp.widen",
                    "mlp_tokens.fc2": "token_mixing.mlp.narrow",
                    "norm2": "channel_norm",
                    "mlp_channels.fc1": "channel_mixing.widen",
                    "mlp_channels.fc2": "channel_mixing.narrow",
                },
            ),
            Rename(r"norm\.(weight|bias)", r"model.body.norm.\1"),
            Rename(r"head\.(weight|bias)", r"classifier.\1"),
        ],
    ),
]

ARCH = Architecture("mixer", MixerMlpConfig, body=partial(stack, block=Block), account=account, presets=PRESETS, importers=IMPORTERS)
