"""DynamicConv: the model against naive loops with the same weights, its counts from the paper's shapes, and what it refuses."""

from __future__ import annotations

import pytest
import torch

import mixlab
from mixlab.layers import Tokens
from tests.parity.test_lightconv import MISTAKES, check_generation, check_mistake, check_model, small

ROWS = {
    "DynamicConv, two-sided and causal, with padding [naive loops]": "test_model_is_its_equation",
    "DynamicConv, equal predictions make a mean over the kernel [average pooling]": "test_equal_taps_are_a_mean",
    "DynamicConv, parameters by hand [closed form]": "test_counts",
    "DynamicConv, generation with cache [full recomputation]": "test_generation_with_a_cache_is_full_recomputation",
    "DynamicConv, bad input [error]": "test_mistakes",
}
ARCH = "dynamicconv"


@pytest.mark.parametrize("causal", [False, True], ids=["both", "causal"])
@pytest.mark.parametrize("padding", ["full", "right", "left", "holes"])
def test_model_is_its_equation(causal: bool, padding: str) -> None:
    check_model(ARCH, causal, padding)


def test_equal_taps_are_a_mean() -> None:
    """With W = 0 every tap is 1 / k."""
    model = small(ARCH)
    convolution = model.body.blocks[1].branch.convolution
    torch.nn.init.zeros_(convolution.predict.weight)
    x = torch.randn(2, 9, 8, dtype=torch.float64)
    pooled = torch.nn.functional.avg_pool1d(x.mT, 7, stride=1, padding=3).mT
    torch.testing.assert_close(convolution(x, Tokens(x)), pooled)


def test_generation_with_a_cache_is_full_recomputation() -> None:
    check_generation(ARCH)


def test_counts() -> None:
    """LightConv's, with d H k parameters in the place of H k, and as many multiply-adds per token on top."""
    d, heads = 1024, 16
    sizes = {"hidden_size": d, "intermediate_size": 4096, "convolution_heads": heads, "vocab_size": 32000, "num_hidden_layers": 7}
    light, dynamic = (mixlab.account(f"{arch}-tiny", length=512, **sizes) for arch in ("lightconv", ARCH))
    taps = 3 + 7 + 15 + 4 * 31
    assert dynamic.params - light.params == (d - 1) * heads * taps
    assert dynamic.macs - light.macs == 512 * d * heads * taps


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes(mistake: str) -> None:
    check_mistake(ARCH, *MISTAKES[mistake])
