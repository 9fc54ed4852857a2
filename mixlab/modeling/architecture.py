"""What an architecture's file hands to the rest of the package, and what its presets are."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from torch import nn

from mixlab import registry
from mixlab.accounting import Line
from mixlab.errors import MixlabError, unknown
from mixlab.layers import Stack
from mixlab.modeling.config import MixerConfig
from mixlab.modeling.foreign import Importer


@dataclass(frozen=True)
class Preset:
    """A named configuration: its fields, its paper's task, where it is published, and the count printed there."""

    settings: Mapping[str, Any]
    task: str
    source: str
    published: str | None = None  # as printed, with its unit: "130M"
    note: str = ""  # what the publication counts otherwise, where the printed number differs
    counted_as: str = ""  # the convention of its figures, a name of `accounting.PAPERS`; empty where it prints none

    def config(self, architecture: Architecture, overrides: Mapping[str, Any]) -> MixerConfig:
        fields = architecture.field_names()
        for name in overrides:
            if name not in fields:
                raise unknown(f"{architecture.name} setting", name, fields)
        return architecture.config(**{**self.settings, **overrides})


@dataclass(frozen=True)
class Pooler:
    """How an architecture makes one vector of all tokens where the shell cannot: by attention, or with a norm behind the mean."""

    build: Callable[[Any], nn.Module]  # config -> module, (b n d) -> (b d)
    account: Callable[[Any], Sequence[Line]]
    poolings: tuple[str, ...] = ("map",)  # those that it is built for


@dataclass(frozen=True)
class Architecture:
    """The one record that `archs/<name>.py` must define as ARCH."""

    name: str
    config: type[MixerConfig]
    body: Callable[[Any], nn.Module]  # config -> module, Tokens -> Tokens
    account: Callable[[Any, int], Sequence[Line]]  # config, length -> the lines of the body, and of a stem of its own
    presets: Mapping[str, Preset]
    importers: Sequence[Importer] = ()
    stem: Callable[[Any], nn.Module] | None = None  # config -> module, raw input -> tokens; None: the usual one
    pooler: Pooler | None = None

    def pooler_for(self, config: MixerConfig) -> Pooler | None:
        """The one that pools as the configuration says; None: the shell does."""
        return self.pooler if self.pooler and config.pooling in self.pooler.poolings else None

    def __post_init__(self) -> None:
        # The model classes are made on first use; this lets them be imported (and unpickled) from the architecture's module.
        module = sys.modules[self.config.__module__]
        module.__dict__.setdefault("__getattr__", self._find_class)

    def _find_class(self, name: str) -> Any:
        from mixlab.modeling.auto import model_classes

        if name.startswith(self.class_prefix) and not name.startswith("__"):
            for cls in model_classes(self.name).values():
                if cls.__name__ == name:
                    return cls
        raise AttributeError(f"module {self.config.__module__!r} has no attribute {name!r}")

    @property
    def class_prefix(self) -> str:
        """GMLPConfig -> GMLP, as in GMLPForMaskedLM."""
        return self.config.__name__.removesuffix("Config")

    def field_names(self) -> set[str]:
        """What may be set: the fields of the configuration, and the number of labels."""
        return {field.name for field in fields(self.config) if field.name not in _NOT_TO_BE_SET} | {"num_labels"}


# Fields of the base class that a preset or a user has no business with.
_NOT_TO_BE_SET = frozenset(
    [
        "mixlab_format",
        "transformers_version",
        "architectures",
        "output_hidden_states",
        "return_dict",
        "chunk_size_feed_forward",
        "is_encoder_decoder",
    ]
)


def stack(config: Any, block: Callable[[Any, int], nn.Module]) -> Stack:
    """The default body: `num_hidden_layers` blocks built from (config, index), and, if the architecture has one, a final norm."""
    blocks = [block(config, layer) for layer in range(config.num_hidden_layers)]
    norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps) if config.final_norm else nn.Identity()
    return Stack(blocks, norm)


def load(arch: str) -> Architecture:
    """What an architecture's file declares."""
    return registry.module(arch).ARCH


def find_preset(name: str) -> tuple[Architecture, Preset]:
    """A preset and the architecture that it belongs to."""
    architecture = load(registry.arch_of(name))
    return architecture, architecture.presets[name]


def config_of(name: str, overrides: Mapping[str, Any]) -> MixerConfig:
    """The configuration of a preset with some fields replaced."""
    architecture, preset = find_preset(name)
    return preset.config(architecture, overrides)


def task_overrides(task: str, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """What a task asks of a configuration, besides what the user does.

    A causal language model reads only what came before; hidden tokens are predicted from both sides.
    """
    if task == "masked-lm":
        return {"causal": False, "pooling": "cls", **overrides}
    if task != "causal-lm":
        return dict(overrides)
    if overrides.get("causal") is False:
        raise MixlabError("task='causal-lm' with causal=False contradict each other; leave causal out")
    return {"pooling": "last", **overrides, "causal": True}


def read_settings(pairs: Sequence[str]) -> dict[str, Any]:
    """`key=value` texts as settings; values are read as JSON where they are, and as text otherwise."""
    settings: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise MixlabError(f"setting {pair!r} is not of the form key=value")
        try:
            settings[name] = json.loads(text)
        except ValueError:
            settings[name] = text
    return settings
