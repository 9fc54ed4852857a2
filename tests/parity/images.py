"""What the parity tests of image models share: weights of another library come in, say the same, and go out again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import mixlab
from mixlab.modeling.convert import import_model
from mixlab.modeling.convert_back import write_foreign
from tests.modeling.tiny import randomise


def moved(model: nn.Module, scale: float = 0.05) -> nn.Module:
    """A model with every parameter and every running statistic off its initial value, in evaluation mode."""
    randomise(model, scale=scale)
    for name, buffer in model.named_buffers():
        if name.endswith("running_mean"):
            buffer.add_(0.1 * torch.randn_like(buffer))
        elif name.endswith("running_var"):
            buffer.mul_(0.5 + torch.rand_like(buffer))
    return model.eval()


def there_and_back(build: Callable[[], nn.Module], folder: Path, *, layout: str = "timm", scale: float = 0.05, **options: Any) -> Any:
    """Import the weights of a model of theirs, compare logits, write them out, and load them into a second model of theirs.

    Both ways every tensor must find its place. `options` are those of the import.
    """
    torch.manual_seed(0)
    theirs = moved(build(), scale)
    save_file(theirs.state_dict(), folder / "theirs.safetensors")
    ours, report = import_model(str(folder / "theirs.safetensors"), **options)
    assert (report.layout, report.task, report.missing, report.unused) == (layout, "image-classification", [], [])
    config = ours.config
    pixels = torch.randn(2, config.num_channels, config.image_size, config.image_size)
    with torch.no_grad():
        expected = theirs(pixels)
        assert expected.std() > 0.05
        torch.testing.assert_close(ours(pixel_values=pixels).logits, expected, atol=1e-5, rtol=0)
    assert write_foreign(ours, layout, folder / "back.safetensors") == len(theirs.state_dict())
    back = build().eval()
    back.load_state_dict(load_file(folder / "back.safetensors"), strict=True)
    with torch.no_grad():
        assert torch.equal(back(pixels), expected)
    return ours


def counted_alike(preset: str, params: int, giga: float, build: Callable[[], nn.Module], *, within: float = 6e-4) -> None:
    """The account, our model and theirs have the same parameters; multiply-adds (G) are those measured on theirs, as they were rounded."""
    counted = mixlab.account(preset)
    with torch.device("meta"):
        models: Mapping[str, Any] = {"ours": mixlab.create(preset), "theirs": build()}
    counts = {name: sum(p.numel() for p in model.parameters()) for name, model in models.items()}
    assert {"account": counted.params, **counts} == {"account": params, "ours": params, "theirs": params}
    assert counted.macs / 1e9 == pytest.approx(giga, abs=within)


def without_classifier(preset: str) -> int:
    """Parameters of a preset, but for those of the projection to labels."""
    counted = mixlab.account(preset)
    return counted.params - sum(line.param_count for line in counted.lines if line.name == "classifier")
