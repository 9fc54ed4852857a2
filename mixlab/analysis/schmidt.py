"""Any linear layer as a sum of terms that mix tokens and channels apart (the operator-Schmidt decomposition).

    layer(X) = sum_r M_r X W_r + offset        M_r: m x n mixes tokens,  W_r: d x e mixes channels

The fewest terms are the rank of the layer's operator, rearranged so that a row belongs to a pair of tokens and a column to a pair of
channels (Van Loan and Pitsianis 1993); the singular values say how much each term counts. With one term, tokens and channels are mixed
apart. Fully connected layers have min(m n, d e) terms, a convolution one per tap, attention with fixed weights one per head.

Axes: b batch, n tokens in, m tokens out, d channels in, e channels out, R terms.
"""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mixlab.errors import MixlabError
from mixlab.layers.patches import as_image, as_tokens
from mixlab.layers.tokens import Tokens
from mixlab.maps import TokenMap

LARGEST = 2**24  # numbers of an operator, all of which are written down
ON_SEQUENCES = (nn.Conv1d, nn.BatchNorm1d, nn.AvgPool1d)  # torch's layers that want the channels before the tokens
ON_IMAGES = (nn.Conv2d, nn.BatchNorm2d, nn.AvgPool2d)
SCALES = (1.0, 100.0)  # of the random inputs that a layer must be linear on
Grid = tuple[int, int]


@dataclass(frozen=True)
class Term:
    """M X W."""

    M: Float[Tensor, "m n"]
    W: Float[Tensor, "d e"]

    def __call__(self, x: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b m e"]:
        return self.M @ x @ self.W


@dataclass(frozen=True)
class Decomposition:
    """The terms, the heaviest first, orthogonal to each other; `weights` are their norms."""

    terms: tuple[Term, ...]
    weights: Float[Tensor, " R"]
    offset: Float[Tensor, "m e"]  # what the layer makes of zeros: its biases

    @property
    def rank(self) -> int:
        return len(self.terms)

    def share(self, terms: int) -> float:
        """How much of the layer its heaviest terms explain (of its squares): 1 at `rank`; nearly 1 at 1 means nearly separable."""
        energy = self.weights.square()
        return float(energy[:terms].sum() / energy.sum()) if self.rank else 1.0

    def __call__(self, x: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b m e"]:
        """The sum of the terms: the layer again."""
        out = self.offset.expand(*x.shape[:-2], *self.offset.shape)
        for term in self.terms:
            out = out + term(x)
        return out


def decompose(layer: Any, tokens: int, channels: int, *, grid: Grid | None = None) -> Decomposition:
    """The terms of a linear layer for inputs of `tokens` x `channels`; what is not linear is refused.

    `layer` is a token map, a torch layer, or anything that is called with (b n d); `grid` are the rows and columns of an image.
    """
    if tokens < 1 or channels < 1 or (grid is not None and math.prod(grid) != tokens):
        raise MixlabError(
            f"{tokens} tokens of {channels} channels on the grid {grid}; give at least 1 of both, and a grid of as many tokens"
        )
    name = type(layer).__name__
    run, dtype = as_function(layer, tokens, grid)
    tolerance = torch.finfo(dtype).eps ** 0.6
    with torch.no_grad():
        operator, offset = operator_of(run, tokens, channels, dtype, name)
        for x in probes(tokens, channels, dtype):
            expected = torch.einsum("mend,bnd->bme", operator, x) + offset
            error, size = float((run(x) - expected).abs().max()), float(expected.abs().max() + x.abs().max())
            if not error <= tolerance * size:  # also where it is NaN
                raise MixlabError(
                    f"{name} is not linear: off by {error:.2g} where the numbers are up to {size:.2g}; decompose its linear parts"
                )
        m, e, n, d = operator.shape
        u, s, v = torch.linalg.svd(operator.permute(0, 2, 3, 1).reshape(m * n, d * e), full_matrices=False)
        rank = int((s > tolerance * s[0]).sum())
        terms = [Term((u[:, r] * s[r].sqrt()).view(m, n), (v[r] * s[r].sqrt()).view(d, e)) for r in range(rank)]
    return Decomposition(tuple(terms), s[:rank], offset)


def probes(tokens: int, channels: int, dtype: torch.dtype) -> list[Float[Tensor, "1 n d"]]:
    generator = torch.Generator().manual_seed(0)
    return [scale * torch.randn(1, tokens, channels, dtype=dtype, generator=generator) for scale in SCALES]


def operator_of(
    run: Callable[[Tensor], Tensor], tokens: int, channels: int, dtype: torch.dtype, name: str
) -> tuple[Float[Tensor, "m e n d"], Float[Tensor, "m e"]]:
    """What each single number of the input does, and what zeros do."""
    zeros = torch.zeros(1, tokens, channels, dtype=dtype)
    offset = run(zeros)
    if offset.dim() != 3 or len(offset) != 1:
        raise MixlabError(f"{name} makes {tuple(offset.shape)} of {tuple(zeros.shape)}; a layer here gives (batch, tokens, channels)")
    if (size := zeros.numel() * offset.numel()) > LARGEST:
        raise MixlabError(f"the operator of {name} has {size:,} numbers, more than {LARGEST:,}; decompose it for fewer tokens or channels")
    for x in probes(tokens, channels, dtype):
        if not torch.equal(run(x), run(x)):
            raise MixlabError(f"{name} answers the same input differently; call eval(), so that nothing is drawn at random")
    columns = torch.empty(tokens * channels, *offset.shape[1:], dtype=dtype)
    for place in range(tokens * channels):  # one by one: a layer that looks at its whole batch must not see them together
        one = torch.zeros(tokens * channels, dtype=dtype)
        one[place] = 1
        columns[place] = (run(one.view_as(zeros)) - offset)[0]
    return columns.unflatten(0, (tokens, channels)).permute(2, 3, 0, 1), offset[0]


def as_function(layer: Any, tokens: int, grid: Grid | None) -> tuple[Callable[[Tensor], Tensor], torch.dtype]:
    """The layer as a function of (b n d), in float64 where it has parameters that can be copied."""
    if isinstance(layer, nn.Module) and hasattr(layer, "at"):
        return as_function(copy.deepcopy(layer).double().at(tokens), tokens, grid)  # pyright: ignore[reportCallIssue] (a weight of a map)
    if not isinstance(layer, nn.Module) and callable(layer):
        held = [value for value in getattr(layer, "__dict__", {}).values() if isinstance(value, Tensor) and value.is_floating_point()]
        return cast(Callable[[Tensor], Tensor], layer), held[0].dtype if held else torch.float64
    if not isinstance(layer, nn.Module):
        raise MixlabError(
            f"a {type(layer).__name__} is not a layer; give a token map, a module, or a function of (batch, tokens, channels)"
        )
    layer = copy.deepcopy(layer).double()
    first = next(module for module in layer.modules() if not list(module.children()))
    torchs_own = type(layer).__module__.startswith("torch.")
    if torchs_own and isinstance(first, ON_SEQUENCES):
        return lambda x: layer(x.mT).mT, torch.float64
    if torchs_own and isinstance(first, ON_IMAGES):
        if grid is None:
            raise MixlabError(f"{type(layer).__name__} works on images; say with grid=(rows, columns) which image the tokens are")
        return lambda x: as_tokens(layer(as_image(x, grid))), torch.float64
    wanted = [
        p.name for p in inspect.signature(layer.forward).parameters.values() if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD
    ]

    def run(x: Tensor) -> Tensor:
        out = layer(*(Tokens(x, grid=grid) if name == "tokens" else x for name in wanted))
        return out.x if isinstance(out, Tokens) else out

    if not wanted:
        raise MixlabError(f"{type(layer).__name__} names no input of its own; give a function of (batch, tokens, channels) that calls it")
    return run, torch.float64


def schmidt_rank(layer: Any, tokens: int, *, grid: Grid | None = None) -> int:
    """How many terms a layer's structure allows, without a look at its numbers; `decompose` finds no more, and as many in generic ones."""
    if isinstance(layer, nn.Module) and hasattr(layer, "at"):
        return layer.at(tokens).terms()  # pyright: ignore[reportCallIssue] (a weight of a map)
    if isinstance(layer, nn.Linear | nn.Identity):
        return 1
    if isinstance(layer, nn.Conv1d):
        return min(taps_in_reach(layer, 0, tokens), layer.weight[:, :, 0].numel())
    if isinstance(layer, nn.Conv2d):
        if grid is None:
            raise MixlabError("Conv2d works on images; say with grid=(rows, columns) which image the tokens are")
        taps = math.prod(taps_in_reach(layer, axis, side) for axis, side in enumerate(grid))
        return min(taps, layer.weight[:, :, 0, 0].numel())
    if isinstance(layer, nn.Sequential):
        match list(layer):
            case [nn.Flatten(), nn.Linear() as full, nn.Unflatten(unflattened_size=(int() as written, *_))]:  # all to all
                return min(tokens * written, full.in_features // tokens * (full.out_features // written))
            case parts:
                ranks = [schmidt_rank(part, tokens, grid=grid) for part in parts]
        if sum(rank > 1 for rank in ranks) <= 1:
            return max(ranks, default=1)
    elif isinstance(layer, TokenMap):
        return layer.terms()
    raise MixlabError(f"no closed form is known for the terms of this {type(layer).__name__}; decompose(...).rank counts them")


def taps_in_reach(layer: nn.Conv1d | nn.Conv2d, axis: int, side: int) -> int:
    """How many of the taps along an axis read a token at all, from any place."""
    if layer.padding_mode != "zeros":
        raise MixlabError(f"padding_mode={layer.padding_mode!r} lets taps meet at the border; decompose(...).rank counts their terms")
    kernel, stride, dilation = layer.kernel_size[axis], layer.stride[axis], layer.dilation[axis]
    span = dilation * (kernel - 1)
    if isinstance(layer.padding, str):
        before, after = (span // 2, span - span // 2) if layer.padding == "same" else (0, 0)
    else:
        before = after = layer.padding[axis]
    starts = range(-before, side + after - span, stride)
    return sum(any(0 <= start + tap * dilation < side for start in starts) for tap in range(kernel))
