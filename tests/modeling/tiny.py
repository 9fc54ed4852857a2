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
# Sizes smaller still than those of the tiny presets, by what a model reads; fields that an architecture does not have are left out.
NARROW = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "attention_size": 8}
SIZES = {
    "text": {"vocab_size": VOCABULARY, "max_position_embeddings": LENGTH, **NARROW},
    "image": {"image_size": 16, "patch_size": 4, "num_labels": 3, **NARROW},
    "audio": {"vocab_size": VOCABULARY, "num_labels": 3, **NARROW},
}


def blocks(model: nn.Module) -> nn.ModuleList:
    """Those of a model's stack, wherever its body keeps it."""
    return next(module for module in model.modules() if isinstance(module, Stack)).blocks


def small_presets(arch: str) -> dict[str, Any]:
    """The configurations that tests are made of, by name: the one that reads text comes first where there is one."""
    configs = {name: mixlab.config(name) for name in (f"{arch}-tiny", f"{arch}-tiny-image") if name in mixlab.presets(arch)}
    return dict(sorted(configs.items(), key=lambda item: item[1].modality != "text"))


def home_task(arch: str) -> str:
    """What an architecture was made for."""
    name = next(iter(small_presets(arch)))
    return load(arch).presets[name].task


def tiny(arch: str, task: str | None = None, *, seed: int = 0, scale: float = 0.2, **overrides: Any) -> Any:
    """An evaluating model of an architecture's tiny preset, smaller still, all of whose parameters were moved."""
    task = task or home_task(arch)
    wanted = overrides.get("modality")
    fitting = {name: c for name, c in small_presets(arch).items() if task in c.traits.tasks and wanted in (None, c.modality)}
    name, config = next(iter(fitting.items()))
    # The widths of a hierarchy belong together: its preset is small enough.
    sizes = {} if load(arch).config.hierarchical else SIZES[config.modality]
    known = load(arch).field_names()
    settings = {**{field: value for field, value in sizes.items() if field in known}, **overrides}
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


def archs_with(trait: str) -> list[str]:
    return [arch for arch in mixlab.archs() if any(getattr(config.traits, trait) for config in small_presets(arch).values())]


def archs_for(task: str) -> list[str]:
    return [arch for arch in mixlab.archs() if task in tasks_of(arch)]


def tasks_of(arch: str) -> Iterator[str]:
    """Every task that some small configuration of an architecture declares."""
    declared = {task for config in small_presets(arch).values() for task in config.traits.tasks}
    return (task for task in TASK_HEADS if task in declared)


def every_task() -> list[Any]:
    return [pytest.param(arch, task, id=f"{arch}-{task}") for arch in mixlab.archs() for task in tasks_of(arch)]


def inputs_for(model: Any, batch: int = 2, seed: int = 1) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    config = model.config
    if config.modality == "image":
        size = (batch, config.num_channels, config.image_size, config.image_size)
        return {"pixel_values": torch.randn(size, generator=generator)}
    if config.modality == "audio":
        return {"input_features": torch.randn(batch, 9 * config.frame_stride, config.num_mel_bins, generator=generator)}
    return {"input_ids": torch.randint(5, config.vocab_size, (batch, config.length - 4), generator=generator)}


def fixed_noise(model: Any, batch: int = 2, seed: int = 1) -> dict[str, Tensor]:
    """For a model that hides patches at random: which ones."""
    if getattr(model, "task", None) != "masked-image-modeling":
        return {}
    grid = model.config.image_size // model.config.patch_size
    return {"noise": torch.rand(batch, grid * grid, generator=torch.Generator().manual_seed(seed))}


def answer(model: Any, inputs: dict[str, Tensor] | None = None) -> Tensor:
    """The main output of any task's model, without gradients."""
    with torch.no_grad():
        output = model(**({**inputs_for(model), **fixed_noise(model)} if inputs is None else inputs))
    for name in ("logits", "start_logits", "last_hidden_state", "reconstruction"):
        if getattr(output, name, None) is not None:
            return getattr(output, name)
    raise AssertionError(f"{type(model).__name__} returned nothing known")
