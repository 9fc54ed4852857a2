"""Loading that cannot lie: a checkpoint either fits the model or is refused with the reason, in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from transformers import AutoConfig, PreTrainedModel

from mixlab import registry
from mixlab.errors import MixlabError, one_line
from mixlab.modeling.tasks import TASK_HEADS

PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


class MisfitError(MixlabError, RuntimeError):
    """Stored sizes are not those of the model; a RuntimeError too, since transformers raises one and callers may expect it."""


def some(names: Any, most: int = 3) -> str:
    """A few names of many: `a, b, c and 7 more`."""
    listed = sorted(names)
    return ", ".join(listed[:most]) + (f" and {len(listed) - most} more" if len(listed) > most else "")


def stored_config(folder: Path) -> dict[str, Any]:
    """The config.json of a model folder."""
    if not (folder / "config.json").is_file():
        raise MixlabError(f"{folder} holds no config.json; give a folder written by save_pretrained")
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise MixlabError(f"{folder / 'config.json'} is not JSON ({one_line(error)}); restore it, or save the model again") from error
    if not isinstance(config, dict):
        raise MixlabError(f"{folder / 'config.json'} is not a JSON object; give a folder written by save_pretrained")
    return config


def pickles_in(folder: Path) -> list[Path]:
    """The pickled weights of a folder by transformers' name, else whatever is a pickle."""
    return sorted(folder.glob("pytorch_model*.bin")) or sorted(path for pattern in PICKLES for path in folder.glob(pattern))


def check_folder(folder: Path) -> dict[str, Any]:
    """The config.json of a model folder; refused when its weights are not there, or a pickle."""
    if (folder / "config.json").is_file() and not list(folder.glob("*.safetensors")):
        if pickles := pickles_in(folder):
            remedy = f"see `mixlab import {folder} --allow-pickle -o NEW`, if you trust its source"
            raise MixlabError(f"{folder} holds only a pickle, {pickles[0].name}, which can run code; {remedy}")
        raise MixlabError(f"{folder} holds no model.safetensors; put the weights beside config.json, or save the model again")
    return stored_config(folder)


class StrictLoading:
    """Put before PreTrainedModel: `from_pretrained` refuses what transformers would only warn about.

    A head may be new (finetuning) or left behind (features only), since tasks share backbones. The backbone must fit exactly, and so
    must the head of a checkpoint of the same class; what belongs to no head at all is refused.
    What is stored in another size is refused as well, unless `ignore_mismatched_sizes=True` asks for new weights in its place.
    """

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Any:
        wants_info = kwargs.pop("output_loading_info", False)
        other_sizes = kwargs.pop("ignore_mismatched_sizes", False)
        place = Path(str(pretrained_model_name_or_path))
        if place.is_dir() and kwargs.get("state_dict") is None:
            folder = place / kwargs.get("subfolder", "")
            stored = check_folder(folder).get("model_type")
            expected = cls.config_class.model_type  # type: ignore[attr-defined]
            if stored != expected:
                raise MixlabError(f"{folder} holds a {stored!r} model, not {expected!r}; load it with AutoModel")
        kwargs.setdefault("use_safetensors", True)
        try:
            model, info = super().from_pretrained(  # type: ignore[misc]
                pretrained_model_name_or_path, *args, output_loading_info=True, ignore_mismatched_sizes=other_sizes, **kwargs
            )
        except MixlabError:
            raise
        except SafetensorError as error:
            raise MixlabError(f"the weights of {place} are damaged ({one_line(error)}); restore the file from its source") from error
        except RuntimeError as error:
            raise MisfitError(f"{place} cannot be loaded: {one_line(error)}") from error
        except (OSError, ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
            raise MixlabError(f"{place} cannot be loaded: {one_line(error)}; is it whole, and the right place?") from error
        _check_fit(model, info, place, other_sizes)
        for module in model.modules():
            if hasattr(module, "freeze"):  # transformers lets everything learn that it loads
                module.freeze()
        return (model, info) if wants_info else model

    @staticmethod
    def _finalize_model_loading(model: Any, load_config: Any, loading_info: Any) -> Any:
        """Refuses before transformers makes room for what is of another size, which can be any."""
        found = {"mismatched_keys": loading_info.mismatched_keys, "missing_keys": (), "unexpected_keys": ()}
        _check_fit(model, found, Path(str(load_config.pretrained_model_name_or_path)), load_config.ignore_mismatched_sizes)
        return PreTrainedModel._finalize_model_loading(model, load_config, loading_info)


def _check_fit(model: Any, info: dict[str, Any], place: Path, other_sizes: bool) -> None:
    prefix = f"{model.base_model_prefix}."
    has_head = hasattr(model, model.base_model_prefix)
    if info["mismatched_keys"] and not other_sizes:
        name, stored, ours = min(info["mismatched_keys"])
        raise MisfitError(
            f"{place}: {name} is stored as {tuple(stored)}, but the configuration needs {tuple(ours)}; the files do not belong together"
        )
    stored_with_head = type(model).__name__ in (model.config.architectures or ())
    missing = [name for name in info["missing_keys"] if name.startswith(prefix) or stored_with_head or not has_head]
    if missing:
        raise MixlabError(f"{place} lacks {some(missing)}; the checkpoint is incomplete or of another configuration")
    # Left behind: the heads of other tasks. Anything else must be used.
    heads = {part for head in TASK_HEADS.values() for part in head.parts}
    extra = [name for name in info["unexpected_keys"] if name.partition(".")[0] not in heads]
    if extra:
        raise MixlabError(f"{place} holds {some(extra)}, which this model does not have; the checkpoint is of another configuration")


def load_config(place: str) -> Any:
    """The configuration in a folder, whatever the architecture."""
    model_type = stored_config(Path(place)).get("model_type")
    if not isinstance(model_type, str) or model_type.removeprefix("mixlab-") not in registry.archs():
        raise MixlabError(f"{place} holds a model of type {model_type!r}, which is none of mixlab's; import it from its weights file")
    try:
        return AutoConfig.from_pretrained(place)
    except MixlabError:
        raise
    except (ValueError, OSError, KeyError, TypeError) as error:
        raise MixlabError(f"{place}: {one_line(error)}; correct its config.json") from error
