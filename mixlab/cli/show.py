"""Show a preset: its counts, what it can do, and the table of its parts.

Counts are of one sequence or image; MACs are multiply-adds, FLOPs are 2 MACs.
"""

from __future__ import annotations

import json
from typing import Annotated, Any

import tyro


def facts(preset: str, task: str | None, length: int | None) -> dict[str, Any]:
    """Everything that is shown, as plain values."""
    from mixlab.modeling.account import account
    from mixlab.modeling.architecture import find_preset, task_overrides

    architecture, found = find_preset(preset)
    task = task or found.task
    config = found.config(architecture, task_overrides(task, {}))
    counted = account(architecture, config, task, length)
    return {
        "preset": preset,
        "arch": architecture.name,
        "task": task,
        "params": counted.params,
        "macs": counted.macs,
        "flops": counted.flops,
        "length": counted.length,
        "traits": config.traits.as_dict(),
        "source": found.source,
        "published": found.published,
        "published_note": found.note,
        "convention": counted.convention,
        "parts": [
            {
                "group": line.group,
                "part": line.name,
                "times": line.times,
                "params": line.param_count,
                "params_formula": line.explain("params"),
                "macs": line.mac_count,
                "macs_formula": line.explain("macs"),
            }
            for line in counted.lines
        ],
    }


def main(
    preset: Annotated[str, tyro.conf.Positional],
    task: str | None = None,
    length: int | None = None,
    json_: Annotated[bool, tyro.conf.arg(name="json"), tyro.conf.FlagCreatePairsOff] = False,
) -> None:
    """Print what a preset is.

    Args:
        preset: A name from `mixlab list presets`.
        task: What the model is for; by default what its paper made it for.
        length: Tokens of the sequence; by default as many as the model reads, 512 where it reads any number.
        json_: Print JSON instead of a table.
    """
    shown = facts(preset, task, length)
    if json_:
        print(json.dumps(shown, indent=2))
        return
    print_table(shown)


def print_table(shown: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    traits = shown["traits"]
    console = Console(width=None if Console().is_terminal else 140)
    note = f": {shown['published_note']}" if shown["published_note"] else ""
    published = f", published as {shown['published']}{note}" if shown["published"] else ""
    console.print(f"[bold]{shown['preset']}[/bold]  ({shown['arch']}, {shown['source']}{published})")
    console.print(f"  for {shown['task']}, n = {shown['length']}", highlight=False)
    console.print(f"  parameters {shown['params']:>18,}")
    console.print(f"  MACs       {shown['macs']:>18,}")
    console.print(f"  FLOPs      {shown['flops']:>18,}   (2 MACs)")
    console.print(
        f"  length {traits['length']}; hides padding: {_yes(traits['masks'])}; can be causal: {_yes(traits['causal'])}", highlight=False
    )
    console.print(f"  tasks: {', '.join(traits['tasks'])}", highlight=False)
    table = Table("part", "times", "parameters of one", "parameters", "MACs", box=None, header_style="bold")
    for column in (1, 3, 4):
        table.columns[column].justify = "right"
    group = None
    for part in shown["parts"]:
        if part["group"] != group:
            group = part["group"]
            table.add_row(f"[dim]{group}[/dim]")
        formula = part["params_formula"].partition(": ")[2]
        table.add_row(f"  {part['part']}", str(part["times"]), formula, f"{part['params']:,}", f"{part['macs']:,}")
    console.print(table)
    console.print(f"[dim]{shown['convention']}[/dim]", highlight=False)


def _yes(value: bool) -> str:
    return "yes" if value else "no"
