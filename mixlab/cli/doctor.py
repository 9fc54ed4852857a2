"""Say what works on this machine and what to install for the rest."""

from __future__ import annotations

import json
import platform
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import tyro

from mixlab.errors import one_line

# What an optional package is for.
OPTIONAL = {
    "peft": "LoRA and other adapters",
    "onnx": "ONNX export",
    "onnxruntime": "running ONNX files",
}
REQUIRED = (
    "torch",
    "transformers",
    "accelerate",
    "datasets",
    "tokenizers",
    "scikit-learn",
    "scipy",
    "numpy",
    "safetensors",
    "huggingface_hub",
    "filelock",
    "jinja2",
    "jaxtyping",
    "tyro",
    "rich",
)


def version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def bf16_on_cpu() -> bool:
    """Whether the processor multiplies bfloat16 itself; without that it is about a hundred times slower than float32."""
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return False
    return "avx512_bf16" in flags or "amx_bf16" in flags


def forward_pass() -> dict[str, Any]:
    """Whether a small model answers with numbers, on what; and if not, why: the packages that are there may not fit together."""
    try:
        import torch

        from mixlab import create

        with torch.no_grad():
            finite = bool(torch.isfinite(create("gmlp-tiny").eval()(input_ids=torch.arange(8)[None]).logits).all())
        problem = None if finite else "gives non-finite numbers"
        return {"threads": torch.get_num_threads(), "cuda": torch.cuda.is_available(), "forward_pass": finite, "problem": problem}
    except Exception as error:  # what a broken installation raises can be anything
        return {"threads": None, "cuda": None, "forward_pass": False, "problem": f"{type(error).__name__}: {one_line(error)}"}


def examine() -> dict[str, Any]:
    return {
        "python": platform.python_version(),
        "packages": {name: version(name) for name in REQUIRED},
        "optional": {name: {"version": version(name), "for": what} for name, what in OPTIONAL.items()},
        "cpu_bf16": bf16_on_cpu(),
        **forward_pass(),
    }


def main(json_: Annotated[bool, tyro.conf.arg(name="json"), tyro.conf.FlagCreatePairsOff] = False) -> None:
    """Print what was found.

    Args:
        json_: Print JSON.
    """
    found = examine()
    if json_:
        print(json.dumps(found, indent=2))
        return
    print(f"python {found['python']}, {found['threads'] or 'unknown'} threads, GPU: {'yes' if found['cuda'] else 'no'}")
    for name, installed in found["packages"].items():
        print(f"  {name:<18}{installed or f'not installed, and needed: pip install {name}'}")
    for name, optional in found["optional"].items():
        status = optional["version"] or f"not installed; for {optional['for']}: pip install {name}"
        print(f"  {name:<18}{status}")
    print(f"  bfloat16 on the CPU: {'fast' if found['cpu_bf16'] else 'emulated, very slow; stay with float32'}")
    print(f"  a forward pass of gmlp-tiny: {found['problem'] or 'works'}")
