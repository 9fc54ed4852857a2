"""Hybrid: convolutions, attention and a hierarchy in one model, in the order that a plan spells, a letter for each block.

    A = X + mix(norm(X))                    c: depthwise k x k convolution        a: attention of all tokens        w: attention in windows
    Y = A + gelu(norm(A) W_1) W_2           W_1: d x r d,  W_2: r d x d
    /   merges 2 x 2 tokens into one and doubles d

Three ways to combine what sees near with what sees far:

    ccaa     convolutions first, then attention (as CoAtNet, Dai et al. 2021, arXiv:2106.04803)
    caca     a block of the one exchanged for a block of the other (as MaxViT, Tu et al. 2022, arXiv:2204.01697)
    ww/aa    the hierarchy of convolutional networks in a Transformer (as PVT, Wang et al. 2021, arXiv:2102.12122, and Swin)

All parts exist on their own: the pre-norm block, banded maps, attention, Swin's windows and merging. Convolutions, windows and merging tell
tokens where they are, so there are no positions. A plan needs an `a`, so that every token reads the whole image, and one of the others.

Axes: b batch, n tokens, d channels of a stage.
"""

from __future__ import annotations

import math
from functools import partial
from itertools import groupby
from typing import Any, Literal

from jaxtyping import Float
from torch import Tensor, nn

from mixlab.accounting import Line, in_group
from mixlab.accounting.parts import attention, convolution, feed_forward, layer_norm, linear, sums, window_attention
from mixlab.errors import MixlabError
from mixlab.layers import FeedForward, PatchMerging, PreNormBlock, SelfAttention, Tokens, WindowAttention
from mixlab.layers.drop_path import drop_path_rate
from mixlab.layers.patches import as_image, as_tokens
from mixlab.maps import GridBandedMap
from mixlab.modeling.architecture import Architecture, Preset, stack
from mixlab.modeling.config import MixerConfig, Number
from mixlab.modeling.traits import IMAGE_TASKS, Traits

BLOCKS, MERGE = "caw", "/"


class HybridConfig(MixerConfig):
    """kernel_size = k, mlp_ratio = r. hidden_size is the width of the last stage, head_size that of every head of attention."""

    model_type = "mixlab-hybrid"
    hierarchical = True
    poolings = ("mean",)

    modality = "image"
    pooling = "mean"
    plan: str = "ccaaaa"
    kernel_size: int = 3
    window_size: int = 4
    head_size: int = 32
    mlp_ratio: Number = 4.0
    attention_dropout: Number = 0.0
    hidden_act: Literal["gelu", "gelu_pytorch_tanh"] = "gelu"
    drop_path: Number = 0.0
    drop_path_schedule: Literal["constant", "linear"] = "linear"

    def __post_init__(self, **kwargs: object) -> None:
        self._check_plan()
        super().__post_init__(**kwargs)
        for name in ("attention_dropout", "drop_path"):
            self.check_rate(name)

    def _check_plan(self) -> None:
        unknown = set(self.plan) - {*BLOCKS, MERGE}
        if unknown or "" in self.plan.split(MERGE):
            raise MixlabError(f"plan {self.plan!r}: write stages of the letters c, a and w, with a / between two stages")
        if "a" not in self.plan or set(self.plan) == {"a"}:
            raise MixlabError(f"plan {self.plan!r} mixes in one way only; write an a and another letter, or use vit, convmixer or swin")
        self.derive("num_hidden_layers", len(self.layers), f"plan {self.plan!r}")
        merges = self.plan.count(MERGE)
        if merges > 8 or self.hidden_size % 2**merges or self.width(0) % max(1, self.head_size) or self.head_size < 1:
            widths = f"halved {merges} times (at most 8) and cut into heads of {self.head_size}"
            raise MixlabError(f"hidden_size {self.hidden_size} cannot be {widths}; use a multiple of both")
        if self.kernel_size < 1 or self.kernel_size % 2 == 0:
            raise MixlabError(f"kernel_size is {self.kernel_size}; use an odd one, which has a middle")
        if self.window_size < 1 or not 0 < self.mlp_ratio <= 64:
            raise MixlabError(f"window_size is at least 1 and mlp_ratio between 0 and 64; got {self.window_size}, {self.mlp_ratio}")
        for kind, stage, _ in self.layers:
            grid = self.image_size // max(1, self.patch_size * 2**stage)
            if kind == "w" and self.window_size > grid:
                raise MixlabError(f"window_size {self.window_size} is larger than the grid of {grid} x {grid}; use {max(1, grid)}, or an a")

    def width(self, stage: int) -> int:
        return self.hidden_size // 2 ** (self.plan.count(MERGE) - stage)

    @property
    def layers(self) -> list[tuple[str, int, int]]:
        """Of every block: its letter, its stage, and how many of its kind stand directly before it."""
        stages = enumerate(self.plan.split(MERGE))
        return [(kind, stage, place) for stage, part in stages for kind, run in groupby(part) for place, _ in enumerate(run)]

    @property
    def stem_size(self) -> int:
        return self.width(0)

    @property
    def final_patch(self) -> int:
        return self.patch_size * 2 ** self.plan.count(MERGE)

    @property
    def image_multiple(self) -> int:
        return math.lcm(self.final_patch, *(self.patch_size * 2**stage * self.window_size for kind, stage, _ in self.layers if kind == "w"))

    @property
    def traits(self) -> Traits:
        return Traits(
            masks=False,
            causal=False,
            length="grid",
            modalities=("image",),
            tasks=IMAGE_TASKS,
            order=(1, 3) if "c" in self.plan else (3,),
            attention="c" not in self.plan,
        )


class Convolution(nn.Module):
    """A k x k kernel for every channel, over the grid; beyond the border stand zeros. It is shown as `maps`, one per channel."""

    order = 1  # the degree of the mixing in its input

    def __init__(self, d: int, kernel: int) -> None:
        super().__init__()
        self.convolve = nn.Conv2d(d, d, kernel, padding=kernel // 2, groups=d)

    def forward(self, tokens: Tokens) -> Float[Tensor, "b n d"]:
        grid = tokens.grid
        if grid is None:
            raise MixlabError("a convolution of an image needs its rows and columns; give Tokens(x, grid=...)")
        # Taps are told by how far they look back; a convolution of torch reads forwards.
        tokens.keep("maps", lambda: GridBandedMap(self.convolve.weight.squeeze(1).flip(-2, -1), grid).dense())
        return as_tokens(self.convolve(as_image(tokens.x, grid)))


def mixing(config: HybridConfig, kind: str, stage: int, place: int) -> nn.Module:
    """What a letter stands for. Windows are shifted in every second of several blocks in a row."""
    d, heads, drop, window = config.width(stage), config.width(stage) // config.head_size, config.attention_dropout, config.window_size
    if kind == "c":
        return Convolution(d, config.kernel_size)
    if kind == "a":
        return SelfAttention(d, d, d, heads=heads, dropout=drop, kinds=("attention", "maps"))
    return WindowAttention(d, window, heads=heads, shift=window // 2 if place % 2 else 0, dropout=drop)


class Block(PreNormBlock):
    """The mixing that the plan says, and the feed-forward network; before the first block of a later stage, tokens are merged."""

    def __init__(self, config: HybridConfig, layer: int) -> None:
        kind, stage, place = config.layers[layer]
        d = config.width(stage)
        super().__init__(
            d,
            mixing(config, kind, stage, place),
            FeedForward(d, int(config.mlp_ratio * d), activation=config.hidden_act),
            eps=config.layer_norm_eps,
            dropout=config.hidden_dropout,
            drop_path=drop_path_rate(config.drop_path, config.drop_path_schedule, layer, config.num_hidden_layers),
        )
        begins = layer > 0 and config.layers[layer - 1][1] != stage
        self.merging = PatchMerging(d // 2, d, eps=config.layer_norm_eps) if begins else None

    def forward(self, tokens: Tokens) -> Tokens:
        return super().forward(tokens if self.merging is None else self.merging(tokens))


def account(config: HybridConfig, n: int) -> list[Line]:
    """The lines of the body for an image of n patches."""
    lines, before = [], 0
    for kind, stage, _ in config.layers:
        d, tokens = config.width(stage), n // 4**stage
        if stage != before:
            lines += in_group(
                f"merge {stage}", [layer_norm("merging norm", 2 * d, tokens), linear("merging", 2 * d, d, tokens, bias=False)]
            )
        mix = [convolution("kernels", config.kernel_size, d, d, tokens, groups=d)]
        if kind != "c":
            heads = d // config.head_size
            pairs = (
                attention(tokens, tokens, d, heads)
                if kind == "a"
                else window_attention(tokens, config.window_size**2, d, heads, biased=True)
            )
            symbols = {"M": config.window_size, "h": heads}
            bias = [Line("B", "(2*M - 1)*(2*M - 1)*h", "0", symbols)] if kind == "w" else []
            mix = [linear("W_qkv", d, 3 * d, tokens), *bias, pairs, linear("W_o", d, d, tokens)]
        f = int(config.mlp_ratio * d)
        ffn = [layer_norm("feed-forward norm", d, tokens), *feed_forward(d, f, tokens), sums(d, tokens, 2)]
        lines += in_group(f"stage {stage}", [layer_norm("mixing norm", d, tokens), *mix, *ffn])
        before = stage
    return [*lines, *([layer_norm("final norm", config.hidden_size, n // 4**before)] if config.final_norm else [])]


def _tiny(plan: str, **more: Any) -> Preset:
    settings = {"plan": plan, "hidden_size": 64, "image_size": 32, "patch_size": 4, "num_labels": 10, **more}
    return Preset(settings, "image-classification", "tests and demos")


FIRST = _tiny("ccaa")
PRESETS = {
    "hybrid-first-tiny": FIRST,
    "hybrid-swap-tiny": _tiny("caca"),
    "hybrid-hierarchy-tiny": _tiny("ww/a", hidden_size=128),
    "hybrid-tiny": FIRST,
    "hybrid-tiny-image": FIRST,
}

ARCH = Architecture("hybrid", HybridConfig, body=partial(stack, block=Block), account=account, presets=PRESETS)
