"""Recipes: functions that return a `Job`. The name of a recipe is that of its function, with hyphens.

A docstring says what the recipe is for and what it reached; results are written by runs, and "Not run yet." stands until then.
"""

from __future__ import annotations

from mixlab import registry
from mixlab.errors import MixlabError, unknown

# Six blocks of every architecture have 0.5 to 1 million parameters beside the embeddings.
SMALL = {"num_hidden_layers": 6}


def tiny(arch: str) -> str:
    if arch not in registry.archs():
        raise unknown("architecture", arch, registry.archs())
    if f"{arch}-tiny" not in registry.presets(arch):
        raise MixlabError(f"{arch} has no preset {arch}-tiny for text; set preset instead")
    return f"{arch}-tiny"
