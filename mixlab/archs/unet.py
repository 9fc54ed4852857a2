"""U-Net: down to a coarse grid and up again, with a skip at every level (Ronneberger et al. 2015, arXiv:1505.04597).

    D_0 = conv(X)                        conv: twice relu(3 x 3 convolution)
    D_i = conv(pool(D_{i-1}))            pool: the largest of 2 x 2 places; channels w 2^i, for i = 1 .. L
    U_L = D_L
    U_i = conv([D_i, up(U_{i+1})])       up: each place becomes 2 x 2 by a matrix of its own; [,]: along the channels, for i = L-1 .. 0

U_0 has w channels at every pixel. A skip is a sum in disguise: a convolution of [D, U] is one of D plus one of U, so D_i reaches the other
side without passing the coarse levels. For restoration a last matrix w -> c predicts what is added to the image. The paper's convolutions
shrink the image by their border; here zeros stand around it, so that what comes out has the size of what went in.

Axes: b batch, n tokens (pixels of a level, row by row), d channels in, e channels out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from mixlab.accounting import Line
from mixlab.accounting.parts import activation, convolution, largest
from mixlab.errors import MixlabError
from mixlab.layers import Stack, Tokens
from mixlab.layers.patches import as_image, as_tokens
from mixlab.modeling.architecture import Architecture, Preset
from mixlab.modeling.config import MixerConfig
from mixlab.modeling.traits import Traits


class UNetConfig(MixerConfig):
    """hidden_size = w, the channels of the finest level; num_pools = L, how often rows and columns are halved."""

    model_type = "mixlab-unet"
    hierarchical = True
    poolings = ("mean",)

    modality = "image"
    pooling = "mean"
    patch_size = 1
    final_norm = False
    num_pools: int = 4

    def __post_init__(self, **kwargs: object) -> None:
        if not 1 <= self.num_pools <= 10:
            raise MixlabError(f"num_pools is {self.num_pools}; it must be at least 1, for a U, and at most 10")
        self.derive("num_hidden_layers", 2 * self.num_pools + 1, f"num_pools={self.num_pools}")
        self.require(patch_size=1, final_norm=False, hidden_dropout=0.0)
        super().__post_init__(**kwargs)

    @property
    def image_multiple(self) -> int:
        return 1 << self.num_pools

    @property
    def traits(self) -> Traits:
        return Traits(
            masks=False,
            causal=False,
            length="grid",
            modalities=("image",),
            tasks=("features", "image-classification", "image-restoration"),
            order=(1,),
            attention=False,
            maps=False,
            reach=max(place - self._first_read(place) for place in range(self.image_multiple)),
        )

    def _first_read(self, row: int) -> int:
        """The first row of the image that a row of the last level reads, where no border is near."""
        for _ in range(self.num_pools):  # down the up side: two kernels, then the coarse row that this one was made of
            row = (row - 2) // 2
        row -= 2
        for _ in range(self.num_pools):
            row = 2 * row - 2
        return row

    def levels(self) -> Iterator[tuple[str, list[int], int]]:
        """Every level, in the order of the blocks: its name, the channels before, between and after its convolutions, its depth."""
        w, last = self.hidden_size, self.num_pools
        yield "down 0", [w, w], 0  # whose first convolution is the stem's
        for i in range(1, last + 1):
            yield f"down {i}", [w << (i - 1), w << i, w << i], i
        for i in reversed(range(last)):
            yield f"up {i}", [2 * (w << i), w << i, w << i], i


def draw(layer: nn.Conv2d | nn.ConvTranspose2d, inputs: int) -> None:
    """The paper's start: deviation sqrt(2 / inputs of an output), which keeps the size of signals from relu to relu."""
    nn.init.normal_(layer.weight, std=(2 / inputs) ** 0.5)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


class Convolution(nn.Conv2d):
    """3 x 3, with zeros around the image."""

    def __init__(self, d: int, e: int) -> None:
        super().__init__(d, e, 3, padding=1)

    def reset_parameters(self) -> None:
        draw(self, 9 * self.in_channels)


class Up(nn.ConvTranspose2d):
    """2 x 2 places from each, and half of the channels."""

    def __init__(self, d: int) -> None:
        super().__init__(d, d // 2, 2, stride=2)

    def reset_parameters(self) -> None:
        draw(self, self.in_channels)


class Stem(nn.Module):
    """The first convolution."""

    def __init__(self, config: UNetConfig) -> None:
        super().__init__()
        self.projection = Convolution(config.num_channels, config.hidden_size)

    def forward(self, pixels: Float[Tensor, "b c height width"]) -> Float[Tensor, "b n d"]:
        return as_tokens(F.relu(self.projection(pixels)))


class Block(nn.Module):
    """The convolutions of a level."""

    order = 1

    def __init__(self, widths: list[int]) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(Convolution(d, e) for d, e in pairwise(widths))

    def forward(self, tokens: Tokens) -> Tokens:
        assert tokens.grid is not None
        image = as_image(tokens.x, tokens.grid)  # b d rows columns
        for layer in self.convolutions:
            image = F.relu(layer(image))
        return tokens.with_x(as_tokens(image))


class Body(Stack):
    """Blocks 0 .. L go down, L+1 .. 2L up; each of the latter also reads the block that left the same grid on the way down."""

    def __init__(self, config: UNetConfig) -> None:
        super().__init__((Block(widths) for _, widths, _ in config.levels()), nn.Identity())
        self.pools = config.num_pools
        self.ups = nn.ModuleList(Up(config.hidden_size << i) for i in range(self.pools, 0, -1))

    def forward(self, tokens: Tokens) -> Tokens:
        tokens.keep("hidden", lambda x=tokens.x: x)
        skips: list[Tokens] = []
        for layer, block in enumerate(self.blocks):
            if 0 < layer <= self.pools:
                skips.append(tokens)
                tokens = pooled(tokens)
            elif layer > self.pools:
                tokens = joined(skips.pop(), tokens, self.ups[layer - self.pools - 1])
            tokens = self.run(block, replace(tokens, layer=layer))
            replace(tokens, layer=layer + 1).keep("hidden", lambda x=tokens.x: x)
        return tokens


def pooled(tokens: Tokens) -> Tokens:
    assert tokens.grid is not None
    rows, columns = tokens.grid
    return replace(tokens, x=as_tokens(F.max_pool2d(as_image(tokens.x, tokens.grid), 2)), grid=(rows // 2, columns // 2))


def joined(skip: Tokens, coarse: Tokens, up: nn.Module) -> Tokens:
    """What was there before the pool, and what came from below, along the channels."""
    assert coarse.grid is not None
    raised = as_tokens(up(as_image(coarse.x, coarse.grid)))
    return replace(coarse, x=torch.cat([skip.x, raised], dim=-1), grid=skip.grid)


def account(config: UNetConfig, n: int) -> list[Line]:
    """The lines of stem and body for an image of n pixels."""
    d = config.hidden_size
    lines = [convolution("stem", 3, config.num_channels, d, n), activation("relu", d, n)]
    for name, widths, i in config.levels():
        here = n >> (2 * i)
        if name.startswith("up"):  # a place below writes four here, each with a matrix of its own
            lines.append(replace(convolution(f"{name}, from below", 2, widths[0], widths[-1], here // 4), mixing=None))
        elif i:
            lines.append(largest(widths[0], 4 * here))
        for place, (d, e) in enumerate(pairwise(widths)):
            lines += [convolution(f"{name}, convolution {place}", 3, d, e, here), activation("relu", e, here)]
    return lines


TINY = Preset({"hidden_size": 8, "num_pools": 2, "image_size": 16, "num_labels": 10}, "image-restoration", "tests and demos")
PRESETS = {
    "unet": Preset(
        {"hidden_size": 64, "num_channels": 1, "image_size": 512, "num_labels": 2},
        "image-restoration",
        "Ronneberger et al. 2015",
        "31M",
        "the paper's last matrix writes two maps, 65 numbers more",
    ),
    "unet-tiny": TINY,
    "unet-tiny-image": TINY,
}

ARCH = Architecture("unet", UNetConfig, body=Body, account=account, presets=PRESETS, stem=Stem)
