"""mixlab: how should the tokens of a model talk to each other? Token mixing as Hugging Face models, counted and compared.

Importing this package imports neither torch nor transformers; the functions below load what they need.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mixlab.errors import MixlabError
from mixlab.modeling.auto import create, register_with_transformers
from mixlab.registry import presets

if TYPE_CHECKING:
    from mixlab.accounting import Account
    from mixlab.modeling.config import MixerConfig
    from mixlab.registry import archs
else:
    from mixlab import archs  # a package that can be called: archs() lists, archs.gmlp is the file

__version__ = "0.1.0"
__all__ = ["MixlabError", "account", "archs", "config", "create", "presets"]

register_with_transformers()


def config(name: str, **overrides: Any) -> MixerConfig:
    """The configuration of a preset with some fields replaced; unknown names are refused with a suggestion."""
    from mixlab.modeling.architecture import config_of

    return config_of(name, overrides)


def account(name: str, length: int | None = None, task: str | None = None, **overrides: Any) -> Account:
    """Parameters and multiply-adds of a preset as lines of whole numbers; no tensor is allocated."""
    from mixlab.modeling.account import account_of_preset

    return account_of_preset(name, length, task, overrides)
