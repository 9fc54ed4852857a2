"""Optimizer, schedule, random generators and progress as safetensors and JSON, and back, to the bit. Nothing is pickled.

A tree of dicts, lists, tuples, numbers, texts and tensors becomes `<name>.json`, which tells its shape, and `<name>.safetensors`,
which holds its tensors.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from mixlab.errors import MixlabError, one_line
from mixlab.training import sharding

FORMAT = 1


def write_tree(folder: Path, name: str, tree: Any) -> None:
    """Two files; a value of another kind is refused by name rather than pickled."""
    tensors: dict[str, Tensor] = {}
    content = {"format": FORMAT, "tree": _pack(tree, name, tensors)}
    (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    save_file(tensors, folder / f"{name}.safetensors")


def read_tree(folder: Path, name: str) -> Any:
    """What `write_tree` wrote, equal to the bit."""
    try:
        content = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
        tensors = load_file(folder / f"{name}.safetensors")
        if content["format"] != FORMAT:
            raise MixlabError(f"{folder / name}.json has format {content['format']!r}, this version reads {FORMAT}")
        return _unpack(content["tree"], tensors)
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        if isinstance(error, MixlabError):
            raise
        raise MixlabError(f"{folder / name}.json cannot be read: {one_line(error)}") from error


def _pack(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    if value is None or isinstance(value, str) or type(value) in (bool, int, float):
        return value
    if isinstance(value, Tensor):
        tensors[path] = value.detach().cpu().contiguous().clone()  # a clone: safetensors refuses shared memory
        return {"tensor": path}
    if isinstance(value, list | tuple):
        packed = [_pack(part, f"{path}.{index}", tensors) for index, part in enumerate(value)]
        return packed if isinstance(value, list) else {"tuple": packed}
    if isinstance(value, Mapping):
        if all(key is None or type(key) in (str, int) for key in value):
            return {"dict": [[key, _pack(part, f"{path}.{key}", tensors)] for key, part in value.items()]}
        raise MixlabError(f"{path} has keys that are neither texts nor whole numbers; it cannot be saved without pickle")
    raise MixlabError(f"{path} is a {type(value).__name__}, which cannot be saved without pickle; use tensors and plain numbers")


def _unpack(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(value, list):
        return [_unpack(part, tensors) for part in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "tuple":
        return tuple(_unpack(part, tensors) for part in content)
    if kind == "dict":
        return {key: _unpack(part, tensors) for key, part in content}
    raise ValueError(f"unknown kind {kind!r}")


def random_state() -> dict[str, Any]:
    """Of every generator that training may draw from in this process."""
    name, keys, position, has_gauss, gauss = np.random.get_state()
    return {
        "python": random.getstate(),
        "numpy": (str(name), torch.from_numpy(np.asarray(keys).astype(np.int64)), int(position), int(has_gauss), float(gauss)),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def set_random_state(state: Mapping[str, Any]) -> None:
    random.setstate(state["python"])
    name, keys, *rest = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), *rest))
    torch.set_rng_state(state["torch"])
    if torch.cuda.is_available() and len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(state["cuda"])


def seed_everything(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def load_optimizer(optimizer: Any, tree: Mapping[str, Any]) -> None:
    """Refused when the state is that of another model or another optimizer."""
    try:
        optimizer.load_state_dict(sharding.cut_optimizer(optimizer, tree))
    except (ValueError, KeyError) as error:
        raise MixlabError(f"the stored optimizer state does not fit this model: {one_line(error)}") from error


def load_weights(model: nn.Module, folder: Path) -> None:
    """The weights of a folder that save_pretrained wrote; everything must fit, only tied copies may be absent."""
    stored: dict[str, Tensor] = {}
    for path in sorted(folder.glob("model*.safetensors")):
        stored.update(load_file(path))
    targets = model.state_dict(keep_vars=True)
    try:
        result = model.load_state_dict({name: sharding.cut(value, targets.get(name)) for name, value in stored.items()}, strict=False)
    except RuntimeError as error:
        raise MixlabError(f"the weights of {folder} do not fit this model: {one_line(error)}") from error
    named = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers(remove_duplicate=False))
    filled = {id(named[name]) for name in stored if name in named}
    missing = [name for name in result.missing_keys if id(named.get(name)) not in filled]
    if missing or result.unexpected_keys:
        wrong = [*missing, *result.unexpected_keys]
        raise MixlabError(f"the weights of {folder} are of another model: {', '.join(wrong[:3])} and {len(wrong)} names in all do not fit")


def non_finite(tree: Any, path: str = "") -> str | None:
    """The first tensor or number in a tree that is NaN or infinite, by name."""
    if isinstance(tree, Tensor):
        return path if tree.is_floating_point() and not bool(torch.isfinite(tree).all()) else None
    if isinstance(tree, float):
        return None if math.isfinite(tree) else path
    if isinstance(tree, Mapping):
        parts: Any = tree.items()
    elif isinstance(tree, list | tuple):
        parts = enumerate(tree)
    else:
        return None
    return next((found for key, part in parts if (found := non_finite(part, f"{path}.{key}".strip("."))) is not None), None)
