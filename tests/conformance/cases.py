"""The models that the conformance suite runs on: every tiny preset of every architecture, found through the registry."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

import mixlab
from mixlab import registry
from mixlab.modeling.architecture import load
from mixlab.modeling.auto import model_class
from mixlab.modeling.traits import Traits

CLASSIFIES_WHOLE = ("sequence-classification", "image-classification", "audio-classification")
LAYERS = 2  # enough for a cache or a stack to go wrong, and quick


@dataclass(frozen=True)
class Case:
    preset: str
    arch: str
    modality: str | None = None  # where it is not the preset's own

    @property
    def name(self) -> str:
        return self.preset if self.modality is None else f"{self.preset}-{self.modality}"

    @property
    def given(self) -> dict[str, Any]:
        """What is changed in the preset so that it reads something else."""
        return {} if self.modality is None else {"modality": self.modality, "pooling": "mean"}

    @property
    def traits(self) -> Traits:
        return self.config().traits

    def sizes(self, **overrides: Any) -> dict[str, Any]:
        """Two layers, unless asked otherwise or told by the stages of a hierarchy."""
        return {**self.given, **({} if self.hierarchical else {"num_hidden_layers": LAYERS}), **overrides}

    @property
    def hierarchical(self) -> bool:
        return load(self.arch).config.hierarchical

    def config(self, **overrides: Any) -> Any:
        return mixlab.config(self.preset, **self.sizes(**overrides))

    def build(self, task: str, seed: int = 0, **overrides: Any) -> Any:
        """A model in evaluation mode whose every number was moved off its initial value: a zero W would hide errors."""
        torch.manual_seed(seed)
        model = mixlab.create(self.preset, task=task, **self.sizes(**overrides)).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.05 * torch.randn_like(parameter)
            for name, statistic in model.named_buffers():
                if name.endswith(("running_mean", "running_var")):
                    statistic += 0.05 * torch.rand_like(statistic)
        return model

    def features(self, **overrides: Any) -> Any:
        return self.build("features", **overrides)

    def inputs(self, batch: int = 2, length: int | None = None, seed: int = 1) -> dict[str, Tensor]:
        """A random batch of whatever the model reads; by default shorter than its cap, and odd."""
        generator = torch.Generator().manual_seed(seed)
        config = self.config()
        if config.modality == "image":
            return {"pixel_values": torch.randn(batch, config.num_channels, config.image_size, config.image_size, generator=generator)}
        n = 13 if length is None else length
        if config.modality == "audio":
            return {"input_features": torch.randn(batch, config.fewest_frames(n), config.num_mel_bins, generator=generator)}
        return {"input_ids": torch.randint(1, config.vocab_size, (batch, n), generator=generator)}


@cache
def cases() -> list[Case]:
    """Presets that are the same under two names are judged once; what an architecture reads and no preset of it does, is judged too."""
    found: dict[tuple[str, str], Case] = {}
    for arch in registry.archs():
        for name, preset in load(arch).presets.items():
            if "-tiny" in name:
                found.setdefault((arch, repr((sorted(preset.settings.items(), key=str), preset.task))), Case(name, arch))
    cases = list(found.values())
    for arch in registry.archs():
        read = {case.config().modality for case in cases if case.arch == arch}
        unread = [modality for modality in mixlab.config(f"{arch}-tiny").traits.modalities if modality not in read]
        cases += [Case(f"{arch}-tiny", arch, modality) for modality in unread]
    return cases


def cases_with(**wanted: Any) -> list[Case]:
    """Those whose declared traits have these values; `modality` and `task` ask for membership."""

    def fits(case: Case) -> bool:
        config, traits = case.config(), case.config().traits
        if "modality" in wanted and config.modality != wanted["modality"]:
            return False
        if "task" in wanted and wanted["task"] not in traits.tasks:
            return False
        return all(getattr(traits, name) == value for name, value in wanted.items() if name not in ("modality", "task"))

    return [case for case in cases() if fits(case)]


def with_labels(case: Case, task: str, inputs: dict[str, Tensor], model: Any) -> dict[str, Tensor]:
    """The same inputs with the labels that the task wants."""
    generator = torch.Generator().manual_seed(2)
    batch = next(iter(inputs.values())).shape[0]
    if task in ("masked-lm", "causal-lm"):
        return {**inputs, "labels": inputs["input_ids"]}
    if task == "token-classification":
        return {**inputs, "labels": torch.randint(0, model.config.num_labels, inputs["input_ids"].shape, generator=generator)}
    if task == "question-answering":
        return {**inputs, "start_positions": torch.tensor([1] * batch), "end_positions": torch.tensor([2] * batch)}
    if task in CLASSIFIES_WHOLE:
        return {**inputs, "labels": torch.randint(0, model.config.num_labels, (batch,), generator=generator)}
    if task == "masked-image-modeling":
        grid = model.config.image_size // model.config.patch_size
        return {**inputs, "noise": torch.rand(batch, grid * grid, generator=generator)}
    if task == "image-restoration":
        config = model.config
        side = config.image_size * config.upscale
        return {**inputs, "labels": torch.randn(batch, config.num_channels, side, side, generator=generator)}
    if task == "ctc":
        return {**inputs, "labels": torch.tensor([[1, 2, 2], [3, -100, -100]])[:batch]}
    return inputs


def main_output(output: Any) -> Tensor:
    """The tensor that a model is about."""
    for name in ("logits", "start_logits", "last_hidden_state", "reconstruction"):
        if output.get(name) is not None:
            return output[name]
    raise AssertionError(f"no main output among {list(output)}")


def class_of(case: Case, task: str) -> Any:
    return model_class(case.arch, task)
