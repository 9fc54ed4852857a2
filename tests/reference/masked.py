"""Masked image modelling of one image with a static mixer, in sums that are written out: places are picked with lists of numbers.

Dropped patches: every weight that knows places is cut down to the visible ones, W[idx][:, idx], before anything is multiplied.
Covered patches: the learned token stands in their place, and nothing is cut. The loss is over hidden patches, their pixels normalised
patch by patch.

Parameters are those of a model, by name; a block gets its own, and the places of its tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from tests.reference.block import block as gmlp_block
from tests.reference.block import gelu
from tests.reference.gate import layer_norm

Params = Mapping[str, Tensor]
Block = Callable[[Tensor, dict[str, Tensor], Sequence[int]], Tensor]
EPS = 1e-6


def normed(x: Tensor, p: Params, name: str) -> Tensor:
    return torch.stack([layer_norm(token, p[f"{name}.weight"], p[f"{name}.bias"], EPS) for token in x])


def linear(x: Tensor, p: Params, name: str) -> Tensor:
    return torch.stack([p[f"{name}.weight"] @ token + p[f"{name}.bias"] for token in x])


def gmlp(x: Tensor, p: dict[str, Tensor], idx: Sequence[int]) -> Tensor:
    W, b = p["gate.spatial.weight"], p["gate.bias"]
    picked = torch.stack([torch.stack([torch.stack([head[i, j] for j in idx]) for i in idx]) for head in W])
    return gmlp_block(x, {**p, "gate.spatial.weight": picked, "gate.bias": torch.stack([head[list(idx)] for head in b])})


def mixer(x: Tensor, p: dict[str, Tensor], idx: Sequence[int]) -> Tensor:
    """Hidden unit s reads the places that are there; place i is written from all hidden units."""
    W_1, b_1, W_2, b_2 = (p[f"token_mixing.mlp.{part}"] for part in ("widen.weight", "widen.bias", "narrow.weight", "narrow.bias"))
    y = normed(x, p, "token_norm")
    hidden = [gelu(sum(W_1[s, i] * y[at] for at, i in enumerate(idx)) + b_1[s]) for s in range(len(b_1))]
    x = x + torch.stack([sum(W_2[i, s] * hidden[s] for s in range(len(hidden))) + b_2[i] for i in idx])
    return x + linear(gelu(linear(normed(x, p, "channel_norm"), p, "channel_mixing.widen")), p, "channel_mixing.narrow")


BLOCKS: dict[str, Block] = {"gmlp": gmlp, "mixer": mixer}


def within(p: Params, prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in p.items() if name.startswith(prefix)}


def run(x: Tensor, p: Params, body: str, block: Block, idx: Sequence[int]) -> Tensor:
    for layer in range(1 + max(int(name[len(body) + 8 :].split(".")[0]) for name in p if name.startswith(f"{body}.blocks."))):
        x = block(x, within(p, f"{body}.blocks.{layer}."), idx)
    return normed(x, p, f"{body}.norm")


def patches(image: Tensor, side: int) -> list[Tensor]:
    """c side side each, row by row."""
    rows, columns = image.shape[1] // side, image.shape[2] // side
    return [image[:, side * r : side * (r + 1), side * c : side * (c + 1)] for r in range(rows) for c in range(columns)]


def masked(image: Tensor, noise: Tensor, p: Params, *, arch: str, side: int, keep: int, drop: bool) -> tuple[Tensor, Tensor, list[int]]:
    """The predicted pixels of every patch, the loss, and which patches were hidden."""
    block, cut = BLOCKS[arch], patches(image, side)
    n = len(cut)
    visible = sorted(range(n), key=lambda i: float(noise[i]))[:keep]
    hidden = [i for i in range(n) if i not in visible]
    kernel, bias = p["model.stem.projection.weight"], p["model.stem.projection.bias"]
    x = torch.stack([(kernel * patch).sum((1, 2, 3)) + bias for patch in cut])
    if drop:
        encoded = linear(run(x[visible], p, "model.body", block, visible), p, "decoder.embed")
        full = [encoded[visible.index(i)] if i in visible else p["decoder.mask_token"][0, 0] for i in range(n)]
        predicted = linear(run(torch.stack(full), p, "decoder.body", block, range(n)), p, "decoder.pixels")
    else:
        covered = torch.stack([x[i] if i in visible else p["mask_token"][0, 0] for i in range(n)])
        predicted = linear(run(covered, p, "model.body", block, range(n)), p, "decoder")
    errors = []
    for i in hidden:
        target = cut[i].permute(1, 2, 0).flatten()
        mean = sum(target) / len(target)
        variance = sum((t - mean) ** 2 for t in target) / (len(target) - 1)
        errors.append(((predicted[i] - (target - mean) / (variance + 1e-6).sqrt()) ** 2).mean())
    return predicted, sum(errors) / len(errors), hidden
