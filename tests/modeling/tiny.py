"""Very small models of every architecture, chosen by what they declare, with weights that are far from their initialisation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mixlab
from mixlab.layers import Stack
from mixlab.modeling.architecture import load
from mixlab.modeling.tasks import TASK_HEADS

VOCABULARY, LENGTH = 48, 24
# The fields that an architecture does not have are left out.
SIZES = {
    "vocab_size": VOCABULARY,
    "max_position_embeddings": LENGTH,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "attention_size": 8,
}
IMAGE_SIZES = {"image_size": 16, "patch_size": 4, "num_labels": 3, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}


def blocks(model: nn.Module) -> nn.ModuleList:
    """Those of a model's stack, wherever its body keeps it."""
    return next(module for module in model.modules() if isinstance(module, Stack)).blocks


def own_fields(arch: str, settings: dict[str, Any]) -> dict[str, Any]:
    known = load(arch).field_names()
    return {name: value for name, value in settings.items() if name in known}


def tiny(arch: str, task: str = "masked-lm", *, seed: int = 0, scale: float = 0.2, **overrides: Any) -> Any:
    """An evaluating model of an architecture's tiny preset, smaller still, all of whose parameters were moved."""
    image = task == "image-classification" or overrides.get("modality") == "image"
    name = f"{arch}-tiny-image" if image else f"{arch}-tiny"
    settings = {**own_fields(arch, {**(IMAGE_SIZES if image else SIZES), "attention_size": 8}), **overrides}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = mixlab.create(name, task=task, **settings)
    return randomise(model, seed, scale).eval()


def randomise(module: nn.Module, seed: int = 0, scale: float = 0.2) -> Any:
    """Move every parameter, so that no term of a model is too small to be seen in its output."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator, dtype=torch.float32) * scale)
    return module


def traits_of(arch: str) -> Any:
    return mixlab.config(f"{arch}-tiny").traits


def archs_with(trait: str) -> list[str]:
    return [arch for arch in mixlab.archs() if getattr(traits_of(arch), trait)]


def tasks_of(arch: str) -> Iterator[str]:
    """Every task that some configuration of an architecture declares."""
    presets = [name for name in (f"{arch}-tiny", f"{arch}-tiny-image") if name in mixlab.presets(arch)]
    declared = {task for name in presets for task in mixlab.config(name).traits.tasks}
    return (task for task in TASK_HEADS if task in declared)


def every_task() -> list[Any]:
    return [pytest.param(arch, task, id=f"{arch}-{task}") for arch in mixlab.archs() for task in tasks_of(arch)]


def inputs_for(model: Any, batch: int = 2, seed: int = 1) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    config = model.config
    if config.modality == "image":
        size = (batch, config.num_channels, config.image_size, config.image_size)
        return {"pixel_values": torch.randn(size, generator=generator)}
    return {"input_ids": torch.randint(5, config.vocab_size, (batch, config.length - 4), generator=generator)}


def answer(model: Any, inputs: dict[str, Tensor] | None = None) -> Tensor:
    """The main output of any task's model, without gradients."""
    with torch.no_grad():
        output = model(**(inputs_for(model) if inputs is None else inputs))
    for name in ("logits", "start_logits", "last_hidden_state"):
        if getattr(output, name, None) is not None:
            return getattr(output, name)
    raise AssertionError(f"{type(model).__name__} returned nothing known")
