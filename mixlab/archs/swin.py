"""Swin: a Transformer in windows, whose tokens are merged from stage to stage (Liu et al. 2021, arXiv:2103.14030).

    A = X + attend(norm(X))                         attend: softmax(q k^T / sqrt(c) + B) v W_o, within each window of M x M tokens
    Y = A + gelu(norm(A) W_1) W_2                   W_1: d x r d,  W_2: r d x d

The windows of every second block are shifted by M // 2 tokens down and to the right, and wrap around; tokens that only meet by that do not
read each other. B is a learned number per head and offset. Before every stage but the first, 2 x 2 tokens become one and d doubles:

    X <- norm([x_00, x_10, x_01, x_11]) W           W: 4d x 2d, without a bias

An axis with one window is not shifted. The grid of the last stage is cut into whole windows, or the image is refused: nothing is padded.

Axes: b batch, n tokens, d channels of a stage, h heads of a stage, s = M^2 tokens of a window.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import partial
from operator import index
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mixlab.accounting import Line, in_group
from mixlab.accounting.parts import feed_forward, layer_norm, linear, patch_projection, sums, window_attention
from mixlab.errors import MixlabError
from mixlab.layers import FeedForward, PatchMerging, PatchStem, PreNormBlock, Tokens, WindowAttention
from mixlab.layers.drop_path import drop_path_rate
from mixlab.layers.patches import as_tokens
from mixlab.modeling.architecture import Architecture, Preset, stack
from mixlab.modeling.config import MixerConfig, Number
from mixlab.modeling.foreign import Importer, Rename, State, image_settings, modules, tensors
from mixlab.modeling.traits import IMAGE_TASKS, Traits


class SwinConfig(MixerConfig):
    """The paper's symbols: window_size = M, mlp_ratio = r. hidden_size is the width of the last stage, which the heads read."""

    model_type = "mixlab-swin"
    hierarchical = True
    poolings = ("mean",)

    modality = "image"
    pooling = "mean"
    patch_size = 4
    layer_norm_eps = 1e-5
    depths: list[int] | tuple[int, ...] = (2, 2, 2)  # blocks of each stage
    num_heads: list[int] | tuple[int, ...] = (2, 4, 8)  # of each stage
    window_size: int = 7
    mlp_ratio: Number = 4.0
    attention_dropout: Number = 0.0
    hidden_act: Literal["gelu", "gelu_pytorch_tanh"] = "gelu"
    drop_path: Number = 0.0
    drop_path_schedule: Literal["constant", "linear"] = "linear"

    def __post_init__(self, **kwargs: object) -> None:
        self.depths, self.num_heads = list(self.depths), list(self.num_heads)
        self._check_stages()
        super().__post_init__(**kwargs)
        for name in ("attention_dropout", "drop_path"):
            self.check_rate(name)

    def _check_stages(self) -> None:
        stages = len(self.depths)
        if not self.depths or min(self.depths) < 1 or stages > 8 or len(self.num_heads) != stages:
            raise MixlabError(f"depths {self.depths} and num_heads {self.num_heads}: give one number for each of up to 8 stages")
        self.derive("num_hidden_layers", sum(self.depths), f"depths {self.depths}")
        if self.hidden_size % 2 ** (stages - 1):
            raise MixlabError(f"hidden_size {self.hidden_size} cannot be halved {stages - 1} times, once per stage; use a multiple")
        for stage, heads in enumerate(self.num_heads):
            if heads < 1 or self.width(stage) % heads:
                raise MixlabError(f"{self.width(stage)} channels of stage {stage} cannot be split into num_heads={heads}; use a divisor")
        if self.window_size < 1 or not 0 < self.mlp_ratio <= 64:
            raise MixlabError(f"window_size is at least 1 and mlp_ratio between 0 and 64; got {self.window_size}, {self.mlp_ratio}")
        last = self.image_size // max(1, self.patch_size * 2 ** (stages - 1))
        if self.window_size > last:
            raise MixlabError(f"window_size {self.window_size} is larger than the last stage's grid of {last} x {last}; use {max(last, 1)}")

    def width(self, stage: int) -> int:
        return self.hidden_size // 2 ** (len(self.depths) - 1 - stage)

    @property
    def places(self) -> list[tuple[int, int]]:
        """Stage and place in its stage of every block."""
        return [(stage, place) for stage, depth in enumerate(self.depths) for place in range(depth)]

    @property
    def stem_size(self) -> int:
        return self.width(0)

    @property
    def final_patch(self) -> int:
        return self.patch_size * 2 ** (len(self.depths) - 1)

    @property
    def image_multiple(self) -> int:
        return self.final_patch * self.window_size

    @property
    def traits(self) -> Traits:
        return Traits(
            masks=False,
            causal=False,
            length="grid",
            modalities=("image",),
            tasks=IMAGE_TASKS,
            order=(3,),
            attention=True,
            reach=reach(self),
        )


def reach(config: SwinConfig) -> int | None:
    """How many pixels beyond its own a final token reads at the most; None: the whole image. Followed backwards, along one axis."""
    grid, window, farthest = config.image_size // config.final_patch, config.window_size, 0
    for token in range(grid):
        low, high, extent = token, token + 1, grid  # what is read, in tokens of the stage
        for _, place in reversed(config.places):
            shift = window // 2 if place % 2 and extent > window else 0
            low, high = max(0, (low - shift) // window * window + shift), min(extent, -((shift - high) // window) * window + shift)
            if place == 0:
                low, high, extent = 2 * low, 2 * high, 2 * extent
        pixels = extent // grid * config.patch_size // 2  # of a final token; the first stage was doubled as well
        low, high = low * config.patch_size // 2, high * config.patch_size // 2
        farthest = max(farthest, token * pixels - low, high - (token + 1) * pixels)
    return None if grid == window else farthest


class Stem(PatchStem):
    """Patches, and a norm."""

    def __init__(self, config: SwinConfig) -> None:
        super().__init__(config.patch_size, config.num_channels, config.stem_size, dropout=config.stem_dropout)
        self.norm = nn.LayerNorm(config.stem_size, eps=config.layer_norm_eps)

    def forward(self, pixels: Float[Tensor, "b c height width"]) -> Float[Tensor, "b n d"]:
        for side in pixels.shape[2:]:
            index(side)  # windows are cut from known sides: a compiled model is one for each size of image
        return self.dropout(self.norm(as_tokens(self.projection(pixels))))


class Block(PreNormBlock):
    """Tokens are merged where a stage begins; then attention in windows, shifted in every second block, and the feed-forward network."""

    def __init__(self, config: SwinConfig, layer: int) -> None:
        stage, place = config.places[layer]
        d, window = config.width(stage), config.window_size
        heads, shift, drop = config.num_heads[stage], window // 2 if place % 2 else 0, config.attention_dropout
        super().__init__(
            d,
            WindowAttention(d, window, heads=heads, shift=shift, dropout=drop),
            FeedForward(d, int(config.mlp_ratio * d), activation=config.hidden_act),
            eps=config.layer_norm_eps,
            dropout=config.hidden_dropout,
            drop_path=drop_path_rate(config.drop_path, config.drop_path_schedule, layer, config.num_hidden_layers),
        )
        self.merging = PatchMerging(d // 2, d, eps=config.layer_norm_eps) if stage and place == 0 else None

    def forward(self, tokens: Tokens) -> Tokens:
        return super().forward(tokens if self.merging is None else self.merging(tokens))


def account(config: SwinConfig, n: int) -> list[Line]:
    """The lines of stem and body for an image of n patches."""
    lines = [patch_projection(config.image_size, config.patch_size, config.num_channels, config.stem_size)]
    lines = in_group("stem", [*lines, layer_norm("patch norm", config.stem_size, n)])
    for stage, (depth, heads) in enumerate(zip(config.depths, config.num_heads, strict=True)):
        d, tokens = config.width(stage), n // 4**stage
        f, symbols = int(config.mlp_ratio * d), {"n": tokens, "M": config.window_size, "d": d, "h": heads}
        merging = [layer_norm("merging norm", 2 * d, tokens), linear("merging", 2 * d, d, tokens, bias=False)] if stage else []
        block = [
            layer_norm("attention norm", d, tokens),
            linear("W_qkv", d, 3 * d, tokens),
            Line("B", "(2*M - 1)*(2*M - 1)*h", "0", symbols),
            window_attention(tokens, config.window_size**2, d, heads, biased=True),
            linear("W_o", d, d, tokens),
            layer_norm("feed-forward norm", d, tokens),
            *feed_forward(d, f, tokens),
            sums(d, tokens, 2),
        ]
        lines += in_group(f"stage {stage}", [*merging, *in_group("", block, times=depth)])
    return [*lines, *([layer_norm("final norm", config.hidden_size, n // 4 ** (len(config.depths) - 1))] if config.final_norm else [])]


def _published(depths: list[int], d: int, heads: list[int], drop_path: float, published: str) -> Preset:
    settings = {"depths": depths, "hidden_size": 8 * d, "num_heads": heads, "window_size": 7}
    settings |= {"image_size": 224, "num_labels": 1000, "drop_path": drop_path}
    return Preset(settings, "image-classification", "Liu et al. 2021, Table 1", published, counted_as="macs")


TINY = Preset(
    {
        "depths": [2, 1],
        "hidden_size": 128,
        "num_heads": [2, 4],
        "window_size": 4,
        "image_size": 32,
        "num_labels": 10,
    },
    "image-classification",
    "tests and demos",
)
PRESETS = {
    "swin-t": _published([2, 2, 6, 2], 96, [3, 6, 12, 24], 0.2, "29M"),
    "swin-s": _published([2, 2, 18, 2], 96, [3, 6, 12, 24], 0.3, "50M"),
    "swin-b": _published([2, 2, 18, 2], 128, [4, 8, 16, 32], 0.5, "88M"),
    "swin-tiny": TINY,
    "swin-tiny-image": TINY,
}

BLOCK = r"(.*?)layers\.(\d+)\.blocks\.(\d+)\.(.*)"
MERGING = r"(.*?)layers\.(\d+)\.downsample\.(.*)"
TABLE = r".*blocks\.(\d+)\..*relative_position_bias_table"
HUB_NAMES = {
    "attention.q_proj.": "attention.self.query.",
    "attention.k_proj.": "attention.self.key.",
    "attention.v_proj.": "attention.self.value.",
    "attention.o_proj.": "attention.output.dense.",
    "attention.relative_position_bias.relative": "attention.self.relative",
    "mlp.fc1.": "intermediate.dense.",
    "mlp.fc2.": "output.dense.",
}
PROJECTIONS = ("query", "key", "value")


def _flat(state: Mapping[str, Tensor], later: int) -> State:
    """Blocks numbered through all stages; merging goes to the block behind it (`later`: it is filed under the stage before it)."""
    kept = {name: tensor for name, tensor in state.items() if not name.endswith(("relative_position_index", "attn_mask"))}
    blocks = sorted({(int(m[2]), int(m[3])) for name in kept if (m := re.fullmatch(BLOCK, name))})
    flat: State = {}
    for name, tensor in kept.items():
        if m := re.fullmatch(BLOCK, name):
            name = f"{m[1]}blocks.{blocks.index((int(m[2]), int(m[3])))}.{m[4]}"
        elif m := re.fullmatch(MERGING, name):
            name = f"{m[1]}blocks.{blocks.index((int(m[2]) + later, 0))}.downsample.{m[3]}"
        flat[name] = tensor
    return flat


def _starts(state: Mapping[str, Tensor]) -> list[int]:
    """The first block of each stage."""
    return [0, *sorted({int(m[1]) for name in state if (m := re.fullmatch(r".*blocks\.(\d+)\.downsample\..*", name))})]


def _staged(state: Mapping[str, Tensor], later: int) -> State:
    """Undo `_flat`."""
    starts = _starts(state)
    staged: State = {}
    for name, tensor in state.items():
        if m := re.fullmatch(r"(.*?)blocks\.(\d+)\.(.*)", name):
            stage = max(s for s, start in enumerate(starts) if start <= int(m[2]))
            inside = f"blocks.{int(m[2]) - starts[stage]}.{m[3]}"
            merges = m[3].startswith("downsample.")
            name = f"{m[1]}layers.{stage - later if merges else stage}.{m[3] if merges else inside}"
        staged[name] = tensor
    return staged


def _prepare_transformers(state: State) -> State:
    """Under the names of its files, which differ from those of its modules; three projections become one."""
    renamed: State = {}
    for name, tensor in state.items():
        for module, file in HUB_NAMES.items():
            name = name.replace(module, file)
        renamed[name if name.startswith(("swin.", "classifier.")) else f"swin.{name}"] = tensor
    flat = _flat(renamed, later=1)
    for name in [name for name in flat if ".self.query." in name]:
        flat[name.replace("query", "qkv")] = torch.cat([flat.pop(name.replace("query", part)) for part in PROJECTIONS])
    return flat


def _finish_transformers(state: State) -> State:
    state = dict(state)
    for name in [name for name in state if ".self.qkv." in name]:
        state |= {name.replace("qkv", part): tensor for part, tensor in zip(PROJECTIONS, state.pop(name).chunk(3), strict=True)}
    return _staged(state, later=1)


def _settings(state: Mapping[str, Tensor], patches: str, widen: str, head: str) -> dict[str, Any]:
    """What the shapes tell. Windows fit many images: one window in the last stage is assumed, as in every published model."""
    tables = {int(m[1]): tensor.shape for name, tensor in state.items() if (m := re.fullmatch(TABLE, name))}
    starts, areas = _starts(state), {area for area, _ in tables.values()}
    window = (round(areas.pop() ** 0.5) + 1) // 2
    if areas:
        raise MixlabError("windows of several sizes in one file; only models with one window_size can be imported")
    d, channels, patch, _ = state[patches].shape
    settings = {
        "depths": [end - start for start, end in zip(starts, [*starts[1:], len(tables)], strict=True)],
        "num_heads": [tables[start][1] for start in starts],
        "hidden_size": d * 2 ** (len(starts) - 1),
        "window_size": window,
        "mlp_ratio": len(state[widen]) / d,
        "layer_norm_eps": 1e-5,
        "max_position_embeddings": (window * 2 ** (len(starts) - 1)) ** 2,
    }
    return image_settings(settings, patch, channels, len(state[head]) if head in state else 2)


def _renames(stem: str, blocks: str, names: Mapping[str, str], table: str, norm: str, head: str) -> Iterator[Rename]:
    patches, patch_norm = stem.split()
    yield Rename(patches + r"\.(weight|bias)", r"model.stem.projection.\1")
    yield Rename(patch_norm + r"\.(weight|bias)", r"model.stem.norm.\1")
    yield from modules(blocks, {**names, "downsample.norm": "merging.norm", "downsample.reduction": "merging.reduction"})
    yield from tensors(blocks, {table: "attention.offsets.table"})
    yield Rename(norm + r"\.(weight|bias)", r"model.body.norm.\1")
    yield Rename(head + r"\.(weight|bias)", r"classifier.\1")


NOTE = "where no config.json tells, the image is assumed to be as large as one window in the last stage; others need --set image_size=N"
TIMM = {"norm1": "attention_norm", "attn.qkv": "attention.qkv", "attn.proj": "attention.out", "norm2": "ffn_norm"}
TRANSFORMERS = {
    "layernorm_before": "attention_norm",
    "attention.self.qkv": "attention.qkv",
    "attention.output.dense": "attention.out",
    "layernorm_after": "ffn_norm",
    "intermediate.dense": "ffn.widen",
    "output.dense": "ffn.narrow",
}
EMBEDDINGS = r"swin\.embeddings\."

IMPORTERS = [
    Importer(
        "timm",
        recognises=lambda state: "layers.0.blocks.0.attn.relative_position_bias_table" in state and "patch_embed.proj.weight" in state,
        settings=partial(_settings, patches="patch_embed.proj.weight", widen="blocks.0.mlp.fc1.bias", head="head.fc.bias"),
        task=lambda state: "image-classification" if "head.fc.bias" in state else "features",
        prepare=partial(_flat, later=0),
        finish=partial(_staged, later=0),
        renames=list(
            _renames(
                r"patch_embed\.proj patch_embed\.norm",
                r"blocks\.(\d+)\.",
                {**TIMM, "mlp.fc1": "ffn.widen", "mlp.fc2": "ffn.narrow"},
                "attn.relative_position_bias_table",
                "norm",
                r"head\.fc",
            )
        ),
        note=NOTE,
    ),
    Importer(
        "transformers",
        recognises=lambda state: any(re.fullmatch(r"(?:swin\.)?encoder\.layers\.0\.blocks\.0\.layernorm_before\.weight", n) for n in state),
        settings=partial(
            _settings,
            patches="swin.embeddings.patch_embeddings.projection.weight",
            widen="swin.encoder.blocks.0.intermediate.dense.bias",
            head="classifier.bias",
        ),
        task=lambda state: "image-classification" if "classifier.bias" in state else "features",
        prepare=_prepare_transformers,
        finish=_finish_transformers,
        renames=list(
            _renames(
                rf"{EMBEDDINGS}patch_embeddings\.projection {EMBEDDINGS}norm",
                r"swin\.encoder\.blocks\.(\d+)\.",
                TRANSFORMERS,
                "attention.self.relative_position_bias_table",
                r"swin\.layernorm",
                "classifier",
            )
        ),
        note=NOTE,
        told={name: name for name in ("image_size", "hidden_act")},
        fixed={"layer_norm_eps": 1e-5},  # two of its norms do not read it
    ),
]

ARCH = Architecture("swin", SwinConfig, body=partial(stack, block=Block), account=account, presets=PRESETS, importers=IMPORTERS, stem=Stem)
