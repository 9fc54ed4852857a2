"""What an earlier version saved still loads, and still says the same. Policy: every `mixlab_format` ever released stays readable."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from mixlab.modeling.convert import import_model

FOLDERS = sorted(path.parent for path in Path(__file__).parent.glob("format-*/*/config.json"))


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: f"{folder.parent.name}-{folder.name}")
def test_old_checkpoints_still_say_the_same(folder: Path) -> None:
    model, report = import_model(str(folder))
    assert report.missing == report.unused == []
    example = load_file(folder / "example.st")
    logits = example.pop("logits")
    real = example["attention_mask"].bool()
    with torch.no_grad():
        torch.testing.assert_close(model(**example).logits[real], logits[real], atol=1e-6, rtol=0)


def test_they_are_there_and_small() -> None:
    assert {folder.name for folder in FOLDERS} >= {"gmlp", "amlp"}
    for folder in FOLDERS:
        assert sum(path.stat().st_size for path in folder.iterdir()) < 100_000
