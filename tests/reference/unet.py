"""U-Net by loops over places (arXiv:1505.04597, figure 1, with zeros around the image so that its size stays).

Images are channels x rows x columns. Weights are read by the names of the model under test.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

Params = Mapping[str, Tensor]


def convolve(image: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """relu(y[o, r, s] = b[o] + sum over i, a, e in -1..1 of w[o, i, a, e] x[i, r + a, s + e])."""
    _, rows, columns = image.shape
    out = []
    for r in range(rows):
        for s in range(columns):
            y = bias.clone()
            for a in (-1, 0, 1):
                for e in (-1, 0, 1):
                    if 0 <= r + a < rows and 0 <= s + e < columns:
                        y = y + torch.einsum("oi,i->o", weight[:, :, a + 1, e + 1], image[:, r + a, s + e])
            out.append(y)
    return torch.stack(out, -1).reshape(-1, rows, columns).clamp(min=0)


def pool(image: Tensor) -> Tensor:
    _, rows, columns = image.shape
    out = [image[:, r : r + 2, s : s + 2].amax((1, 2)) for r in range(0, rows, 2) for s in range(0, columns, 2)]
    return torch.stack(out, -1).reshape(-1, rows // 2, columns // 2)


def up(image: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """y[o, 2 r + a, 2 s + e] = b[o] + sum over i of w[i, o, a, e] x[i, r, s]."""
    _, rows, columns = image.shape
    out = image.new_zeros(weight.shape[1], 2 * rows, 2 * columns)
    for r in range(2 * rows):
        for s in range(2 * columns):
            out[:, r, s] = bias + torch.einsum("io,i->o", weight[:, :, r % 2, s % 2], image[:, r // 2, s // 2])
    return out


def level(params: Params, block: int, image: Tensor) -> Tensor:
    place = 0
    while f"body.blocks.{block}.convolutions.{place}.weight" in params:
        name = f"body.blocks.{block}.convolutions.{place}"
        image = convolve(image, params[f"{name}.weight"], params[f"{name}.bias"])
        place += 1
    return image


def unet(params: Params, pixels: Tensor, pools: int) -> Tensor:
    """The w channels at every pixel."""
    x = convolve(pixels, params["stem.projection.weight"], params["stem.projection.bias"])
    left = [level(params, 0, x)]
    for i in range(1, pools + 1):
        left.append(level(params, i, pool(left[-1])))
    x = left.pop()
    for step in range(pools):
        raised = up(x, params[f"body.ups.{step}.weight"], params[f"body.ups.{step}.bias"])
        x = level(params, pools + 1 + step, torch.cat([left.pop(), raised]))
    return x


def restored(params: Params, pixels: Tensor, pools: int) -> Tensor:
    """The image plus what one matrix makes of the channels of each pixel."""
    backbone = {name.removeprefix("model."): value for name, value in params.items()}
    features = unet(backbone, pixels, pools)
    residual = torch.einsum("cw,wrs->crs", params["residual.weight"], features)
    return pixels + residual + params["residual.bias"][:, None, None]


def count(w: int, pools: int, channels: int, maps: int) -> int:
    """Weights and biases in closed form: two convolutions per level, the ups, and the last 1 x 1 convolution to `maps`."""

    def twice(d: int, e: int) -> int:
        return 9 * d * e + e + 9 * e * e + e

    down = twice(channels, w) + sum(twice(w << (i - 1), w << i) for i in range(1, pools + 1))
    rise = sum(4 * (w << (i + 1)) * (w << i) + (w << i) + twice(w << (i + 1), w << i) for i in range(pools))
    return down + rise + w * maps + maps
