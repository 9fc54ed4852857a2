"""PoolFormer: a Transformer whose attention is the mean of the neighbours (Yu et al. 2021, arXiv:2111.11418).

    Z = X + s_1 * (P gn(X) - gn(X))                           P: the mean of the k x k places around each, without those outside
    Y = Z + s_2 * (gelu(gn(Z) W_1 + b_1) W_2 + b_2)           W_1: d x r d,  W_2: r d x d

gn normalises all places and channels of an image together, so every place hears of the whole image by it; s_1 and s_2 are a number per
channel, small at the start. A convolution that overlaps makes the patches (side p, kernel 2p - 1), and another, 3 x 3 of stride 2, begins
every stage but the first. A label is read from norm(mean over the places).

Axes: b batch, n tokens (places of the image, row by row), d channels of a stage.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from functools import partial
from typing import Any, Literal

from jaxtyping import Float
from torch import Tensor, nn

from mixlab.accounting import Line, in_group
from mixlab.accounting.parts import convolution, feed_forward, layer_norm, pooling, scale, sums
from mixlab.errors import MixlabError
from mixlab.layers import FeedForward, MetaFormerBlock, Tokens
from mixlab.layers.drop_path import drop_path_rate
from mixlab.layers.patches import as_image, as_tokens
from mixlab.layers.pooling import MeanPool
from mixlab.layers.scale import LayerScale
from mixlab.maps import PoolMap
from mixlab.modeling.architecture import Architecture, Pooler, Preset, stack
from mixlab.modeling.config import MixerConfig, Number
from mixlab.modeling.foreign import Importer, Rename, count_layers, modules, tensors
from mixlab.modeling.rewriting import count_by_stage, count_through, kernel_as_matrix, matrix_as_kernel, stage_starts
from mixlab.modeling.traits import Traits


class PoolFormerConfig(MixerConfig):
    """depths and widths are the blocks and the channels of each stage; pool_size = k, expansion = r. hidden_size is the last width."""

    model_type = "mixlab-poolformer"
    hierarchical = True
    poolings = ("mean",)

    modality = "image"
    pooling = "mean"
    patch_size = 4
    final_norm = False
    layer_norm_eps = 1e-5  # of gn
    depths: list[int] = field(default_factory=lambda: [2, 2, 6, 2])
    widths: list[int] = field(default_factory=lambda: [64, 128, 320, 512])
    pool_size: int = 3
    expansion: int = 4
    layer_scale_init: Number = 1e-5  # of s_1 and s_2
    pooled_norm_eps: Number = 1e-6  # of the norm behind the mean
    hidden_act: Literal["gelu", "gelu_pytorch_tanh"] = "gelu"
    drop_path: Number = 0.0
    drop_path_schedule: Literal["constant", "linear"] = "linear"

    def __post_init__(self, **kwargs: object) -> None:
        if not self.depths or len(self.depths) != len(self.widths) or min(*self.depths, *self.widths) < 1:
            raise MixlabError(f"depths {self.depths} and widths {self.widths}; give a number of at least 1 of both for each stage")
        self.derive("num_hidden_layers", sum(self.depths), f"depths={self.depths}")
        self.derive("hidden_size", self.widths[-1], f"widths={self.widths}")
        if self.pool_size < 1 or self.pool_size % 2 == 0:
            raise MixlabError(f"pool_size {self.pool_size} has no middle; use an odd number of at least 1")
        if self.expansion < 1:
            raise MixlabError(f"expansion is {self.expansion}; it must be at least 1")
        super().__post_init__(**kwargs)

    @property
    def stem_size(self) -> int:
        return self.widths[0]

    @property
    def final_patch(self) -> int:
        return self.patch_size << (len(self.depths) - 1)

    @property
    def image_multiple(self) -> int:
        return self.final_patch

    @property
    def places(self) -> list[tuple[int, int]]:
        """Stage, and place in its stage, of every block."""
        return [(stage, place) for stage, depth in enumerate(self.depths) for place in range(depth)]

    @property
    def traits(self) -> Traits:
        return Traits(
            masks=False,
            causal=False,
            length="grid",
            modalities=("image",),
            # Patches overlap, so that covering some of them would not hide their pixels.
            tasks=("features", "image-classification", "image-restoration"),
            order=(1,),
            attention=False,
        )


class Stem(nn.Module):
    """Patches that overlap."""

    def __init__(self, config: PoolFormerConfig) -> None:
        super().__init__()
        p = config.patch_size
        self.projection = nn.Conv2d(config.num_channels, config.stem_size, 2 * p - 1, stride=p, padding=p // 2)
        self.dropout = nn.Dropout(config.stem_dropout)

    def forward(self, pixels: Float[Tensor, "b c height width"]) -> Float[Tensor, "b n d"]:
        return self.dropout(as_tokens(self.projection(pixels)))


class WholeNorm(nn.GroupNorm):
    """Mean and variance of all places and channels of an image; scale and shift per channel."""

    def __init__(self, d: int, eps: float) -> None:
        super().__init__(1, d, eps=eps)

    def forward(self, x: Float[Tensor, "b n d"]) -> Float[Tensor, "b n d"]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return super().forward(x.mT).mT


class Pooling(nn.Module):
    """P x - x."""

    order = 1

    def __init__(self, window: int) -> None:
        super().__init__()
        self.window = window

    def forward(self, x: Float[Tensor, "b n d"], tokens: Tokens) -> Float[Tensor, "b n d"]:
        assert tokens.grid is not None  # patches are never left out
        pool = PoolMap(tokens.grid, self.window, less_itself=True, dtype=x.dtype, device=x.device)
        tokens.keep("maps", pool.dense)
        return pool(x)


class Block(MetaFormerBlock):
    """Where a stage begins, the grid is halved; then the two mixings."""

    def __init__(self, config: PoolFormerConfig, layer: int) -> None:
        stage, place = config.places[layer]
        d = config.widths[stage]
        super().__init__(
            Pooling(config.pool_size),
            FeedForward(d, config.expansion * d, activation=config.hidden_act),
            partial(WholeNorm, d, config.layer_norm_eps),
            scale=partial(LayerScale, d, config.layer_scale_init),
            dropout=config.hidden_dropout,
            drop_path=drop_path_rate(config.drop_path, config.drop_path_schedule, layer, config.num_hidden_layers),
        )
        self.halving = nn.Conv2d(config.widths[stage - 1], d, 3, stride=2, padding=1) if stage and place == 0 else None

    def forward(self, tokens: Tokens) -> Tokens:
        if self.halving is not None and tokens.grid is not None:
            grid = (tokens.grid[0] // 2, tokens.grid[1] // 2)
            tokens = replace(tokens, x=as_tokens(self.halving(as_image(tokens.x, tokens.grid))), grid=grid)
        return super().forward(tokens)


def account(config: PoolFormerConfig, n: int) -> list[Line]:
    """The lines of the stem and the body when n places leave the stem."""
    lines = [convolution("patches", 2 * config.patch_size - 1, config.num_channels, config.stem_size, n, read=config.image_size**2)]
    for stage, (depth, d) in enumerate(zip(config.depths, config.widths, strict=True)):
        places, f = n // 4**stage, config.expansion * d
        halving = [convolution("halving", 3, config.widths[stage - 1], d, places, read=4 * places)] if stage else []
        block = [
            layer_norm("gn", d, places),
            pooling(config.pool_size, d, places),
            scale("s_1", d, places),
            layer_norm("gn", d, places),
            *feed_forward(d, f, places),
            scale("s_2", d, places),
            sums(d, places, 2),
        ]
        lines += in_group(f"stage {stage}", [*halving, *in_group("", block, times=depth)])
    return [*lines, *([layer_norm("final norm", config.hidden_size, n // 4 ** (len(config.depths) - 1))] if config.final_norm else [])]


def _pooled(config: PoolFormerConfig) -> MeanPool:
    return MeanPool(nn.LayerNorm(config.hidden_size, eps=config.pooled_norm_eps))


POOLER = Pooler(_pooled, lambda config: [layer_norm("pooled norm", config.hidden_size, 1)], poolings=("mean",))


def _published(depths: list[int], published: str) -> Preset:
    return Preset({"depths": depths, "num_labels": 1000}, "image-classification", "Yu et al. 2021", published, counted_as="macs")


SMALL = {"depths": [1, 1, 1], "widths": [48, 96, 128], "layer_scale_init": 0.1}
TINY = Preset({**SMALL, "image_size": 32, "num_labels": 10}, "image-classification", "tests and demos")
PRESETS = {
    "poolformer-s12": _published([2, 2, 6, 2], "12M"),
    "poolformer-s24": _published([4, 4, 12, 4], "21M"),
    "poolformer-tiny": TINY,
    "poolformer-tiny-image": TINY,
}

PAIR = r"\.(weight|bias)"
TIMM = r"blocks\.(\d+)\."
ASSUMED = 224  # pixels along a side, which the file does not tell


def _settings(state: Mapping[str, Tensor]) -> dict[str, Any]:
    starts = stage_starts(state)
    ends = [*starts[1:], count_layers(state, TIMM + r"norm1\.weight")]
    widths = [len(state[f"blocks.{start}.norm1.weight"]) for start in starts]
    _, channels, kernel, _ = state["stem.conv.weight"].shape
    patch = (kernel + 1) // 2
    multiple = patch << (len(starts) - 1)
    return {
        "depths": [end - start for start, end in zip(starts, ends, strict=True)],
        "widths": widths,
        "expansion": len(state["blocks.0.mlp.fc1.bias"]) // widths[0],
        "patch_size": patch,
        "image_size": max(1, ASSUMED // multiple) * multiple,
        "num_channels": channels,
        "num_labels": len(state["head.fc.bias"]),
    }


IMPORTERS = [
    Importer(
        "timm",
        recognises=lambda state: {"stem.conv.weight", "stages.0.blocks.0.layer_scale1.scale"} <= set(state),
        settings=_settings,
        task=lambda _: "image-classification",
        prepare=count_through,
        finish=count_by_stage,
        renames=[
            Rename(r"stem\.conv" + PAIR, r"model.stem.projection.\1"),
            *modules(TIMM, {"downsample.conv": "halving", "norm1": "token_norm", "norm2": "channel_norm"}),
            *tensors(TIMM, {"layer_scale1.scale": "token_scale.scale", "layer_scale2.scale": "channel_scale.scale"}),
            *tensors(TIMM, {"mlp.fc1.weight": "channel_mixing.widen.weight"}, kernel_as_matrix, matrix_as_kernel),
            *tensors(TIMM, {"mlp.fc2.weight": "channel_mixing.narrow.weight"}, kernel_as_matrix, matrix_as_kernel),
            *tensors(TIMM, {"mlp.fc1.bias": "channel_mixing.widen.bias", "mlp.fc2.bias": "channel_mixing.narrow.bias"}),
            Rename(r"head\.norm" + PAIR, r"pooler.norm.\1"),
            Rename(r"head\.fc" + PAIR, r"classifier.\1"),
        ],
        note=f"windows of 3 x 3 and images of about {ASSUMED} pixels are assumed; others need --set pool_size=K or image_size=N",
    ),
]

ARCH = Architecture(
    "poolformer",
    PoolFormerConfig,
    body=partial(stack, block=Block),
    account=account,
    presets=PRESETS,
    importers=IMPORTERS,
    stem=Stem,
    pooler=POOLER,
)
