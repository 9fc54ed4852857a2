"""ResMLP: one matrix across the patches, no norm that looks at the data (Touvron et al. 2021, arXiv:2105.03404).

    Z = X + s_1 * (W aff_1(X) + b)                          W: n x n, the same for every channel
    Y = Z + s_2 * (gelu(aff_2(Z) W_1 + b_1) W_2 + b_2)      W_1: d x f,  W_2: f x d
    aff(X) = a * X + c                                      a, c: a number per channel, in place of a norm

s_1 and s_2 are a number per channel, small at the start. Then a last aff and the mean over the patches.

Axes: b batch, n tokens, d model, f expanded.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Literal

from torch import Tensor, nn

from mixlab.accounting import Line, in_group
from mixlab.accounting.parts import feed_forward, gate, scale, sums
from mixlab.layers import FeedForward, MetaFormerBlock, SpatialGate, Stack
from mixlab.layers.drop_path import drop_path_rate
from mixlab.layers.scale import Affine, LayerScale
from mixlab.modeling.architecture import Architecture, Preset
from mixlab.modeling.config import MixerConfig, Number
from mixlab.modeling.foreign import (
    Importer,
    Rename,
    count_layers,
    image_settings,
    modules,
    shape_of,
    tensors,
    with_head,
    without_head,
)
from mixlab.modeling.traits import IMAGE_TASKS, Traits


class ResMLPConfig(MixerConfig):
    """hidden_size = d, intermediate_size = f."""

    model_type = "mixlab-resmlp"

    modality = "image"
    pooling = "mean"
    intermediate_size: int = 2048
    layer_scale_init: Number = 0.1  # of s_1 and s_2; the deeper the model, the smaller
    hidden_act: Literal["gelu", "gelu_pytorch_tanh"] = "gelu"
    drop_path: Number = 0.0
    drop_path_schedule: Literal["constant", "linear"] = "constant"

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
            drops=True,
        )


class Block(MetaFormerBlock):
    def __init__(self, config: ResMLPConfig, layer: int) -> None:
        d = config.hidden_size
        super().__init__(
            # W v + b, with a W that begins as the weights of any other layer do.
            SpatialGate(d, config.length, gate="linear", norm=False, init_std=config.initializer_range),
            FeedForward(d, config.intermediate_size, activation=config.hidden_act),
            partial(Affine, d),
            scale=partial(LayerScale, d, config.layer_scale_init),
            dropout=config.hidden_dropout,
            drop_path=drop_path_rate(config.drop_path, config.drop_path_schedule, layer, config.num_hidden_layers),
        )


def body(config: ResMLPConfig) -> Stack:
    blocks = [Block(config, layer) for layer in range(config.num_hidden_layers)]
    return Stack(blocks, Affine(config.hidden_size) if config.final_norm else nn.Identity())


def account(config: ResMLPConfig, n: int) -> list[Line]:
    """The lines of the body when n tokens are there; the weights are those of all tokens."""
    d, f = config.hidden_size, config.intermediate_size
    affine = Line("a and c", "2*d", "0", {"n": n, "d": d}, work="2*n*d", kept="n*d", live="2*n*d")
    block = [
        affine,
        *gate(n, config.length, d, kind="linear"),
        scale("s_1", d, n),
        affine,
        *feed_forward(d, f, n),
        scale("s_2", d, n),
        sums(d, n, 2),
    ]
    return [*in_group("body", block, times=config.num_hidden_layers), *([affine] if config.final_norm else [])]


def _published(layers: int, scale: float, published: str) -> Preset:
    sizes = {"num_hidden_layers": layers, "hidden_size": 384, "intermediate_size": 1536}
    return Preset(
        {**sizes, "layer_scale_init": scale, "num_labels": 1000},
        "image-classification",
        "Touvron et al. 2021",
        published,
        counted_as="macs",
    )


SMALL = {"num_hidden_layers": 4, "hidden_size": 128, "intermediate_size": 512}
TINY = Preset({**SMALL, "image_size": 32, "patch_size": 4, "num_labels": 10}, "image-classification", "tests and demos")
PRESETS = {
    "resmlp-12": _published(12, 0.1, "15M"),
    "resmlp-24": _published(24, 1e-5, "30M"),
    "resmlp-36": _published(36, 1e-6, "45M"),
    "resmlp-tiny": TINY,
    "resmlp-tiny-image": TINY,
}

TIMM = r"blocks\.(\d+)\."


def _settings(state: Mapping[str, Tensor]) -> dict[str, Any]:
    d, channels, patch, _ = state["stem.proj.weight"].shape
    settings = {
        "num_hidden_layers": count_layers(state, TIMM + r"linear_tokens\.weight"),
        "hidden_size": d,
        "max_position_embeddings": len(state["blocks.0.linear_tokens.bias"]),
        "intermediate_size": shape_of(state, TIMM + r"mlp_channels\.fc1\.weight")[0],
    }
    return image_settings(settings, patch, channels, len(state["head.bias"]))


def _to_channels(tensor: Tensor) -> Tensor:
    """1 1 d, as timm keeps an affine, as d."""
    return tensor.reshape(-1)


def _from_channels(tensor: Tensor) -> Tensor:
    """The way back."""
    return tensor[None, None]


def _affines(prefix: str, name: str) -> Rename:
    return Rename(prefix + r"\.(alpha|beta)", name, _to_channels, _from_channels)


IMPORTERS = [
    Importer(
        "timm",
        recognises=lambda state: "blocks.0.linear_tokens.weight" in state,
        settings=_settings,
        task=lambda _: "image-classification",
        renames=[
            Rename(r"stem\.proj\.(weight|bias)", r"model.stem.projection.\1"),
            _affines(TIMM + "norm1", r"model.body.blocks.\1.token_norm.\2"),
            _affines(TIMM + "norm2", r"model.body.blocks.\1.channel_norm.\2"),
            *tensors(TIMM, {"linear_tokens.weight": "token_mixing.spatial.weight"}, with_head, without_head),
            *tensors(TIMM, {"linear_tokens.bias": "token_mixing.bias"}, with_head, without_head),
            *tensors(TIMM, {"ls1": "token_scale.scale", "ls2": "channel_scale.scale"}),
            *modules(TIMM, {"mlp_channels.fc1": "channel_mixing.widen", "mlp_channels.fc2": "channel_mixing.narrow"}),
            _affines("norm", r"model.body.norm.\1"),
            Rename(r"head\.(weight|bias)", r"classifier.\1"),
        ],
    ),
]

ARCH = Architecture("resmlp", ResMLPConfig, body=body, account=account, presets=PRESETS, importers=IMPORTERS)
