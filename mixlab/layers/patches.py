"""Images as patches, and back. The numbers of a patch are ordered row, column, channel.

Axes: b batch, c channels, n patches (row by row).
"""

from __future__ import annotations

from jaxtyping import Shaped
from torch import Tensor


def to_patches(image: Shaped[Tensor, "b c height width"], side: int) -> Shaped[Tensor, "b n numbers"]:
    b, c, height, width = image.shape
    cut = image.reshape(b, c, height // side, side, width // side, side)
    return cut.permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)


def from_patches(patches: Shaped[Tensor, "b n numbers"], side: int, grid: tuple[int, int]) -> Shaped[Tensor, "b c height width"]:
    rows, columns = grid
    cut = patches.unflatten(-1, (side, side, -1)).unflatten(1, (rows, columns))  # b rows columns side side c
    return cut.permute(0, 5, 1, 3, 2, 4).flatten(4, 5).flatten(2, 3)


def as_image(x: Shaped[Tensor, "b n d"], grid: tuple[int, int]) -> Shaped[Tensor, "b d rows columns"]:
    """Tokens of a grid as an image of d channels."""
    return x.transpose(1, 2).unflatten(2, grid)


def as_tokens(image: Shaped[Tensor, "b d rows columns"]) -> Shaped[Tensor, "b n d"]:
    # Not flatten and transpose: of one image, torch 2.13's batch norm on a CPU then reads the gradient in the wrong order.
    return image.permute(0, 2, 3, 1).flatten(1, 2)
