"""LightConv: the model against naive loops with the same weights, its counts from the paper's shapes, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import mixlab
from mixlab import MixlabError
from tests.modeling.tiny import randomise
from tests.reference import lightconv
from tests.reference.compare import mask_of

ROWS = {
    "LightConv, two-sided and causal, with padding [naive loops]": "test_model_is_its_equation",
    "LightConv, parameters by hand [closed form]": "test_counts",
    "LightConv, generation with cache [full recomputation]": "test_generation_with_a_cache_is_full_recomputation",
    "LightConv, bad input [error]": "test_mistakes",
}
ARCH = "lightconv"
SIZES = {"hidden_size": 8, "intermediate_size": 12, "convolution_heads": 2, "vocab_size": 20}


def small(arch: str, task: str = "features", **overrides: Any) -> Any:
    return randomise(mixlab.create(f"{arch}-tiny", task=task, **{**SIZES, "num_hidden_layers": 3, **overrides})).double().eval()


def naive(model: Any, ids: Tensor, mask: Tensor | None) -> Tensor:
    """The hidden states, sample by sample."""
    out = []
    for b, row in enumerate(ids):
        x = model.stem.tokens.weight[row]
        for layer, block in enumerate(model.body.blocks):
            x = lightconv.block(
                x,
                dict(block.named_parameters()),
                heads=model.config.convolution_heads,
                kernel=model.config.kernel(layer),
                causal=model.config.causal,
                mask=None if mask is None else mask[b].tolist(),
            )
        out.append(x)
    return torch.stack(out)


def check_model(arch: str, causal: bool, padding: str) -> None:
    model = small(arch, kernel_sizes=[3, 5], causal=causal, pooling="last" if causal else "cls")
    ids, mask = torch.randint(0, 20, (2, 7)), mask_of(padding, 7)
    counts = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask
    with torch.no_grad():
        ours = model(input_ids=ids, attention_mask=None if mask is None else mask.long()).last_hidden_state
        torch.testing.assert_close(ours[counts], naive(model, ids, mask)[counts], rtol=0, atol=1e-9)


def check_generation(arch: str) -> None:
    model = small(arch, "causal-lm", kernel_sizes=[4, 3]).float()
    prompts, mask = torch.randint(1, 20, (2, 6)), torch.tensor([[0, 0, 1, 1, 1, 1], [1] * 6])
    options = {"attention_mask": mask, "max_new_tokens": 9, "do_sample": False, "pad_token_id": 0}
    assert torch.equal(model.generate(prompts, use_cache=True, **options), model.generate(prompts, use_cache=False, **options))


def check_mistake(arch: str, settings: dict[str, Any], says: str) -> None:
    with pytest.raises(MixlabError, match=says) as caught:
        mixlab.config(f"{arch}-tiny", **settings)
    assert "\n" not in str(caught.value)


MISTAKES = {
    "heads": ({"convolution_heads": 7}, "hidden_size 128 cannot be shared by convolution_heads=7"),
    "even": ({"kernel_sizes": [3, 4]}, "a kernel of 4 taps has no middle; use odd kernel_sizes, or causal=True"),
    "none": ({"kernel_sizes": []}, r"kernel_sizes are \[\]; give one of 1"),
    "huge": ({"kernel_sizes": [3, 10**9 + 1]}, r"kernel_sizes are \[3, 1000000001\]"),
    "zero": ({"kernel_sizes": [0]}, r"kernel_sizes are \[0\]"),
    "rate": ({"taps_dropout": 1.0}, "taps_dropout is 1.0; it must be at least 0 and below 1"),
    "width": ({"intermediate_size": 0}, "intermediate_size is 0; it must be at least 1"),
    "image": ({"modality": "image"}, "reads text, not image"),
}


@pytest.mark.parametrize("causal", [False, True], ids=["both", "causal"])
@pytest.mark.parametrize("padding", ["full", "right", "left", "holes"])
def test_model_is_its_equation(causal: bool, padding: str) -> None:
    check_model(ARCH, causal, padding)


def test_generation_with_a_cache_is_full_recomputation() -> None:
    check_generation(ARCH)


def test_counts() -> None:
    """Per layer 3 d^2 + 3 d of the branch, H k taps, the feed-forward network, two norms; then the token table."""
    d, f, heads, vocabulary = 1024, 4096, 16, 32000
    sizes = {"hidden_size": d, "intermediate_size": f, "convolution_heads": heads, "vocab_size": vocabulary, "num_hidden_layers": 7}
    counted = mixlab.account(f"{ARCH}-tiny", length=512, **sizes)
    kernels = (3, 7, 15, 31, 31, 31, 31)  # of the paper's encoder for translation
    shared = 3 * d * d + 3 * d + 2 * d * f + f + d + 4 * d
    assert counted.params == 7 * shared + heads * sum(kernels) + vocabulary * d
    matrices = 3 * d * d + 2 * d * f
    assert counted.macs == 512 * (7 * matrices + sum(kernels) * d + d * vocabulary)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes(mistake: str) -> None:
    check_mistake(ARCH, *MISTAKES[mistake])


def test_an_even_kernel_can_be_causal() -> None:
    assert mixlab.config(f"{ARCH}-tiny", kernel_sizes=[4], causal=True, pooling="last").traits.reach == 4 * 3
