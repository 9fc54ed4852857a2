"""Model classes of every architecture, made from its record, and their registration with transformers' Auto classes.

Registration waits until somebody imports transformers' auto modules, so that `import mixlab` costs nothing and works before
or after `import transformers`.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any

from mixlab import registry
from mixlab.errors import MixlabError, unknown
from mixlab.modeling.tasks import TASK_HEADS

if TYPE_CHECKING:
    from mixlab.modeling.backbone import MixerPreTrainedModel

CONFIGS, MODELS = "transformers.models.auto.configuration_auto", "transformers.models.auto.modeling_auto"


@functools.cache
def model_classes(arch: str) -> dict[str, type[MixerPreTrainedModel]]:
    """task -> model class, such as GMLPForMaskedLM; they can also be imported from the architecture's module."""
    from mixlab.modeling import backbone, heads
    from mixlab.modeling.architecture import load

    architecture = load(arch)
    module = sys.modules[f"mixlab.archs.{arch}"]
    generic: list[type[Any]] = [backbone.MixerModel, *heads.HEADS]
    classes: dict[str, type[Any]] = {}
    for base in generic:
        task = getattr(base, "task", "features")
        name = architecture.class_prefix + TASK_HEADS[task].suffix
        attributes = {
            "__module__": module.__name__,
            "__doc__": f"{registry.headline(arch)} {(base.__doc__ or '').strip()}",
            "config_class": architecture.config,
            "architecture": architecture,
            # transformers reads the configuration's class from here.
            "__annotations__": {"config": architecture.config},
        }
        if task != "features":
            attributes["backbone_class"] = classes["features"]
        classes[task] = type(name, (base,), attributes)
        setattr(module, name, classes[task])
    return classes


def model_class(arch: str, task: str) -> type[MixerPreTrainedModel]:
    if task not in tuple(TASK_HEADS):  # a tuple also says no to what cannot be hashed
        raise unknown("task", task, TASK_HEADS)
    return model_classes(arch)[task]


def create(name: str, task: str | None = None, **overrides: Any) -> MixerPreTrainedModel:
    """A randomly initialised model of a preset; `task` defaults to that of its paper, and causal-lm makes it causal."""
    from mixlab.modeling.architecture import find_preset, task_overrides

    architecture, preset = find_preset(name)
    task = task or preset.task
    cls = model_class(architecture.name, task)
    config = preset.config(architecture, task_overrides(task, overrides))
    if task not in config.traits.tasks:
        raise MixlabError(f"{name} cannot do {task!r}; it can do: {', '.join(config.traits.tasks)}")
    return cls._from_config(config)  # transformers' own way, which honours `dtype`


def register_configs() -> None:
    from transformers.models.auto.configuration_auto import AutoConfig

    from mixlab.modeling.architecture import load

    for arch in registry.archs():
        config = load(arch).config
        AutoConfig.register(config.model_type, config, exist_ok=True)


def register_models() -> None:
    """Every class under every task: what an architecture cannot do, its head refuses with the reason."""
    from transformers.models.auto import modeling_auto

    for arch in registry.archs():
        for task, cls in model_classes(arch).items():
            getattr(modeling_auto, TASK_HEADS[task].auto_class).register(cls.config_class, cls, exist_ok=True)


class _AfterImport(importlib.abc.MetaPathFinder):
    """Calls a function once, right after a module was imported by anyone."""

    def __init__(self, pending: dict[str, Callable[[], None]]) -> None:
        self.pending = pending

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname not in self.pending:
            return None
        then = self.pending.pop(fullname)  # popped first, so that the search below finds the real module
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            then()

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def register_with_transformers() -> None:
    """Now, for auto modules that are loaded already; when they are loaded, for the others."""
    pending = {CONFIGS: register_configs, MODELS: register_models}
    for name in [name for name in pending if name in sys.modules]:
        pending.pop(name)()
    sys.meta_path.insert(0, _AfterImport(pending))
