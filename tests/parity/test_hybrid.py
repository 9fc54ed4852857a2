"""Hybrids: the model of a plan equals its parts put together by hand, each a loop over tokens."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import mixlab
from mixlab import MixlabError
from mixlab.layers import Tokens
from tests.modeling.tiny import randomise
from tests.reference.attention import attention
from tests.reference.banded import convolve_grid
from tests.reference.windows import merge, window_attention

ROWS = {
    "Hybrid: convolutions first, then attention [loops put together by hand]": "test_convolutions_first_then_attention",
    "Hybrid: blocks of the one exchanged for blocks of the other [loops put together by hand]": "test_blocks_swapped",
    "Hybrid: the hierarchy in a Transformer, windows shifted [loops put together by hand]": "test_hierarchy_in_the_transformer",
    "Hybrid: kernels are shown as the matrix that they are [einsum]": "test_kernels_are_shown_as_a_map",
    "Hybrid: exact parameters and multiply-adds of each way [closed form]": "test_counts",
    "Hybrid: plans that mix in one way, windows larger than the grid and even kernels are refused": "test_what_does_not_fit_is_refused",
}
SMALL = {"image_size": 16, "patch_size": 4, "window_size": 2, "mlp_ratio": 2.0, "num_labels": 3, "layer_norm_eps": 1e-5}


class ByHand:
    """The named parts of a model, in an order that the test spells, on one image."""

    def __init__(self, plan: str, hidden_size: int, head_size: int, **more: Any) -> None:
        torch.manual_seed(0)
        settings = {**SMALL, "plan": plan, "hidden_size": hidden_size, "head_size": head_size, **more}
        self.model = randomise(mixlab.create("hybrid-tiny", **settings), scale=0.3).double().eval()
        self.p = {name: value.detach() for name, value in self.model.state_dict().items()}
        self.head_size = head_size
        self.pixels = torch.randn(2, 3, 16, 16, dtype=torch.float64)
        self.x, self.grid = torch.empty(0), (4, 4)

    def part(self, prefix: str) -> dict[str, Tensor]:
        return {name.removeprefix(prefix): value for name, value in self.p.items() if name.startswith(prefix)}

    def linear(self, x: Tensor, name: str) -> Tensor:
        return x @ self.p[f"{name}.weight"].T + self.p[f"{name}.bias"]

    def norm(self, x: Tensor, name: str) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * self.p[f"{name}.weight"] + self.p[f"{name}.bias"]

    def begin(self, image: int) -> None:
        """Patches, row by row."""
        kernel, bias = self.p["model.stem.projection.weight"], self.p["model.stem.projection.bias"]
        cut = [self.pixels[image, :, 4 * r : 4 * r + 4, 4 * c : 4 * c + 4] for r in range(4) for c in range(4)]
        self.x, self.grid = torch.stack([torch.einsum("dcij,cij->d", kernel, patch) + bias for patch in cut]), (4, 4)

    def block(self, layer: int, mix: str, shift: int = 0) -> None:
        name = f"model.body.blocks.{layer}."
        normal, p = self.norm(self.x, name + "attention_norm"), self.part(name + "attention.")
        heads = normal.shape[1] // self.head_size
        if mix == "convolution":
            taps = p["convolve.weight"].squeeze(1).flip(-2, -1)
            mixed = convolve_grid(normal, taps, self.grid) + p["convolve.bias"]
        elif mix == "attention":
            mixed = attention(normal, p["qkv.weight"], p["qkv.bias"], p["out.weight"], p["out.bias"], heads=heads)
        else:
            mixed = window_attention(normal, p, grid=self.grid, side=2, shift=shift, heads=heads)
        self.x = self.x + mixed
        wide = F.gelu(self.linear(self.norm(self.x, name + "ffn_norm"), name + "ffn.widen"))
        self.x = self.x + self.linear(wide, name + "ffn.narrow")

    def merge(self, layer: int) -> None:
        self.x = merge(self.x, self.part(f"model.body.blocks.{layer}.merging."), self.grid)
        self.grid = (self.grid[0] // 2, self.grid[1] // 2)

    def end(self, image: int) -> None:
        logits = self.linear(self.norm(self.x, "model.body.norm").mean(0), "classifier")
        with torch.no_grad():
            found = self.model(pixel_values=self.pixels).logits[image]
        assert found.std() > 0.05
        torch.testing.assert_close(found, logits, rtol=0, atol=1e-9)


def test_convolutions_first_then_attention() -> None:
    hand = ByHand("ccaa", 8, 4)
    for image in range(2):
        hand.begin(image)
        hand.block(0, "convolution")
        hand.block(1, "convolution")
        hand.block(2, "attention")
        hand.block(3, "attention")
        hand.end(image)


@pytest.mark.parametrize("kernel", [3, 5])
def test_blocks_swapped(kernel: int) -> None:
    hand = ByHand("caca", 8, 8, kernel_size=kernel)
    for image in range(2):
        hand.begin(image)
        for layer in (0, 2):
            hand.block(layer, "convolution")
            hand.block(layer + 1, "attention")
        hand.end(image)


def test_hierarchy_in_the_transformer() -> None:
    hand = ByHand("ww/aa", 16, 4)
    for image in range(2):
        hand.begin(image)
        hand.block(0, "windows")
        hand.block(1, "windows", shift=1)
        hand.merge(2)
        hand.block(2, "attention")
        hand.block(3, "attention")
        hand.end(image)


def test_counts() -> None:
    """Written out for 64 tokens of 64 channels (at the end 16 of 128): a block's own parts, its norms and its network."""
    d, n = 64, 64
    network = 2 * 4 * d * d + 4 * d + d + 4 * d  # with both norms
    convolution, attention = 9 * d + d, 4 * d * d + 4 * d
    ends = 48 * d + d + 2 * d + 10 * d + 10
    for preset in ("hybrid-first-tiny", "hybrid-swap-tiny"):
        counted = mixlab.account(preset)
        assert counted.params == 4 * network + 2 * convolution + 2 * attention + ends
        macs = 4 * n * 8 * d * d + 2 * n * 9 * d + 2 * (4 * n * d * d + 2 * n * n * d)
        assert counted.macs == macs + n * 48 * d + 10 * d
    e = 128
    windows = attention + 7 * 7 * 2
    last = 8 * e * e + 9 * e + 4 * e * e + 4 * e  # the network with its norms, q, k, v and output
    merging = 8 * d + 4 * d * e
    counted = mixlab.account("hybrid-hierarchy-tiny")
    assert counted.params == 2 * (network + windows) + merging + last + 48 * d + d + 2 * e + 10 * e + 10
    windowed = 2 * (12 * n * d * d + 2 * n * 16 * d)
    assert counted.macs == windowed + 16 * 4 * d * e + 12 * 16 * e * e + 2 * 16 * 16 * e + n * 48 * d + 10 * e
    for preset in ("hybrid-first-tiny", "hybrid-swap-tiny", "hybrid-hierarchy-tiny"):
        with torch.device("meta"):
            model = mixlab.create(preset)
        assert sum(p.numel() for p in model.parameters()) == mixlab.account(preset).params


def test_what_does_not_fit_is_refused() -> None:
    bad: list[tuple[dict[str, Any], str]] = [
        ({"plan": "aaa"}, "mixes in one way only"),
        ({"plan": "ccc"}, "mixes in one way only"),
        ({"plan": ""}, "write stages of the letters c, a and w"),
        ({"plan": "cx"}, "write stages of the letters"),
        ({"plan": "ca//a"}, "with a / between two stages"),
        ({"plan": "wa", "window_size": 9}, "window_size 9 is larger than the grid of 8 x 8; use 8"),
        ({"plan": "ca/w", "window_size": 5}, "larger than the grid of 4 x 4"),
        ({"plan": "wa", "window_size": 3}, "image_size 32 is not a multiple of 12"),
        ({"plan": "c/c/c/c/a", "hidden_size": 512}, "image_size 32 is not a multiple of 64"),
        ({"kernel_size": 4}, "kernel_size is 4; use an odd one"),
        ({"kernel_size": -1}, "kernel_size is -1"),
        ({"head_size": 24}, "cut into heads of 24"),
        ({"head_size": 0}, "heads of 0"),
        ({"num_hidden_layers": 3}, "num_hidden_layers is 3, but plan 'ccaa' makes it 4"),
        ({"pooling": "cls"}, "has no pooling 'cls'"),
        ({"masking": "drop"}, "cannot leave patches out"),
    ]
    for settings, reason in bad:
        with pytest.raises(MixlabError, match=reason):
            mixlab.config("hybrid-tiny", **settings)
    model = mixlab.create("hybrid-tiny").eval()
    assert model(pixel_values=torch.randn(1, 3, 20, 36)).logits.shape == (1, 10)
    with pytest.raises(MixlabError, match="an image of 30 x 32; its sides must be multiples of 4"):
        model(pixel_values=torch.zeros(1, 3, 30, 32))
    with pytest.raises(MixlabError, match="has no attention to output"):
        model(pixel_values=torch.zeros(1, 3, 32, 32), output_attentions=True)


@torch.no_grad()
def test_kernels_are_shown_as_a_map() -> None:
    hand = ByHand("ca", 8, 4)
    output = hand.model.model(pixel_values=hand.pixels, output_maps=True, output_hidden_states=True)
    name, x = "model.body.blocks.0.", output.hidden_states[0]
    kernels, weights = output.maps
    assert (kernels.shape, weights.shape) == ((8, 16, 16), (2, 2, 16, 16))
    mixed = torch.einsum("dij,bjd->bid", kernels, hand.norm(x, name + "attention_norm")) + hand.p[name + "attention.convolve.bias"]
    found = hand.model.model.body.blocks[0].attention
    torch.testing.assert_close(mixed, found(Tokens(hand.norm(x, name + "attention_norm"), grid=(4, 4))), rtol=0, atol=1e-10)
