"""MobileNet v1: every convolution is cut into one over places and one over channels (Howard et al. 2017, arXiv:1704.04861).

    Z[:, c] = relu6(norm(w_c * X[:, c]))          depthwise: a 3 x 3 kernel for each channel, 9 d numbers
    Y       = relu6(norm(Z W))                    pointwise: the same d x e matrix at every place, d e numbers

In place of a full convolution's 9 d e numbers: 1/e + 1/9 of them. The first block of a stage doubles the channels, and of every stage but
the first it halves rows and columns (stride 2). Before the blocks stands a full 3 x 3 convolution of stride 2. There are no residuals.

Axes: b batch, n tokens (places of the image, row by row), d channels in, e channels out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import field, replace
from functools import partial
from typing import Any, Literal

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from mixlab.accounting import Line
from mixlab.accounting.parts import normed_convolution
from mixlab.errors import MixlabError
from mixlab.layers import Tokens
from mixlab.layers.patches import as_image, as_tokens
from mixlab.modeling.architecture import Architecture, Preset, stack
from mixlab.modeling.config import MixerConfig
from mixlab.modeling.foreign import Importer, Rename, State
from mixlab.modeling.rewriting import renamed
from mixlab.modeling.traits import Traits

STEM_STRIDE = 2


class MobileNetConfig(MixerConfig):
    """depths are the blocks of each stage; hidden_size is the last width, twice that of the stage before, and so on to the stem."""

    model_type = "mixlab-mobilenet"
    hierarchical = True
    poolings = ("mean",)

    modality = "image"
    pooling = "mean"
    patch_size = STEM_STRIDE
    final_norm = False
    depths: list[int] = field(default_factory=lambda: [1, 2, 2, 6, 2])
    same_padding: Literal["symmetric", "tensorflow"] = "symmetric"  # at stride 2, tensorflow pads below and on the right alone

    def __post_init__(self, **kwargs: object) -> None:
        if not self.depths or min(self.depths) < 1:
            raise MixlabError(f"depths are {self.depths}; give at least one stage, and each at least one block")
        self.derive("num_hidden_layers", sum(self.depths), f"depths={self.depths}")
        if self.hidden_size % 2 ** len(self.depths):
            raise MixlabError(f"hidden_size {self.hidden_size} cannot be halved {len(self.depths)} times, once per stage; use a multiple")
        self.require(patch_size=STEM_STRIDE, final_norm=False, hidden_dropout=0.0)
        super().__post_init__(**kwargs)

    @property
    def stem_size(self) -> int:
        return self.hidden_size >> len(self.depths)

    @property
    def final_patch(self) -> int:
        return STEM_STRIDE << (len(self.depths) - 1)

    @property
    def image_multiple(self) -> int:
        return self.final_patch

    def blocks(self) -> list[tuple[int, int, int]]:
        """Channels in, channels out and stride of every block."""
        found, d = [], self.stem_size
        for stage, depth in enumerate(self.depths):
            found += [(d, 2 * d, 2 if stage else 1), *[(2 * d, 2 * d, 1)] * (depth - 1)]
            d *= 2
        return found

    @property
    def traits(self) -> Traits:
        return Traits(
            masks=False,
            causal=False,
            length="grid",
            modalities=("image",),
            tasks=("features", "image-classification", "image-restoration"),
            order=(1,),
            attention=False,
            maps=False,
            reach=self._reach(),
        )

    def _reach(self) -> int:
        """Pixels beyond its own that a final token reads: one more per kernel, doubled by every stride below it."""
        far = 0
        for stride in [*(stride for _, _, stride in reversed(self.blocks())), STEM_STRIDE]:
            far = stride * far + 1
        return far


def same(convolved: nn.Conv2d, image: Float[Tensor, "b d rows columns"], padding: str) -> Float[Tensor, "b e fewer narrower"]:
    """A 3 x 3 convolution that writes rows / stride; at stride 2, libraries differ in where the zeros stand."""
    one_sided = padding == "tensorflow" and convolved.stride[0] == 2
    return convolved(F.pad(image, (0, 1, 0, 1) if one_sided else (1, 1, 1, 1)))


class Stem(nn.Module):
    """A full convolution of stride 2."""

    def __init__(self, config: MobileNetConfig) -> None:
        super().__init__()
        self.projection = nn.Conv2d(config.num_channels, config.stem_size, 3, STEM_STRIDE, bias=False)
        self.norm = nn.BatchNorm2d(config.stem_size, eps=config.layer_norm_eps)
        self.padding = config.same_padding

    def forward(self, pixels: Float[Tensor, "b c height width"]) -> Float[Tensor, "b n d"]:
        return as_tokens(F.relu6(self.norm(same(self.projection, pixels, self.padding))))


class Block(nn.Module):
    """Depthwise, then pointwise."""

    order = 1

    def __init__(self, config: MobileNetConfig, layer: int) -> None:
        super().__init__()
        d, e, self.stride = config.blocks()[layer]
        self.depthwise = nn.Conv2d(d, d, 3, self.stride, groups=d, bias=False)
        self.depthwise_norm = nn.BatchNorm2d(d, eps=config.layer_norm_eps)
        self.pointwise = nn.Conv2d(d, e, 1, bias=False)
        self.pointwise_norm = nn.BatchNorm2d(e, eps=config.layer_norm_eps)
        self.padding = config.same_padding

    def forward(self, tokens: Tokens) -> Tokens:
        assert tokens.grid is not None
        z = F.relu6(self.depthwise_norm(same(self.depthwise, as_image(tokens.x, tokens.grid), self.padding)))
        y = F.relu6(self.pointwise_norm(self.pointwise(z)))  # b e rows columns
        return replace(tokens, x=as_tokens(y), grid=(tokens.grid[0] // self.stride, tokens.grid[1] // self.stride))


def padded(config: MobileNetConfig, places: int, stride: int) -> int:
    """Places that a convolution reads, with the zeros around them."""
    return (math.isqrt(places) + (1 if config.same_padding == "tensorflow" and stride == 2 else 2)) ** 2


def account(config: MobileNetConfig, n: int) -> list[Line]:
    """The lines of the stem and the blocks when n places leave the stem."""
    read = padded(config, STEM_STRIDE**2 * n, STEM_STRIDE)
    lines = normed_convolution("stem", 3, config.num_channels, config.stem_size, n, read=read)
    for layer, (d, e, stride) in enumerate(config.blocks()):
        read, n = padded(config, n, stride), n // (stride * stride)
        lines += normed_convolution(f"depthwise {layer}", 3, d, d, n, groups=d, read=read)
        lines += normed_convolution(f"pointwise {layer}", 1, d, e, n)
    return lines


TINY = Preset(
    {"depths": [1, 1, 2], "hidden_size": 128, "image_size": 32, "num_labels": 10, "layer_norm_eps": 1e-3},
    "image-classification",
    "tests and demos",
)
PRESETS = {
    "mobilenet-v1": Preset(
        {"hidden_size": 1024, "num_labels": 1000, "layer_norm_eps": 1e-3, "same_padding": "tensorflow"},
        "image-classification",
        "Howard et al. 2017",
        "4.2M",
        counted_as="macs",
    ),
    "mobilenet-tiny": TINY,
    "mobilenet-tiny-image": TINY,
}

TRANSFORMERS = re.compile(r"mobilenet_v1\.layer\.(\d+)\.(convolution|normalization)\.(\w+)")
TIMM = re.compile(r"blocks\.(\d+)\.(\d+)\.(\w+)\.(\w+)")
FLAT = re.compile(r"blocks\.(\d+)\.(conv_dw|bn1|conv_pw|bn2)\.(\w+)")  # what both layouts become: blocks counted through
PARTS = {"conv_dw": "depthwise", "bn1": "depthwise_norm", "conv_pw": "pointwise", "bn2": "pointwise_norm"}
TENSORS = r"\.(weight|bias|running_mean|running_var|num_batches_tracked)"


def _depths(state: Mapping[str, Tensor]) -> list[int]:
    """Blocks of each stage: one begins where the channels double."""
    depths: list[int] = []
    for layer in range(sum(name.endswith(".conv_pw.weight") for name in state)):
        e, d = state[f"blocks.{layer}.conv_pw.weight"].shape[:2]
        if layer == 0 or e == 2 * d:
            depths.append(0)
        depths[-1] += 1
    return depths


def _from_timm(state: State) -> State:
    places = sorted({(int(m[1]), int(m[2])) for name in state if (m := TIMM.fullmatch(name))})
    return renamed(state, TIMM, lambda m: f"blocks.{places.index((int(m[1]), int(m[2])))}.{m[3]}.{m[4]}")


def _to_timm(state: State) -> State:
    places = [(stage, block) for stage, depth in enumerate(_depths(state)) for block in range(depth)]
    return renamed(state, FLAT, lambda m: "blocks.{}.{}.".format(*places[int(m[1])]) + f"{m[2]}.{m[3]}")


def _from_transformers(state: State) -> State:
    def name(m: re.Match[str]) -> str:
        block, pointwise = divmod(int(m[1]), 2)
        return f"blocks.{block}.{list(PARTS)[2 * pointwise + (m[2] == 'normalization')]}.{m[3]}"

    return renamed(state, TRANSFORMERS, name)


def _to_transformers(state: State) -> State:
    def name(m: re.Match[str]) -> str:
        pointwise, norm = divmod(list(PARTS).index(m[2]), 2)
        return f"mobilenet_v1.layer.{2 * int(m[1]) + pointwise}.{'normalization' if norm else 'convolution'}.{m[3]}"

    return renamed(state, FLAT, name)


def _settings(state: Mapping[str, Tensor], **more: object) -> dict[str, Any]:
    labels, hidden = state["classifier.weight"].shape
    stem = next(tensor for name, tensor in state.items() if tensor.dim() == 4 and "conv_stem" in name)
    return {"depths": _depths(state), "hidden_size": hidden, "num_channels": stem.shape[1], "num_labels": labels, **more}


def _importer(name: str, first: str, stem: tuple[str, str], **more: Any) -> Importer:
    return Importer(
        name,
        recognises=lambda state: first in state and not any(".conv_pwl." in other for other in state),
        task=lambda _: "image-classification",
        renames=[
            Rename(re.escape(stem[0]) + r"\.weight", "model.stem.projection.weight"),
            Rename(re.escape(stem[1]) + TENSORS, r"model.stem.norm.\1"),
            *(Rename(rf"blocks\.(\d+)\.{theirs}" + TENSORS, rf"model.body.blocks.\1.{ours}.\2") for theirs, ours in PARTS.items()),
            Rename(r"classifier\.(weight|bias)", r"classifier.\1"),
        ],
        note="where no config.json tells the size of images, 224 is assumed; any multiple of 32 is read",
        **more,
    )


IMPORTERS = [
    _importer(
        "timm",
        "blocks.0.0.conv_dw.weight",
        ("conv_stem", "bn1"),
        settings=partial(_settings, layer_norm_eps=1e-5, same_padding="symmetric"),
        prepare=_from_timm,
        finish=_to_timm,
    ),
    _importer(
        "transformers",
        "mobilenet_v1.layer.0.convolution.weight",
        ("mobilenet_v1.conv_stem.convolution", "mobilenet_v1.conv_stem.normalization"),
        settings=partial(_settings, layer_norm_eps=1e-3, same_padding="tensorflow"),
        prepare=_from_transformers,
        finish=_to_transformers,
        told={"layer_norm_eps": "layer_norm_eps", "image_size": "image_size"},
        fixed={"tf_padding": True, "hidden_act": "relu6"},
    ),
]

ARCH = Architecture(
    "mobilenet",
    MobileNetConfig,
    body=partial(stack, block=Block),
    account=account,
    presets=PRESETS,
    importers=IMPORTERS,
    stem=Stem,
)
