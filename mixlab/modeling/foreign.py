"""The records with which an architecture's file describes foreign layouts of its weights. `convert` acts on them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from mixlab.errors import MixlabError

State = dict[str, Tensor]
ACTIVATIONS = {"gelu_new": "gelu_pytorch_tanh", "gelu_python": "gelu", "swish": "silu"}  # other libraries' names of the same functions
TOKENS = {name: name for name in ("pad_token_id", "bos_token_id", "eos_token_id")}


@dataclass(frozen=True)
class Rename:
    """Foreign names that match `pattern` become `name` (with \\1, \\2 from the pattern), their tensors `change`d; `restore` undoes that."""

    pattern: str
    name: str
    change: Callable[[Tensor], Tensor] | None = None
    restore: Callable[[Tensor], Tensor] | None = None


@dataclass(frozen=True)
class Importer:
    """One foreign layout of one architecture."""

    name: str
    recognises: Callable[[Mapping[str, Tensor]], bool]
    settings: Callable[[Mapping[str, Tensor]], dict[str, Any]]  # of the configuration; raises where it cannot be expressed
    task: Callable[[Mapping[str, Tensor]], str]
    renames: Sequence[Rename]
    prepare: Callable[[State], State] = dict  # what renaming one tensor at a time cannot do
    finish: Callable[[State], State] | None = None  # the way back: undoes `prepare`; None: weights come in only
    note: str = ""  # what the file cannot tell, and what is assumed
    told: Mapping[str, str] = field(default_factory=dict)  # fields of the configuration beside the weights, and what they are called here
    fixed: Mapping[str, Any] = field(default_factory=dict)  # fields of it that can have one value only

    def read(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """What the configuration beside the weights says and their shapes do not; {} where there is none."""
        for name, value in self.fixed.items():
            if config.get(name, value) != value:
                raise MixlabError(
                    f"config.json has {name}={config[name]!r}, which no setting here can do; only {name}={value!r} can be read"
                )
        told = {ours: config[theirs] for theirs, ours in self.told.items() if config.get(theirs) is not None}
        act = told.get("hidden_act")
        return {**told, "hidden_act": ACTIVATIONS.get(act, act)} if isinstance(act, str) else told


def count_layers(state: Mapping[str, Tensor], pattern: str) -> int:
    """How many different numbers the first group of a pattern takes."""
    return len({match.group(1) for name in state if (match := re.fullmatch(pattern, name))})


def shape_of(state: Mapping[str, Tensor], pattern: str) -> tuple[int, ...]:
    """The shape of the first tensor whose name matches."""
    for name, tensor in state.items():
        if re.fullmatch(pattern, name):
            return tuple(tensor.shape)
    raise MixlabError(f"no tensor is named like {pattern}; the file is not complete")


def modules(prefix: str, names: Mapping[str, str], blocks: str = "model.body.blocks") -> list[Rename]:
    """Renames of whole modules (weight and bias) inside the blocks; the first group of `prefix` is the layer."""
    both = r"\.(weight|bias)"
    return [Rename(prefix + re.escape(theirs) + both, rf"{blocks}.\1.{ours}.\2") for theirs, ours in names.items()]


def tensors(
    prefix: str,
    names: Mapping[str, str],
    change: Callable[[Tensor], Tensor] | None = None,
    restore: Callable[[Tensor], Tensor] | None = None,
) -> list[Rename]:
    """Renames of single tensors inside the blocks."""
    return [Rename(prefix + re.escape(theirs), rf"model.body.blocks.\1.{ours}", change, restore) for theirs, ours in names.items()]


def image_settings(settings: dict[str, Any], patch: int, channels: int, labels: int) -> dict[str, Any]:
    """The settings of a stack whose length is that of a square image, pooled by its mean."""
    patches = settings.pop("max_position_embeddings")
    side = round(patches**0.5)
    if side * side != patches:
        raise MixlabError(f"{patches} patches are not a square; only models of square images can be imported")
    image = {"image_size": side * patch, "patch_size": patch, "num_channels": channels, "num_labels": labels}
    return {**settings, **image, "modality": "image", "pooling": "mean"}


def patch_side(width: int, channels: int = 3) -> int:
    """The side of the patches that a linear layer reads flattened."""
    side = math.isqrt(width // channels)
    if channels * side * side != width:
        raise MixlabError(f"patches of {width} numbers are not square with {channels} channels; only RGB images can be imported")
    return side


def patches_as_kernel(weight: Tensor) -> Tensor:
    """A linear layer on flattened RGB patches (d, c*p*p) as the kernel of a convolution (d c p p)."""
    side = patch_side(weight.shape[1])
    return weight.unflatten(1, (3, side, side))


def lower_triangle(taps: Tensor) -> Tensor:
    """Taps by distance (H n, the first is the diagonal's) as causal matrices (H n n)."""
    distance = torch.arange(taps.shape[1])[:, None] - torch.arange(taps.shape[1])
    return taps[:, distance.clamp(min=0)] * (distance >= 0)


def with_head(tensor: Tensor) -> Tensor:
    """W (n n, or n n 1 of a convolution) or b (n) of a gate without heads, as ours with one."""
    return tensor.squeeze(-1)[None] if tensor.dim() == 3 else tensor[None]


def without_head(tensor: Tensor) -> Tensor:
    """The way back; more heads than one have none."""
    if len(tensor) != 1:
        raise MixlabError(f"a gate of {len(tensor)} heads cannot be written for a library whose gate has one")
    return tensor[0]
