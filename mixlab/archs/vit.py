"""ViT: a Transformer over the patches of an image (Dosovitskiy et al. 2020, arXiv:2010.11929), also as ViT-22B and masked autoencoder.

    Z = [cls; patches E] + positions                  E: p p c x d
    A = Z + attend(norm(Z))                           attend: h heads, softmax(q k^T / sqrt(d / h)) v, q, k, v and output d x d
    Y = A + gelu(norm(A) W_1) W_2                     W_1: d x f,  W_2: f x d

Then a norm. `parallel` is the block of ViT-22B (Dehghani et al. 2023, arXiv:2302.05442), whose branches run at once:

    Y = Z + attend(norm(Z)) + gelu(norm(Z) W_1) W_2

q and k of every head then have a norm of their own; W_qkv has no bias, and norms neither centre nor have one. The label is read from the
cls token, from the mean of the patches, or (`map`) by a probe that attends to them. A masked autoencoder (He et al. 2021, arXiv:2111.06377)
encodes the visible patches alone; its positions are fixed waves, and its decoder is a smaller ViT.

Axes: b batch, n tokens, d model, f expanded, h heads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from torch import Tensor, nn

from mixlab.accounting import Line, in_group
from mixlab.accounting.parts import attention, attention_pool, embedding, feed_forward, layer_norm, linear, scale_norm, sums
from mixlab.errors import MixlabError
from mixlab.layers import FeedForward, SelfAttention, Stack, Tokens
from mixlab.layers.drop_path import drop_path_rate
from mixlab.layers.pooling import AttentionPool, MeanPool
from mixlab.layers.positions import LearnedPositions, WavePositions
from mixlab.layers.transformer import ParallelBlock, PreNormBlock
from mixlab.modeling.architecture import Architecture, Pooler, Preset
from mixlab.modeling.config import MixerConfig, Number
from mixlab.modeling.foreign import Importer, Rename, State, count_layers, image_settings, modules, shape_of, tensors
from mixlab.modeling.rewriting import join, part, respell, with_batch, without_batch
from mixlab.modeling.traits import IMAGE_TASKS, Traits


class ViTConfig(MixerConfig):
    """hidden_size = d, intermediate_size = f, num_attention_heads = h."""

    model_type = "mixlab-vit"
    poolings = ("cls", "mean", "map")

    modality = "image"
    intermediate_size: int = 3072
    num_attention_heads: int = 8
    attention_dropout: Number = 0.0
    hidden_act: Literal["gelu", "gelu_pytorch_tanh"] = "gelu"
    positions: Literal["learned", "waves"] = "learned"
    parallel: bool = False  # the block of ViT-22B
    norm_pooled: bool = False  # the final norm stands behind the mean of the patches, not before it
    drop_path: Number = 0.0
    drop_path_schedule: Literal["constant", "linear"] = "linear"

    def __post_init__(self, **kwargs: object) -> None:
        super().__post_init__(**kwargs)
        self.check_split("hidden_size", "num_attention_heads")
        if self.masking == "drop":
            self.check_split("decoder_hidden_size", "decoder_num_attention_heads")
        if self.norm_pooled and self.pooling != "mean":
            raise MixlabError(f"norm_pooled=True is for pooling='mean', not {self.pooling!r}; leave it out")

    @property
    def stem_dropout(self) -> float:
        """Positions come after the stem, and dropout after them."""
        return 0.0

    @property
    def normed(self) -> bool:
        """Whether the body ends with a norm."""
        return self.final_norm and not self.norm_pooled

    @property
    def traits(self) -> Traits:
        able: dict[str, Any] = {"masks": False, "causal": False, "attention": True, "drops": True}
        return Traits(**able, length="fixed", modalities=("image",), tasks=IMAGE_TASKS, order=(3,))


def norm(config: ViTConfig, d: int) -> nn.Module:
    return (nn.RMSNorm if config.parallel else nn.LayerNorm)(d, eps=config.layer_norm_eps)


def block(config: ViTConfig, layer: int) -> nn.Module:
    d, heads = config.hidden_size, config.num_attention_heads
    parallel, drop, maps = config.parallel, config.attention_dropout, ("attention", "maps")
    of_heads = partial(norm, config) if parallel else None
    attend = SelfAttention(d, d, d, heads=heads, qkv_bias=not parallel, dropout=drop, kinds=maps, qk_norm=of_heads)
    return (ParallelBlock if parallel else PreNormBlock)(
        d,
        attend,
        FeedForward(d, config.intermediate_size, activation=config.hidden_act),
        eps=config.layer_norm_eps,
        dropout=config.hidden_dropout,
        drop_path=drop_path_rate(config.drop_path, config.drop_path_schedule, layer, config.num_hidden_layers),
    )


class Body(Stack):
    """Positions, then the blocks and a final norm."""

    def __init__(self, config: ViTConfig) -> None:
        n, d = config.length, config.hidden_size
        blocks = [block(config, layer) for layer in range(config.num_hidden_layers)]
        super().__init__(blocks, norm(config, d) if config.normed else nn.Identity())
        waves = config.positions == "waves"
        self.positions = WavePositions(n, d, prefix=config.prefix_tokens) if waves else LearnedPositions(n, d, std=config.initializer_range)
        self.dropout = nn.Dropout(config.hidden_dropout)

    def forward(self, tokens: Tokens) -> Tokens:
        return super().forward(tokens.with_x(self.dropout(self.positions(tokens))))


def pooler(config: ViTConfig) -> nn.Module:
    d = config.hidden_size
    if config.pooling == "mean":
        return MeanPool(norm(config, d) if config.norm_pooled else nn.Identity())
    heads, act = config.num_attention_heads, config.hidden_act
    return AttentionPool(d, config.intermediate_size, heads=heads, norm=partial(norm, config), activation=act)


def account(config: ViTConfig, n: int) -> list[Line]:
    """The lines of the body when n tokens are there; the positions are those of all."""
    d, f, heads, parallel = config.hidden_size, config.intermediate_size, config.num_attention_heads, config.parallel
    both = [scale_norm("norm", d, n), scale_norm("norms of q and k", 2 * d // heads, heads * n)]
    block = [
        *(both if parallel else [layer_norm("attention norm", d, n), layer_norm("feed-forward norm", d, n)]),
        linear("W_qkv", d, 3 * d, n, bias=not parallel),
        attention(n, n, d, heads),
        linear("W_o", d, d, n),
        *feed_forward(d, f, n, shared=parallel),
        sums(d, n, 2),
    ]
    final = [(scale_norm if parallel else layer_norm)("final norm", d, n)] if config.normed else []
    return [embedding("positions", config.length, d), *in_group("body", block, times=config.num_hidden_layers), *final]


def pooler_account(config: ViTConfig) -> list[Line]:
    line = (scale_norm if config.parallel else layer_norm)("norm of what was pooled", config.hidden_size, 1)
    if config.pooling == "map":
        return attention_pool(config.length, config.hidden_size, config.intermediate_size, line, config.num_attention_heads)
    return [line] if config.norm_pooled else []


def _published(layers: int, d: int, heads: int, patch: int, source: str, published: str, note: str = "") -> Preset:
    sizes = {"num_hidden_layers": layers, "hidden_size": d, "num_attention_heads": heads, "intermediate_size": 4 * d}
    return Preset({**sizes, "patch_size": patch, "num_labels": 1000}, "image-classification", source, published, note, counted_as="macs")


def _autoencoder(encoder: Preset, source: str = "He et al. 2021", published: str | None = None, note: str = "") -> Preset:
    masked = {"positions": "waves", "masking": "drop", "mask_ratio": 0.75, "normalized_targets": True}
    return Preset({**encoder.settings, **masked}, "masked-image-modeling", source, published, note)


BASE = _published(12, 768, 12, 16, "Dosovitskiy et al. 2020", "86M", "85.8M without the classifier")
LARGE = _published(24, 1024, 16, 16, "Dosovitskiy et al. 2020", "307M", "306.5M with patches of 32")
HUGE = _published(32, 1280, 16, 14, "Dosovitskiy et al. 2020", "632M")
GIANT = {"num_hidden_layers": 48, "hidden_size": 6144, "num_attention_heads": 48, "intermediate_size": 24576, "patch_size": 14}
SMALL = {"num_hidden_layers": 4, "hidden_size": 128, "num_attention_heads": 4, "intermediate_size": 512}
TINY = Preset({**SMALL, "image_size": 32, "patch_size": 4, "num_labels": 10}, "image-classification", "tests and demos")
SMALL_DECODER = {
    "decoder_num_layers": 2,
    "decoder_hidden_size": 64,
    "decoder_num_attention_heads": 4,
    "decoder_intermediate_size": 256,
}
PRESETS = {
    "vit-ti-16": _published(12, 192, 3, 16, "Touvron et al. 2020", "5M", "printed with its decimals cut"),
    "vit-s-16": _published(12, 384, 6, 16, "Touvron et al. 2020", "22M"),
    "vit-b-16": BASE,
    "vit-b-32": _published(12, 768, 12, 32, "Steiner et al. 2021", "88M"),
    "vit-l-16": LARGE,
    "vit-h-14": HUGE,
    "vit-22b": Preset(
        {**GIANT, "pooling": "map", "parallel": True, "num_labels": 1000},
        "image-classification",
        "Dehghani et al. 2023",
        "21743M",
        "printed for the matrices of the blocks alone",
        counted_as="matrices",
    ),
    "vit-tiny": TINY,
    "vit-tiny-image": TINY,
    "mae-vit-b-16": _autoencoder(BASE, published="86M", note="printed for the encoder alone"),
    "mae-vit-l-16": _autoencoder(LARGE),
    "mae-vit-h-14": _autoencoder(HUGE),
    "mae-vit-tiny": _autoencoder(replace(TINY, settings={**TINY.settings, **SMALL_DECODER}), "tests and demos"),
}


def _settings(state: Mapping[str, Tensor], patches: str, positions: str, widen: str, head: str) -> dict[str, Any]:
    """What the shapes imply, in either library's names. Heads have 64 channels, those of a huge model 80."""
    d, channels, patch, _ = state[patches].shape
    cls = any(name.endswith("cls_token") for name in state)
    settings = {
        "num_hidden_layers": count_layers(state, widen),
        "hidden_size": d,
        "num_attention_heads": 16 if d == 1280 else max(1, d // 64),
        "intermediate_size": shape_of(state, widen)[0],
        "max_position_embeddings": state[positions].shape[1] - cls,
    }
    settings = image_settings(settings, patch, channels, len(state[head]) if head in state else 2)
    return {**settings, "pooling": "cls" if cls else "mean"}


def _timm_settings(state: Mapping[str, Tensor]) -> dict[str, Any]:
    settings = _settings(state, "patch_embed.proj.weight", "pos_embed", TIMM + r"mlp\.fc1\.weight", "head.bias")
    probe, behind = "attn_pool.latent" in state, "fc_norm.weight" in state
    if "cls_token" in state and (probe or behind):
        raise MixlabError("this ViT pools its patches beside a cls token; a model here has one or the other")
    parallel = "blocks.0.in_norm.weight" in state
    return {**settings, **({"pooling": "map"} if probe else {}), "parallel": parallel, "norm_pooled": behind}


def _timm_part(state: State) -> State:
    """The one product of a parallel block as two."""
    return part(state, "in_proj.weight", IN_PROJECTION, lambda weight: [len(weight) - 3 * weight.shape[1], 3 * weight.shape[1]])


def _prepare(state: State) -> State:
    """Names as in memory, and three projections as one; what pools for another task stays behind."""
    prefix = "vit." if "embeddings.cls_token" in state else ""  # the model without a head has none
    in_memory = {"decoder_encoder.layer.": "decoder_layers.", **{file: memory for memory, file in SPELLINGS.items()}}
    state = respell({prefix + name: tensor for name, tensor in state.items()}, in_memory)
    return join({name: tensor for name, tensor in state.items() if not name.startswith("vit.pooler.")}, QKV, "attention.qkv")


def _finish(state: State) -> State:
    for needed in ("vit.embeddings.cls_token", "vit.layernorm.weight"):
        if needed not in state:
            raise MixlabError(f"transformers' ViT has no place for a model without {needed}: it normalises all tokens and pools the first")
    return respell(part(state, "attention.qkv", QKV), SPELLINGS)


def _transformers_settings(state: Mapping[str, Tensor]) -> dict[str, Any]:
    embeddings, narrow = "vit.embeddings.", DECODER + r"mlp\.fc1\.weight"
    names = (embeddings + "patch_embeddings.projection.weight", embeddings + "position_embeddings", LAYER + r"mlp\.fc1\.weight")
    settings = {**_settings(state, *names, "classifier.bias"), "layer_norm_eps": 1e-12}
    if "decoder.mask_token" not in state:
        return settings
    f, e = shape_of(state, narrow)
    sizes = {"hidden_size": e, "intermediate_size": f, "num_layers": count_layers(state, narrow), "num_attention_heads": max(1, e // 32)}
    masked = {"positions": "waves", "masking": "drop", "normalized_targets": False}
    return {**settings, **masked, **{f"decoder_{name}": size for name, size in sizes.items()}}


def _task(state: Mapping[str, Tensor]) -> str:
    if "decoder.mask_token" in state:
        return "masked-image-modeling"
    return "image-classification" if {"head.bias", "classifier.bias", "attn_pool.latent"} & set(state) else "features"


TIMM = r"blocks\.(\d+)\."
IN_PROJECTION = ("mlp.fc1.weight", "attn.qkv.weight")
SHELL = [
    Rename("cls_token", "model.stem.cls"),
    Rename("pos_embed", "model.body.positions.weight", without_batch, with_batch),
    Rename(r"patch_embed\.proj\.(weight|bias)", r"model.stem.projection.\1"),
    Rename(r"norm\.(weight|bias)", r"model.body.norm.\1"),
    Rename(r"fc_norm\.(weight|bias)", r"pooler.norm.\1"),
    Rename(r"attn_pool\.latent", "pooler.probe"),
    Rename(r"attn_pool\.(q|kv)\.(weight|bias)", r"pooler.\1.\2"),
    Rename(r"attn_pool\.norm\.(weight|bias)", r"pooler.ffn_norm.\1"),
    Rename(r"attn_pool\.proj\.(weight|bias)", r"pooler.out.\1"),
    Rename(r"attn_pool\.mlp\.fc1\.(weight|bias)", r"pooler.ffn.widen.\1"),
    Rename(r"attn_pool\.mlp\.fc2\.(weight|bias)", r"pooler.ffn.narrow.\1"),
    Rename(r"head\.(weight|bias)", r"classifier.\1"),
]
SERIAL = {
    "norm1": "attention_norm",
    "attn.qkv": "attention.qkv",
    "attn.proj": "attention.out",
    "norm2": "ffn_norm",
    "mlp.fc1": "ffn.widen",
    "mlp.fc2": "ffn.narrow",
}
PARALLEL = {
    "in_norm.weight": "norm.weight",
    "attn.qkv.weight": "attention.qkv.weight",
    "q_norm.weight": "attention.q_norm.weight",
    "k_norm.weight": "attention.k_norm.weight",
    "mlp.fc1.weight": "ffn.widen.weight",
    "mlp_bias": "ffn.widen.bias",
}
TIMM_NOTE = "heads of 64 channels are assumed (of 80 in a huge model); other files need --set num_attention_heads=N"

# transformers' names in memory and in its files; some versions write the decoder's otherwise.
SPELLINGS = {
    "vit.layers.": "vit.encoder.layer.",
    "attention.q_proj": "attention.attention.query",
    "attention.k_proj": "attention.attention.key",
    "attention.v_proj": "attention.attention.value",
    "attention.o_proj": "attention.output.dense",
    "mlp.fc1": "intermediate.dense",
    "mlp.fc2": "output.dense",
}
QKV = ("attention.q_proj", "attention.k_proj", "attention.v_proj")
LAYER, DECODER = r"vit\.layers\.(\d+)\.", r"decoder\.decoder_layers\.(\d+)\."
LAYERS = {
    "layernorm_before": "attention_norm",
    "attention.qkv": "attention.qkv",
    "attention.o_proj": "attention.out",
    "layernorm_after": "ffn_norm",
    "mlp.fc1": "ffn.widen",
    "mlp.fc2": "ffn.narrow",
}

IMPORTERS = [
    Importer(
        "timm",
        recognises=lambda state: "pos_embed" in state and "blocks.0.norm1.weight" in state,
        settings=_timm_settings,
        task=_task,
        renames=[*SHELL, *modules(TIMM, SERIAL)],
        note=TIMM_NOTE,
    ),
    Importer(
        "timm",
        recognises=lambda state: "pos_embed" in state and "blocks.0.in_norm.weight" in state,
        settings=_timm_settings,
        task=_task,
        renames=[*SHELL, *modules(TIMM, {"attn_out_proj": "attention.out", "mlp_out_proj": "ffn.narrow"}), *tensors(TIMM, PARALLEL)],
        prepare=_timm_part,
        finish=lambda state: join(state, IN_PROJECTION, "in_proj.weight", "blocks."),
        note=TIMM_NOTE,
    ),
    Importer(
        "transformers",
        recognises=lambda state: any(f"{prefix}embeddings.patch_embeddings.projection.weight" in state for prefix in ("", "vit.")),
        settings=_transformers_settings,
        task=_task,
        renames=[
            Rename(r"vit\.embeddings\.cls_token", "model.stem.cls"),
            Rename(r"vit\.embeddings\.position_embeddings", "model.body.positions.weight", without_batch, with_batch),
            Rename(r"vit\.embeddings\.patch_embeddings\.projection\.(weight|bias)", r"model.stem.projection.\1"),
            *modules(LAYER, LAYERS),
            Rename(r"vit\.layernorm\.(weight|bias)", r"model.body.norm.\1"),
            Rename(r"classifier\.(weight|bias)", r"classifier.\1"),
            Rename(r"decoder\.mask_token", "decoder.mask_token"),
            Rename(r"decoder\.decoder_embed\.(weight|bias)", r"decoder.embed.\1"),
            Rename(r"decoder\.decoder_pos_embed", "decoder.body.positions.weight", without_batch, with_batch),
            *modules(DECODER, LAYERS, "decoder.body.blocks"),
            Rename(r"decoder\.decoder_norm\.(weight|bias)", r"decoder.body.norm.\1"),
            Rename(r"decoder\.decoder_pred\.(weight|bias)", r"decoder.pixels.\1"),
        ],
        prepare=_prepare,
        finish=_finish,
        note="assumed where no config.json tells: heads of 64 channels (80 in a huge model), 32 in a decoder; pixels as they are",
        told={
            **{name: name for name in ("num_attention_heads", "decoder_num_attention_heads", "layer_norm_eps", "hidden_act", "mask_ratio")},
            "norm_pix_loss": "normalized_targets",
        },
    ),
]

POOLER = Pooler(pooler, pooler_account, ("mean", "map"))
ARCH = Architecture("vit", ViTConfig, body=Body, account=account, presets=PRESETS, importers=IMPORTERS, pooler=POOLER)
