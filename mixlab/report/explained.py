"""An explanation as plain values: of a layer expression, of a preset, of two things compared. Nothing here knows a terminal."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from mixlab.accounting.account import QUANTITIES, Account, Line
from mixlab.accounting.conventions import PAPERS, Convention
from mixlab.accounting.expressions import RULES, is_expression, parse
from mixlab.accounting.figures import percent, short
from mixlab.errors import MixlabError

BYTES = 4  # of a number in single precision
COMPARED = ("params", "macs", "flops", "kept", "live", "state")


def explain(what: str, convention: Convention | None, *, task: str | None = None, length: int | None = None) -> dict[str, Any]:
    """Of an expression or a preset. No convention: the one of the publication."""
    if not is_expression(what):
        return of_preset(what, task, length, convention)
    if task is not None or length is not None or convention is None:
        raise MixlabError(f"--task, --length and --as are for presets; {what!r} says its own sizes")
    return of_expression(what, convention)


def of_expression(expression: str, convention: Convention) -> dict[str, Any]:
    layer = parse(expression)
    found = record(convention.apply(layer.account))
    facts = {fact.name: {"derivation": fact.derivation(), "value": fact.value} for fact in layer.facts}
    shapes = {"takes": layer.takes, "gives": layer.gives}
    return {
        "what": expression,
        "kind": "layer",
        "unit": convention.unit,
        "about": layer.about,
        **shapes,
        **found,
        "facts": facts,
        "scope": layer.convention,
    }


def of_preset(name: str, task: str | None, length: int | None, convention: Convention | None) -> dict[str, Any]:
    from mixlab import registry

    if name not in registry.presets() and name not in registry.archs():
        raise unknown_thing(name, registry.presets())
    registry.arch_of(name)  # says what is wrong with the name of an architecture, before torch is loaded
    from mixlab.modeling.account import account
    from mixlab.modeling.architecture import find_preset, task_overrides

    architecture, preset = find_preset(name)
    if convention is None:
        if not preset.counted_as:
            raise MixlabError(f"preset {name!r} has no publication whose way of counting is known; leave --as out")
        convention = PAPERS[preset.counted_as]
    task = task or preset.task
    config = preset.config(architecture, task_overrides(task, {}))
    counted = account(architecture, config, task, length, convention)
    published = {"source": preset.source, "published": preset.published, "published_note": preset.note}
    found = record(counted, causal=config.causal)
    found["facts"] = reading(config, counted.length)
    about = registry.headline(architecture.name)
    return {
        "what": name,
        "kind": "preset",
        "unit": convention.unit,
        "about": about,
        "task": task,
        "length": counted.length,
        **published,
        **found,
    }


def unknown_thing(name: str, presets: list[str]) -> MixlabError:
    from mixlab.errors import unknown

    first = name.split()[0] if name.split() else name
    return unknown("preset or layer", first, [*presets, *RULES], "(mixlab list presets; mixlab explain --help has the layers)")


def reading(config: Any, n: int) -> dict[str, dict[str, Any]]:
    """How far a token of the whole model reads, and of which degree its mixing is, as the architecture declares."""
    traits, facts = config.traits, {}
    if traits.reach is None:
        facts["tokens that a token can read"] = {"derivation": f"all {n:,}", "value": n}
    elif config.hierarchical:
        side = min(config.image_size, config.final_patch + 2 * traits.reach)
        facts["pixels along a side that a token can read"] = {
            "derivation": f"{config.final_patch} + 2*{traits.reach}, at most {side}",
            "value": side,
        }
    else:
        behind = 1 if config.causal else 2
        most = config.grid if config.modality == "image" else n
        side = min(most, 1 + behind * traits.reach)
        power = "^2" if config.modality == "image" else ""
        seen = side * side if power else side
        facts["tokens that a token can read"] = {"derivation": f"min({most}, 1 + {behind}*{traits.reach}){power} = {seen:,}", "value": seen}
    for order in traits.order:
        facts[f"degree of mixing in the input{'' if len(traits.order) == 1 else f', {order}'}"] = {"derivation": str(order), "value": order}
    return facts


def record(counted: Account, causal: bool = True) -> dict[str, Any]:
    """Lines by group, totals, and bounds of the parts that mix tokens."""
    groups: list[dict[str, Any]] = []
    for line in counted.lines:
        if not groups or groups[-1]["group"] != line.group:
            groups.append({"group": line.group, "lines": []})
        groups[-1]["lines"].append(of_line(line))
    totals = {"params": counted.params, "macs": counted.macs, "flops": counted.flops, "work": counted.total("work")}
    memory = {"kept": counted.kept, "live": counted.live, "state": counted.state if causal else 0}
    size = {f"{name}_bytes": BYTES * memory[name] for name in memory}
    return {"convention": counted.convention, **totals, **memory, **size, "groups": groups, "mixing": counted.mixings()}


def of_line(line: Line) -> dict[str, Any]:
    quantities = {what: {"derivation": line.derivation(what), "total": line.count(what)} for what in QUANTITIES}
    return {"part": line.name, "times": line.times, **quantities}


def compare(left: dict[str, Any], right: dict[str, Any]) -> dict[str, Any]:
    """Two records side by side, and what share of the first the second is."""
    shares = {name: percent(Fraction(right[name], left[name])) if left[name] else None for name in COMPARED}
    return {"left": left, "right": right, "shares": shares}


def size(numbers: int) -> str:
    """Numbers as bytes in single precision: `1.5 MB`."""
    return f"{short(BYTES * numbers).replace('B', 'G')}B".replace("KB", "kB")
