"""Our weights under the names of another library: the importers of an architecture, read backwards."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from mixlab.errors import MixlabError, unknown
from mixlab.modeling.architecture import load
from mixlab.modeling.foreign import Importer, Rename, State
from mixlab.modeling.loading import some

TOKEN = re.compile(r"\\(?P<escaped>\W)|\((?P<group>[^()?][^()]*)\)|(?P<literal>[\w-])")


def inverted(rename: Rename) -> Rename:
    """The rule that leads back: our names match, theirs are made. The groups of a pattern keep what they match."""
    theirs, groups, place = "", [], 0
    while place < len(rename.pattern):
        found = TOKEN.match(rename.pattern, place)
        if found is None:
            raise MixlabError(f"the pattern {rename.pattern!r} has many names for one, so no way leads back from {rename.name!r}")
        if found["group"]:
            groups.append(found["group"])
            theirs += f"\0{len(groups)}\0"
        else:
            theirs += found["escaped"] or found["literal"]
        place = found.end()
    ours, order = "", []
    for part in re.split(r"(\\\d)", rename.name):
        if re.fullmatch(r"\\\d", part):
            order.append(int(part[1:]))
            ours += f"({groups[order[-1] - 1]})"
        else:
            ours += re.escape(part)
    if sorted(order) != list(range(1, len(groups) + 1)):
        raise MixlabError(f"{rename.name!r} does not tell every part of {rename.pattern!r}, so no way leads back")
    template = re.sub("\0(\\d)\0", lambda group: f"\\{order.index(int(group[1])) + 1}", theirs)
    return Rename(ours, template, rename.restore)


def way_back(importer: Importer) -> bool:
    """Whether an importer can be read backwards."""
    plain = importer.prepare is dict or importer.finish is not None
    return plain and all(rename.change is None or rename.restore is not None for rename in importer.renames)


def layouts(arch: str) -> list[str]:
    """The layouts that models of an architecture can be written in."""
    return sorted({importer.name for importer in load(arch).importers if way_back(importer)})


def foreign_state(model: Any, layout: str) -> State:
    """All weights of a model in a foreign layout."""
    arch = model.config.model_type.removeprefix("mixlab-")
    importers = [importer for importer in load(arch).importers if importer.name == layout and way_back(importer)]
    if not importers:
        if not layouts(arch):
            raise MixlabError(f"no layout of another library is known for {arch}; share the mixlab folder itself")
        raise unknown(f"layout of {arch}", layout, layouts(arch))
    prefix = "" if model.base_model is not model else f"{model.base_model_prefix}."
    ours = {prefix + name: tensor for name, tensor in model.state_dict().items() if name not in model.all_tied_weights_keys}
    left: list[str] = []
    for importer in importers:
        state, left = _renamed(importer, ours)
        if not left:
            return importer.finish(state) if importer.finish else state
    raise MixlabError(f"{layout} has no place for {some(left)} of this {arch}; its layout is for another task or other settings")


def _renamed(importer: Importer, ours: State) -> tuple[State, list[str]]:
    state: State = {}
    left = []
    rules = [inverted(rename) for rename in importer.renames]
    for name, tensor in ours.items():
        for rule in rules:
            if match := re.fullmatch(rule.pattern, name):
                state[match.expand(rule.name)] = rule.change(tensor) if rule.change else tensor
                break
        else:
            left.append(name)
    return state, left


def write_foreign(model: Any, layout: str, path: Path) -> int:
    """Write a safetensors file in a foreign layout; how many tensors it holds."""
    if path.suffix != ".safetensors":
        raise MixlabError(f"{path} is not named .safetensors, and pickles are not written; name it {path.with_suffix('.safetensors')}")
    if path.exists():
        raise MixlabError(f"{path} exists; choose another name")
    state = {name: tensor.detach().clone().contiguous() for name, tensor in foreign_state(model, layout).items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(state, path, metadata={"format": "pt"})
    return len(state)
