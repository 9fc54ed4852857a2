"""gMLP: a spatial gate in place of attention (Liu et al. 2021, "Pay Attention to MLPs", arXiv:2105.08050).

    Z  = gelu(norm(X) U)          X: n x d,  U: d x f
    Z~ = s(Z)                     s([u, v]) = u * (W norm(v) + b),  W: n x n,  b: n,  u and v: n x e,  e = f / 2
    Y  = X + Z~ V                 V: e x d

W near 0 and b = 1, so that a new block is an ordinary feed-forward network. Language models use a Toeplitz W (2n - 1 numbers, one
per offset), vision models a free one. There are no positional embeddings: W and b know where they are.

Axes: b batch, n tokens, d model, f expanded, e gated.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Any, Literal

from torch import Tensor

from mixlab.accounting import Line, in_group
from mixlab.accounting.parts import activation, gate, layer_norm, linear, sums
from mixlab.errors import MixlabError
from mixlab.layers import GMLPBlock, Tokens
from mixlab.layers.drop_path import drop_path_rate
from mixlab.modeling import foreign
from mixlab.modeling.architecture import Architecture, Preset, stack
from mixlab.modeling.config import MixerConfig, Number
from mixlab.modeling.foreign import Importer, Rename, count_layers, image_settings, modules, shape_of, tensors
from mixlab.modeling.traits import TASKS, Traits


class GMLPConfig(MixerConfig):
    """The paper's symbols: hidden_size = d, intermediate_size = f, max_position_embeddings = n, num_hidden_layers = L."""

    model_type = "mixlab-gmlp"

    intermediate_size: int = 3072
    gate: Literal["linear", "additive", "multiplicative", "split"] = "split"
    spatial_structure: Literal["dense", "toeplitz"] = "toeplitz"
    gate_heads: int = 1  # groups of channels with a W and b of their own
    spatial_init_std: Number = 1e-3  # of W
    spatial_bias_init: Number | None = None  # of b; None: 1 for the multiplicative gates, 0 for the others
    gate_norm_eps: Number = 1e-6
    gate_activation: Literal["identity", "tanh"] = "identity"  # on f(v); the paper has none, g-mlp-pytorch suggests tanh
    hidden_act: Literal["gelu", "gelu_pytorch_tanh"] = "gelu"
    drop_path: Number = 0.0  # 1 - survival probability of a block in training
    drop_path_schedule: Literal["constant", "linear"] = "constant"

    def __post_init__(self, **kwargs: object) -> None:
        super().__post_init__(**kwargs)
        if self.gate == "split" and self.intermediate_size % 2:
            raise MixlabError(f"intermediate_size {self.intermediate_size} is odd, and the split gate halves it; use an even one")
        if self.gate_heads < 1 or self.gated_size % self.gate_heads:
            raise MixlabError(f"{self.gated_size} gated channels cannot be shared by gate_heads={self.gate_heads}; use a divisor")

    @property
    def gated_size(self) -> int:
        """The paper's e: channels that leave the gate."""
        return self.intermediate_size // 2 if self.gate == "split" else self.intermediate_size

    @property
    def traits(self) -> Traits:
        text = self.modality == "text"
        return Traits(
            masks=self.modality != "image",
            causal=text,
            length="fixed" if self.modality == "image" else "cap",
            modalities=("text", "image", "audio"),
            tasks=TASKS[self.modality],
            order=(2,) if self.gate in ("multiplicative", "split") else (1,),
            attention=False,
            drops=True,
        )


class Block(GMLPBlock):
    """One block as the configuration describes it; its parts (norm, U, gate, V) are those of `GMLPBlock`."""

    def __init__(self, config: GMLPConfig, layer: int) -> None:
        super().__init__(
            config.hidden_size,
            config.intermediate_size,
            config.length,
            gate=config.gate,
            structure=config.spatial_structure,
            heads=config.gate_heads,
            causal=config.causal,
            init_std=config.spatial_init_std,
            bias_init=config.spatial_bias_init,
            eps=config.layer_norm_eps,
            gate_eps=config.gate_norm_eps,
            gate_activation=config.gate_activation,
            activation=config.hidden_act,
            dropout=config.hidden_dropout,
            drop_path=drop_path_rate(config.drop_path, config.drop_path_schedule, layer, config.num_hidden_layers),
        )

    def forward(self, tokens: Tokens) -> Tokens:  # pyright: ignore[reportIncompatibleMethodOverride] (a body's blocks take Tokens)
        z = self.activation(self.U(self.norm(tokens.x)))  # b n f
        gated = self.gate(z, tokens)  # b n e
        return tokens.with_x(self.add(tokens.x, self.V(gated)))  # b n d


def account(config: GMLPConfig, n: int) -> list[Line]:
    """The lines of the body for n tokens."""
    d, f, e = config.hidden_size, config.intermediate_size, config.gated_size
    structure, heads, causal = config.spatial_structure, config.gate_heads, config.causal
    block = [
        layer_norm("norm", d, n),
        linear("U", d, f, n),
        activation("gelu", f, n),
        layer_norm("gate norm", e, n),
        *gate(n, config.length, e, kind=config.gate, structure=structure, heads=heads, causal=causal),
        linear("V", e, d, n),
        sums(d, n),
    ]
    final = [layer_norm("final norm", d, n)] if config.final_norm else []
    return [*in_group("body", block, times=config.num_hidden_layers), *final]


def _language(layers: int, d: int, f: int, n: int, published: str, source: str, **more: object) -> Preset:
    settings = {"num_hidden_layers": layers, "hidden_size": d, "intermediate_size": f, "max_position_embeddings": n, **more}
    return Preset(settings, "masked-lm", source, published, counted_as="flops-elementwise-labelled")


def _vision(d: int, survival: float, published: str) -> Preset:
    # The eps of the gate is timm's, so that its weights fit the preset.
    settings = {"num_hidden_layers": 30, "hidden_size": d, "intermediate_size": 6 * d, "gate_norm_eps": 1e-5, "num_labels": 1000}
    settings |= {**IMAGE, "drop_path": round(1 - survival, 2)}
    return Preset(settings, "image-classification", "Table 1, ImageNet", published, counted_as="flops-elementwise")


IMAGE = {"modality": "image", "spatial_structure": "dense", "pooling": "mean"}
TINY = {"num_hidden_layers": 4, "hidden_size": 128, "intermediate_size": 512}

PRESETS = {
    "gmlp-ti16-224": _vision(128, 1.00, "5.9M"),
    "gmlp-s16-224": _vision(256, 0.95, "19.5M"),
    "gmlp-b16-224": _vision(512, 0.80, "73.4M"),
    "gmlp-base": _language(48, 512, 3072, 512, "130M", "Tables 5 and 6"),
    "gmlp-large": _language(96, 768, 3072, 512, "365M", "Tables 5 and 6"),
    "gmlp-xlarge": _language(144, 1024, 4096, 512, "941M", "Tables 5 and 6"),
    "gmlp-l18": _language(18, 512, 3072, 128, "59M", "Table 4"),
    "gmlp-l36": _language(36, 512, 3072, 128, "102M", "Table 4"),
    "gmlp-l72": _language(72, 512, 3072, 128, "187M", "Table 4"),
    "gmlp-l144": _language(144, 512, 3072, 128, "357M", "Table 4"),
    # The caption of Table 3 says f = 3072 for all; the printed 92M of the gates without a split needs 2048.
    "gmlp-linear": _language(36, 512, 2048, 128, "92M", "Table 3", gate="linear"),
    "gmlp-additive": _language(36, 512, 2048, 128, "92M", "Table 3", gate="additive"),
    "gmlp-multiplicative": _language(36, 512, 2048, 128, "92M", "Table 3", gate="multiplicative"),
    "gmlp-split": _language(36, 512, 3072, 128, "102M", "Table 3"),
    "gmlp-tiny": Preset({**TINY, "vocab_size": 2000, "max_position_embeddings": 128}, "masked-lm", "tests and demos"),
    "gmlp-tiny-image": Preset(
        {**TINY, **IMAGE, "image_size": 32, "patch_size": 4, "num_labels": 10}, "image-classification", "tests and demos"
    ),
}


def block_settings(state: Mapping[str, Tensor], expand: str, weight: str) -> dict[str, Any]:
    """What the shapes of a foreign stack imply; `expand` and `weight` match U and W, with the layer as first group."""
    intermediate, hidden = shape_of(state, expand)
    spatial = shape_of(state, weight)
    heads, length = (spatial[0], spatial[1]) if len(spatial) == 3 and spatial[1] == spatial[2] else (1, spatial[0])
    return {
        "num_hidden_layers": count_layers(state, expand),
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "max_position_embeddings": length,
        "gate_heads": heads,
        "spatial_structure": "dense",
    }


def _timm_settings(state: Mapping[str, Tensor]) -> dict[str, Any]:
    settings = block_settings(state, r"blocks\.(\d+)\.mlp_channels\.fc1\.weight", r"blocks\.(\d+)\.mlp_channels\.gate\.proj\.weight")
    _, channels, patch, _ = state["stem.proj.weight"].shape
    return {**image_settings(settings, patch, channels, len(state["head.bias"])), "gate_norm_eps": 1e-5}


LUCIDRAINS = r"layers\.(\d+)\.fn(?:\.fn)*\."


def lucidrains_settings(state: Mapping[str, Tensor]) -> dict[str, Any]:
    """Of g-mlp-pytorch's gMLP and gMLPVision, whose norms have torch's default eps and whose text head is its own."""
    settings = block_settings(state, LUCIDRAINS + r"proj_in\.0\.weight", LUCIDRAINS + r"sgu\.weight")
    settings |= {"layer_norm_eps": 1e-5, "gate_norm_eps": 1e-5}
    if "to_patch_embed.1.weight" in state:
        patch = foreign.patch_side(state["to_patch_embed.1.weight"].shape[1])
        return image_settings(settings, patch, 3, len(state["to_logits.2.bias"]))
    return {**settings, "vocab_size": len(state["to_embed.weight"]), "tie_word_embeddings": False, "head_bias": True}


def lucidrains_prepare(state: foreign.State) -> foreign.State:
    """`circulant_matrix=True` is, in that package, a lower triangle of taps (the last is its diagonal), scaled by position."""
    state = dict(state)
    for name in [name for name in state if name.endswith("sgu.circulant_pos_x")]:
        base = name.removesuffix("circulant_pos_x")
        taps, rows, columns = state[base + "weight"].flip(-1), state.pop(name), state.pop(base + "circulant_pos_y")
        state[base + "weight"] = foreign.lower_triangle(taps) * rows[..., None] * columns[:, None]
    return state


def lucidrains_task(state: Mapping[str, Tensor]) -> str:
    return "image-classification" if "to_patch_embed.1.weight" in state else "masked-lm"


LUCIDRAINS_RENAMES = [
    Rename(r"to_embed\.weight", "model.stem.tokens.weight"),
    Rename(r"to_patch_embed\.1\.weight", "model.stem.projection.weight", foreign.patches_as_kernel),
    Rename(r"to_patch_embed\.1\.bias", "model.stem.projection.bias"),
    *modules(LUCIDRAINS, {"norm": "norm", "proj_in.0": "U", "sgu.norm": "gate.norm", "proj_out": "V"}),
    *tensors(LUCIDRAINS, {"sgu.weight": "gate.spatial.weight", "sgu.bias": "gate.bias"}),
    Rename(r"to_logits\.0\.(weight|bias)", r"model.body.norm.\1"),
    Rename(r"to_logits\.1\.(weight|bias)", r"lm_head.\1"),
    Rename(r"to_logits\.2\.(weight|bias)", r"classifier.\1"),
]
LUCIDRAINS_NOTE = (
    "assumed, since the file does not say: act=Identity and shift_tokens=0; "
    "a causal model needs task='causal-lm', one with act=Tanh the setting gate_activation='tanh'"
)

LABML = r"(?:.*\.)?layers\.(\d+)\."


def _labml_settings(state: Mapping[str, Tensor]) -> dict[str, Any]:
    if any("positional_encodings" in name for name in state):
        raise MixlabError("labml's embeddings add positions, which a gMLP here does not have; save the `encoder` alone and import that")
    settings = block_settings(state, LABML + r"proj1\.weight", LABML + r"sgu\.weight")
    final = any(re.fullmatch(r"(?:.*\.)?norm\.weight", name) and "layers." not in name for name in state)
    return {**settings, "layer_norm_eps": 1e-5, "gate_norm_eps": 1e-5, "final_norm": final}


BLOG = r"(?:model\.)*(\d+)\."


def _blog_settings(state: Mapping[str, Tensor]) -> dict[str, Any]:
    if any(".attn.proj1." in name for name in state):
        raise MixlabError("this tiny attention reads the expanded channels and lacks the 1/sqrt(d_attn); no model here computes that")
    settings = block_settings(state, BLOG + r"channel_proj1\.weight", BLOG + r"sgu\.proj\.weight")
    settings |= {"layer_norm_eps": 1e-5, "gate_norm_eps": 1e-5, "hidden_act": "gelu_pytorch_tanh", "final_norm": False}
    return {**settings, "vocab_size": len(state["embedding.weight"]), "tie_word_embeddings": False, "head_bias": True}


TIMM = r"blocks\.(\d+)\."

IMPORTERS = [
    Importer(
        "timm",
        recognises=lambda state: "blocks.0.mlp_channels.gate.proj.weight" in state,
        settings=_timm_settings,
        task=lambda _: "image-classification",
        renames=[
            Rename(r"stem\.proj\.(weight|bias)", r"model.stem.projection.\1"),
            *modules(TIMM, {"norm": "norm", "mlp_channels.fc1": "U", "mlp_channels.gate.norm": "gate.norm", "mlp_channels.fc2": "V"}),
            *tensors(TIMM, {"mlp_channels.gate.proj.weight": "gate.spatial.weight"}, foreign.with_head, foreign.without_head),
            *tensors(TIMM, {"mlp_channels.gate.proj.bias": "gate.bias"}, foreign.with_head, foreign.without_head),
            Rename(r"norm\.(weight|bias)", r"model.body.norm.\1"),
            Rename(r"head\.(weight|bias)", r"classifier.\1"),
        ],
    ),
    Importer(
        "g-mlp-pytorch",
        recognises=lambda state: "layers.0.fn.norm.weight" in state and not any(".attn." in name for name in state),
        settings=lucidrains_settings,
        task=lucidrains_task,
        renames=LUCIDRAINS_RENAMES,
        prepare=lucidrains_prepare,
        note=LUCIDRAINS_NOTE,
    ),
    Importer(
        "labml",
        recognises=lambda state: any(re.fullmatch(LABML + r"sgu\.weight", name) for name in state),
        settings=_labml_settings,
        task=lambda _: "features",
        renames=[
            *modules(LABML, {"norm": "norm", "proj1": "U", "sgu.norm": "gate.norm", "proj2": "V"}),
            *tensors(LABML, {"sgu.weight": "gate.spatial.weight", "sgu.bias": "gate.bias"}, foreign.with_head),
            Rename(r"(?:.*\.)?norm\.(weight|bias)", r"model.body.norm.\1"),
        ],
        note="labml saves the blocks alone: the embeddings stay as initialised",
    ),
    Importer(
        "blog",
        recognises=lambda state: any(re.fullmatch(BLOG + r"sgu\.proj\.weight", name) for name in state),
        settings=_blog_settings,
        task=lambda _: "masked-lm",
        renames=[
            Rename(r"embedding\.weight", "model.stem.tokens.weight"),
            *modules(BLOG, {"norm": "norm", "channel_proj1": "U", "sgu.norm": "gate.norm", "channel_proj2": "V"}),
            *tensors(BLOG, {"sgu.proj.weight": "gate.spatial.weight", "sgu.proj.bias": "gate.bias"}, foreign.with_head),
            Rename(r"fc\.(weight|bias)", r"lm_head.\1"),
        ],
    ),
]

ARCH = Architecture("gmlp", GMLPConfig, body=partial(stack, block=Block), account=account, presets=PRESETS, importers=IMPORTERS)
