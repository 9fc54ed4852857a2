"""Weights of other implementations, as models of this package; and this package's own models for another task or length.

An architecture's file holds `Importer` records: how to recognise a foreign layout, which configuration its shapes imply, and how its
names map to ours. The machinery here reads the file safely, renames, loads, and accounts for every tensor on both sides.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from mixlab import registry
from mixlab.errors import MixlabError, one_line
from mixlab.modeling.architecture import Architecture, find_preset, load, task_overrides
from mixlab.modeling.auto import model_class
from mixlab.modeling.foreign import Importer, State
from mixlab.modeling.loading import check_folder, load_config, pickles_in, some, stored_config


@dataclass
class Report:
    """What an import did with every tensor."""

    source: str
    layout: str
    architecture: str
    task: str
    loaded: int = 0
    missing: list[str] = field(default_factory=list)  # ours, not in the file: left as initialised
    unused: list[str] = field(default_factory=list)  # in the file, not ours
    misshaped: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def lines(self) -> list[str]:
        counts = f"{self.loaded} tensors loaded, {len(self.missing)} missing, {len(self.unused)} unused"
        head = f"{self.source}: {self.layout} -> {self.architecture}, {self.task}: {counts}"
        listed = [f"{what}: {name}" for what in ("missing", "unused") for name in getattr(self, what)]
        return [head, *listed, *self.notes]


def read_tensors(path: Path, allow_pickle: bool = False) -> State:
    """The tensors of a safetensors file, or, when asked for, of a torch pickle read with weights_only."""
    if not path.is_file():
        raise MixlabError(f"{path} does not exist; give a weights file, a model folder or the name of a model on the Hub")
    if path.suffix == ".safetensors":
        try:
            with safe_open(path, framework="pt") as file:
                state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
                # safetensors stores a shared tensor once, and its other names beside it.
                return {**{alias: state[name] for alias, name in (file.metadata() or {}).items() if name in state}, **state}
        except (SafetensorError, OSError) as error:
            raise MixlabError(f"{path} is damaged or no safetensors file ({one_line(error)}); fetch it again") from error
    if not allow_pickle:
        raise MixlabError(f"{path} is not .safetensors, and a pickle can run code; pass --allow-pickle if you trust its source")
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged or hostile file can raise anything
        # torch's own advice is to let the file run code.
        remedy = f"save model.state_dict() and import that ({type(error).__name__})"
        raise MixlabError(f"{path} holds more than tensors, or is damaged, and was not loaded; {remedy}") from error
    for key in ("state_dict", "model"):
        if isinstance(loaded, dict) and isinstance(loaded.get(key), dict):
            loaded = loaded[key]
    if not isinstance(loaded, dict) or not all(isinstance(k, str) and isinstance(v, Tensor) for k, v in loaded.items()):
        raise MixlabError(f"{path} is not a state dict (names to tensors); save model.state_dict()")
    return loaded


def locate(name: str) -> Path:
    """A file or folder on disk, or a model of the Hub, downloaded (safetensors and configuration only)."""
    path = Path(name)
    if path.exists():
        return path
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name) or path.suffix in (".safetensors", ".pt", ".pth", ".bin"):
        raise MixlabError(f"{name} does not exist; give a weights file, a model folder or the name of a model on the Hub")
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=["*.safetensors", "*.json"]))
    except Exception as error:  # the Hub client raises errors of several libraries
        raise MixlabError(f"{name} is neither a path nor a model that the Hub gives out: {one_line(error)[:160]}") from error


def tensors_of(path: Path, allow_pickle: bool) -> State:
    if path.is_file():
        return read_tensors(path, allow_pickle)
    files = sorted(path.glob("*.safetensors")) or (pickles_in(path) if allow_pickle else [])
    if not files:
        remedy = "pass --allow-pickle if you trust its source" if pickles_in(path) else "give the weights file itself"
        raise MixlabError(f"{path} holds no .safetensors file; {remedy}")
    return {name: tensor for file in files for name, tensor in read_tensors(file, allow_pickle).items()}


def find_importer(state: Mapping[str, Tensor], source: str) -> tuple[Architecture, Importer]:
    """The layout that recognises these names."""
    if not state:
        raise MixlabError(f"{source} holds no tensor; give a file of weights")
    known = []
    for arch in registry.archs():
        architecture = load(arch)
        for importer in architecture.importers:
            if importer.recognises(state):
                return architecture, importer
            known.append(f"{importer.name} ({arch})")
    if any(name.removeprefix("model.").startswith("body.") for name in state):
        raise MixlabError(f"{source} has mixlab's own names and no configuration of mixlab; give the folder that holds its config.json")
    raise MixlabError(f"{source}: names like {some(state)} belong to no layout known here; known: {', '.join(known)}")


def import_model(
    source: str,
    *,
    preset: str | None = None,
    task: str | None = None,
    length: int | None = None,
    allow_pickle: bool = False,
    allow_missing: bool = False,
    settings: Mapping[str, Any] | None = None,
) -> tuple[Any, Report]:
    """A model with the weights of a foreign file, or of one of our own folders, for a task and a length of choice.

    `settings` are fields of the configuration that a foreign file cannot tell, such as {"gate_activation": "tanh"}.
    """
    path = locate(source)
    if path.is_dir() and (path / "config.json").is_file() and str(stored_config(path).get("model_type")).startswith("mixlab-"):
        if preset is not None or settings:
            raise MixlabError(f"{path} is a folder of mixlab and brings its own configuration; leave preset and settings out")
        pickled = allow_pickle and not list(path.glob("*.safetensors"))
        model, report = _own_pickle(path, task, allow_missing) if pickled else _own(path, task)
    else:
        state = tensors_of(path, allow_pickle)
        beside = stored_config(path) if path.is_dir() and (path / "config.json").is_file() else {}
        model, report = _foreign(str(path), state, beside, preset, task, allow_missing, settings or {})
    if length is not None:
        report.notes.append(model.resize_length(length))
    return model, report


def _foreign(
    source: str,
    state: State,
    beside: Mapping[str, Any],
    preset: str | None,
    task: str | None,
    allow_missing: bool,
    settings: Mapping[str, Any],
) -> tuple[Any, Report]:
    architecture, importer = find_importer(state, source)
    try:
        state = importer.prepare(state)
        inferred = {**importer.settings(state), **importer.read(beside)}
        task = task or importer.task(state)
        renamed, unused = _rename(importer, state)
    except MixlabError:
        raise
    except (KeyError, ValueError, IndexError, RuntimeError) as error:
        raise MixlabError(f"{source} looks like {importer.name}, but lacks or misshapes {one_line(error)}; is it complete?") from error
    given = task_overrides(task, settings)
    config = _config_for(source, architecture, preset, inferred, given)
    model = model_class(architecture.name, task)(config)
    report = Report(source, importer.name, architecture.name, task, unused=unused, notes=[importer.note] if importer.note else [])
    load_renamed(model, renamed, report, allow_missing)
    return model.eval(), report


def _config_for(source: str, architecture: Architecture, preset: str | None, inferred: Mapping[str, Any], given: Mapping[str, Any]) -> Any:
    """What the shapes imply and the user says; a preset must agree with the shapes, and adds what they cannot tell."""
    if preset is None:
        return architecture.config(**{**inferred, **given})
    found, chosen = find_preset(preset)
    if found.name != architecture.name:
        raise MixlabError(f"{source} holds a {architecture.name}, and {preset} is a {found.name}; leave --preset out")
    config = chosen.config(found, given)
    for name, value in inferred.items():
        if name not in given and getattr(config, name) != value:
            raise MixlabError(f"{source} has {name}={value}, and {preset} has {getattr(config, name)}; leave --preset out")
    return config


def _rename(importer: Importer, state: State) -> tuple[State, list[str]]:
    """The tensors under our names, and the foreign names that no rule knows."""
    renamed: State = {}
    unused = []
    for name, tensor in state.items():
        for rule in importer.renames:
            if match := re.fullmatch(rule.pattern, name):
                renamed[match.expand(rule.name)] = rule.change(tensor) if rule.change else tensor
                break
        else:
            unused.append(name)
    return renamed, unused


def load_renamed(model: Any, renamed: State, report: Report, allow_missing: bool) -> None:
    """Compare with what the model has, and load. Anything left over on either side is refused or listed."""
    if model.base_model is model:  # no head, hence no prefix of the backbone
        renamed = {name.removeprefix(f"{model.base_model_prefix}."): tensor for name, tensor in renamed.items()}
    ours = {name: tensor for name, tensor in model.state_dict().items() if name not in model.all_tied_weights_keys}
    report.unused += sorted(set(renamed) - set(ours))
    report.missing = sorted(set(ours) - set(renamed))
    report.misshaped = [
        f"{name} is {tuple(renamed[name].shape)}, the model has {tuple(ours[name].shape)}"
        for name in sorted(set(ours) & set(renamed))
        if renamed[name].shape != ours[name].shape
    ]
    if report.misshaped:
        raise MixlabError(f"{report.source}: {report.misshaped[0]} ({len(report.misshaped)} in all); choose a matching preset")
    if report.unused:
        raise MixlabError(f"{report.source}: {some(report.unused)} have no place in a {report.architecture} for {report.task}")
    if report.missing and not allow_missing:
        raise MixlabError(f"{report.source} lacks {some(report.missing)}; --allow-missing leaves them as initialised")
    model.load_state_dict(renamed, strict=False)
    report.loaded = len(renamed)


def _own(path: Path, task: str | None) -> tuple[Any, Report]:
    """One of our own folders: as it is, for another task, or, from both sides to one, as a causal model."""
    check_folder(path)
    config = load_config(str(path))
    arch = config.model_type.removeprefix("mixlab-")
    stored = _stored_task(arch, config)
    task = task or stored
    report = Report(str(path), "mixlab", arch, task)
    if task == "causal-lm" and not config.causal:
        old = model_class(arch, stored).from_pretrained(path)
        report.notes += make_causal(old)
        model = model_class(arch, task)(type(config)(**{**_settings(config), **task_overrides(task, {})}))
        model.base_model.load_state_dict(old.base_model.state_dict())
        _keep_head(model, old, report)
        return model.eval(), report
    model, info = model_class(arch, task).from_pretrained(path, output_loading_info=True)
    report.missing, report.unused = sorted(info["missing_keys"]), sorted(info["unexpected_keys"])
    report.loaded = len(model.state_dict()) - len(report.missing)
    return model.eval(), report


def _own_pickle(path: Path, task: str | None, allow_missing: bool) -> tuple[Any, Report]:
    """One of our own folders whose weights somebody pickled: as it is, to be written as safetensors."""
    config = load_config(str(path))
    arch = config.model_type.removeprefix("mixlab-")
    stored = _stored_task(arch, config)
    if task not in (None, stored):
        raise MixlabError(f"{path} is pickled; import it as it is first, for {stored}, and then what was written for {task}")
    model, report = model_class(arch, stored)(config), Report(str(path), "mixlab, pickled", arch, stored)
    tied = model.all_tied_weights_keys  # held twice by a pickle
    load_renamed(model, {name: t for name, t in tensors_of(path, True).items() if name not in tied}, report, allow_missing)
    return model.eval(), report


def _keep_head(model: Any, old: Any, report: Report) -> None:
    """What two heads share goes over; the rest is listed on both sides."""
    prefix = f"{model.base_model_prefix}."
    theirs = {} if old.base_model is old else {name: tensor for name, tensor in old.state_dict().items() if not name.startswith(prefix)}
    ours = {name for name in model.state_dict() if not name.startswith(prefix)}
    shared = {name: tensor for name, tensor in theirs.items() if name in ours}
    model.load_state_dict(shared, strict=False)
    report.missing = sorted(ours - set(shared) - set(model.all_tied_weights_keys))
    report.unused = sorted(set(theirs) - ours)
    report.loaded = len(old.base_model.state_dict()) + len(shared)


def _settings(config: Any) -> dict[str, Any]:
    """The settings of a configuration, to build another with."""
    return {name: getattr(config, name) for name in load(config.model_type.removeprefix("mixlab-")).field_names()}


def _stored_task(arch: str, config: Any) -> str:
    from mixlab.modeling.auto import model_classes

    names = config.architectures or []
    return next((task for task, cls in model_classes(arch).items() if cls.__name__ in names), "features")


def make_causal(model: Any) -> list[str]:
    """Drop, in place, the half of every spatial weight that reads later tokens, and say how much that was."""
    said = [module.make_causal() for module in model.modules() if hasattr(module, "make_causal")]
    return [f"{said.count(line)} layers: {line}" for line in dict.fromkeys(said)]
