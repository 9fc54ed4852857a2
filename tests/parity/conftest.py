"""Implementations that others wrote, importable by the tests of this folder alone, from the folder `.oracles`."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

ORACLES = Path(__file__).parents[2] / ".oracles"
FILES = ORACLES / "files"  # packages that cannot be imported beside a CPU build of torch, but single files of which can
_kept: list[torch.library.Library] = []


def import_torchvision() -> None:
    """A torchvision that was built for CUDA does not find its operators beside a CPU build of torch: declare the two it asks for."""
    try:
        importlib.import_module("torchvision")
    except RuntimeError:
        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "DEF")
        _kept.append(library)  # an operator lives as long as its library
        for operator in ("nms", "qnms"):
            library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        importlib.import_module("torchvision")


@pytest.fixture(scope="package")
def oracle() -> Iterator[Callable[[str], ModuleType]]:
    """`oracle("timm")` imports it. What is installed beside mixlab comes first, `.oracles` last."""
    from transformers.utils import is_timm_available, is_torchvision_available

    # transformers remembers its answers: they must be those of the environment, not of this folder.
    is_timm_available(), is_torchvision_available()
    sys.path.append(str(ORACLES))

    def find(name: str) -> ModuleType:
        try:
            if name.split(".")[0] == "timm":
                import_torchvision()
            return importlib.import_module(name)
        except ImportError as error:
            pytest.fail(f"{name} cannot be imported ({error}); run `make oracles`", pytrace=False)

    yield find
    sys.path.remove(str(ORACLES))


@pytest.fixture(scope="package")
def oracle_file() -> Callable[[str], ModuleType]:
    """`oracle_file("torchaudio/models/conformer.py")` imports that file alone, without its package."""

    def find(path: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location(f"oracle_{Path(path).stem}", FILES / path)
        if spec is None or spec.loader is None or not (FILES / path).is_file():
            pytest.fail(f"{FILES / path} is not there; run `make oracles`", pytrace=False)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return find
