"""Count every preset, then run one forward pass of every head of the small models and time it."""

from __future__ import annotations

import time
from typing import Any

from mixlab import registry


def example_inputs(config: Any) -> dict[str, Any]:
    """One sample of whatever the model reads, as long as it may be."""
    import torch

    if config.modality == "image":
        return {"pixel_values": torch.randn(1, config.num_channels, config.image_size, config.image_size)}
    return {"input_ids": torch.randint(0, config.vocab_size, (1, config.length))}


def milliseconds(model: Any, inputs: dict[str, Any], rounds: int = 5) -> float:
    """The median of a few forward passes after one to warm up."""
    import torch

    times = []
    with torch.no_grad():
        for _ in range(rounds + 1):
            start = time.perf_counter()
            model(**inputs)
            times.append(time.perf_counter() - start)
    return sorted(times[1:])[rounds // 2] * 1e3


def main() -> None:
    from rich.console import Console
    from rich.table import Table

    from mixlab import create
    from mixlab.modeling.account import preset_table
    from mixlab.modeling.architecture import find_preset

    console = Console(width=None if Console().is_terminal else 120)
    counts = Table("preset", "source", "parameters", "published", "difference", "G MACs", title="Presets", title_justify="left", box=None)
    for row in preset_table():
        macs = f"{row['macs'] / 1e9:.2f}"
        counts.add_row(row["preset"], row["source"], f"{row['params']:,}", row["published"] or "", row["difference"], macs)
    console.print(counts)

    passes = Table("preset", "task", "parameters", "ms per sample", title="\nOne forward pass", title_justify="left", box=None)
    for name in [preset for preset in registry.presets() if "-tiny" in preset]:
        architecture, preset = find_preset(name)
        for task in preset.config(architecture, {}).traits.tasks:
            model = create(name, task=task).eval()
            size = sum(parameter.numel() for parameter in model.parameters())
            passes.add_row(name, task, f"{size:,}", f"{milliseconds(model, example_inputs(model.config)):.1f}")
    console.print(passes)
    console.print("\nNext: mixlab show gmlp-base, or the example in the README.")
