"""ConvMixer: a depthwise convolution across the patches, a pointwise one across the channels (Trockman and Kolter 2022, arXiv:2201.09792).

    E = bn(gelu(patches(image)))
    Z = X + bn(gelu(sum_o w_o * shift_o(X) + b))       w_o: a number per channel for each of the k x k offsets o
    Y = bn(gelu(Z W + c))                              W: d x d, at every place; no residual around this one

bn is batch norm, behind the activation. Then the mean over the places. Zeros stand around the image, so it may be of any size.

Axes: b batch, n tokens (places of the image, row by row), d channels.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Literal

from jaxtyping import Float
from torch import Tensor, nn

from mixlab.accounting import Line, in_group
from mixlab.accounting.parts import activation, batch_norm, convolution, layer_norm, patch_projection, sums
from mixlab.errors import MixlabError
from mixlab.layers import PatchStem, Tokens
from mixlab.layers.activation import ACTIVATIONS
from mixlab.layers.patches import as_image, as_tokens
from mixlab.maps import GridBandedMap
from mixlab.modeling.architecture import Architecture, Preset, stack
from mixlab.modeling.config import MixerConfig
from mixlab.modeling.foreign import Importer, Rename, count_layers
from mixlab.modeling.traits import IMAGE_TASKS, Traits


class ConvMixerConfig(MixerConfig):
    """hidden_size = d, kernel_size = k. layer_norm_eps is that of the batch norms."""

    model_type = "mixlab-convmixer"
    poolings = ("mean",)

    modality = "image"
    pooling = "mean"
    final_norm = False
    layer_norm_eps = 1e-5
    kernel_size: int = 9
    hidden_act: Literal["gelu", "gelu_pytorch_tanh", "relu"] = "gelu"

    def __post_init__(self, **kwargs: object) -> None:
        super().__post_init__(**kwargs)
        if self.kernel_size < 1 or self.kernel_size % 2 == 0:
            raise MixlabError(f"kernel_size {self.kernel_size} has no middle; use an odd number of at least 1")

    @property
    def traits(self) -> Traits:
        return Traits(
            masks=False,
            causal=False,
            length="any",
            modalities=("image",),
            tasks=IMAGE_TASKS,
            order=(1,),
            attention=False,
            equivariance="shift",
            reach=self.num_hidden_layers * (self.kernel_size // 2),
        )


class Stem(PatchStem):
    """Patches, an activation, a batch norm."""

    def __init__(self, config: ConvMixerConfig) -> None:
        super().__init__(config.patch_size, config.num_channels, config.stem_size, dropout=config.stem_dropout)
        self.activation = ACTIVATIONS[config.hidden_act]
        self.norm = nn.BatchNorm2d(config.stem_size, eps=config.layer_norm_eps)

    def forward(self, pixels: Float[Tensor, "b c height width"]) -> Float[Tensor, "b n d"]:
        return self.dropout(as_tokens(self.norm(self.activation(self.projection(pixels)))))


class Depthwise(nn.Conv2d):
    """k x k numbers for each channel, which see that channel alone."""

    order = 1

    def __init__(self, d: int, k: int) -> None:
        super().__init__(d, d, k, padding=k // 2, groups=d)

    def forward(self, tokens: Tokens) -> Float[Tensor, "b d rows columns"]:  # pyright: ignore[reportIncompatibleMethodOverride]
        assert tokens.grid is not None  # patches are never left out
        tokens.keep("maps", GridBandedMap(self.weight[:, 0].flip(1, 2), tokens.grid).dense)
        return super().forward(as_image(tokens.x, tokens.grid))


class Block(nn.Module):
    def __init__(self, config: ConvMixerConfig, layer: int) -> None:
        super().__init__()
        d, eps = config.hidden_size, config.layer_norm_eps
        self.depthwise = Depthwise(d, config.kernel_size)
        self.depthwise_norm = nn.BatchNorm2d(d, eps=eps)
        self.pointwise = nn.Conv2d(d, d, 1)
        self.pointwise_norm = nn.BatchNorm2d(d, eps=eps)
        self.activation = ACTIVATIONS[config.hidden_act]
        self.dropout = nn.Dropout(config.hidden_dropout)

    def forward(self, tokens: Tokens) -> Tokens:
        mixed = self.depthwise_norm(self.activation(self.depthwise(tokens)))  # b d rows columns
        x = as_image(tokens.x, mixed.shape[2:]) + self.dropout(mixed)
        return tokens.with_x(as_tokens(self.pointwise_norm(self.activation(self.pointwise(x)))))


def account(config: ConvMixerConfig, n: int) -> list[Line]:
    """The lines of the stem and the body for n places."""
    d, act = config.hidden_size, config.hidden_act
    patches = patch_projection(config.image_size, config.patch_size, config.num_channels, d)
    block = [
        convolution("depthwise", config.kernel_size, d, d, n, groups=d),
        activation(act, d, n),
        batch_norm("depthwise norm", d, n),
        convolution("pointwise", 1, d, d, n),
        activation(act, d, n),
        batch_norm("pointwise norm", d, n),
        sums(d, n),
    ]
    final = [layer_norm("final norm", d, n)] if config.final_norm else []
    return [
        patches,
        activation(act, d, n),
        batch_norm("patch norm", d, n),
        *in_group("body", block, times=config.num_hidden_layers),
        *final,
    ]


def _published(d: int, layers: int, kernel: int, patch: int, published: str, act: str = "gelu") -> Preset:
    settings = {"hidden_size": d, "num_hidden_layers": layers, "kernel_size": kernel, "patch_size": patch, "hidden_act": act}
    return Preset({**settings, "num_labels": 1000}, "image-classification", "Trockman and Kolter 2022, the authors' code", published)


SMALL = {"num_hidden_layers": 4, "hidden_size": 128, "kernel_size": 5}
TINY = Preset({**SMALL, "image_size": 32, "patch_size": 4, "num_labels": 10}, "image-classification", "tests and demos")
PRESETS = {
    "convmixer-1536-20": _published(1536, 20, 9, 7, "51.6M"),
    "convmixer-768-32": _published(768, 32, 7, 7, "21.1M", act="relu"),
    "convmixer-1024-20": _published(1024, 20, 9, 14, "24.4M"),
    "convmixer-tiny": TINY,
    "convmixer-tiny-image": TINY,
}

CONVOLUTION = r"\.(weight|bias)"
NORM = r"\.(weight|bias|running_mean|running_var|num_batches_tracked)"
TIMM = r"blocks\.(\d+)"
ASSUMED = 224  # pixels along a side, which the file does not tell


def _settings(state: Mapping[str, Tensor]) -> dict[str, Any]:
    d, channels, patch, _ = state["stem.0.weight"].shape
    return {
        "num_hidden_layers": count_layers(state, TIMM + r"\.3\.weight"),
        "hidden_size": d,
        "kernel_size": state["blocks.0.0.fn.0.weight"].shape[-1],
        "patch_size": patch,
        "image_size": max(1, ASSUMED // patch) * patch,
        "num_channels": channels,
        "num_labels": len(state["head.bias"]),
    }


IMPORTERS = [
    Importer(
        "timm",
        recognises=lambda state: "blocks.0.0.fn.0.weight" in state and "stem.2.running_mean" in state,
        settings=_settings,
        task=lambda _: "image-classification",
        renames=[
            Rename(r"stem\.0" + CONVOLUTION, r"model.stem.projection.\1"),
            Rename(r"stem\.2" + NORM, r"model.stem.norm.\1"),
            Rename(TIMM + r"\.0\.fn\.0" + CONVOLUTION, r"model.body.blocks.\1.depthwise.\2"),
            Rename(TIMM + r"\.0\.fn\.2" + NORM, r"model.body.blocks.\1.depthwise_norm.\2"),
            Rename(TIMM + r"\.1" + CONVOLUTION, r"model.body.blocks.\1.pointwise.\2"),
            Rename(TIMM + r"\.3" + NORM, r"model.body.blocks.\1.pointwise_norm.\2"),
            Rename(r"head" + CONVOLUTION, r"classifier.\1"),
        ],
        note=f"gelu and images of {ASSUMED} pixels are assumed; convmixer_768_32 needs --preset convmixer-768-32, or --set hidden_act=relu",
    ),
]

ARCH = Architecture(
    "convmixer",
    ConvMixerConfig,
    body=partial(stack, block=Block),
    account=account,
    presets=PRESETS,
    importers=IMPORTERS,
    stem=Stem,
)
