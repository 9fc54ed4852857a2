"""Writes the golden checkpoints: `python -m tests.golden.write`. Once written, they are never rewritten, only added to.

Each folder holds a tiny model as this version saves it, inputs, and the logits that it gives for them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from mixlab.modeling.config import FORMAT
from tests.modeling.tiny import tiny

FOLDER = Path(__file__).parent
SIZES = {"vocab_size": 24, "max_position_embeddings": 12, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {  # folder: (architecture, task, settings)
    "gmlp": ("gmlp", "masked-lm", {"spatial_structure": "dense", "gate_heads": 2, "head_bias": True}),
    "amlp": ("amlp", "causal-lm", {"spatial_structure": "toeplitz", "attention_size": 8}),
}


def main() -> None:
    for name, (arch, task, settings) in MODELS.items():
        folder = FOLDER / f"format-{FORMAT}" / name
        if folder.exists():
            print(f"{folder} is there already and stays as it is")
            continue
        model = tiny(arch, task, **{**SIZES, **settings})
        model.save_pretrained(folder)
        ids = torch.randint(24, (3, 12), generator=torch.Generator().manual_seed(1))
        mask = torch.ones_like(ids)
        mask[1, 9:] = 0
        mask[2, :4] = 0
        with torch.no_grad():
            logits = model(input_ids=ids, attention_mask=mask).logits
        save_file({"input_ids": ids, "attention_mask": mask, "logits": logits}, folder / "example.st")


if __name__ == "__main__":
    main()
