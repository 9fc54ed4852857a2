"""How close a learned W is to a Toeplitz matrix, whose entries depend on the offset alone.

Axes: n tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor


def best_toeplitz(matrix: Float[Tensor, "n n"]) -> Float[Tensor, "n n"]:
    """The Toeplitz matrix nearest in squares: every diagonal becomes its mean."""
    n = len(matrix)
    offset = (torch.arange(n)[:, None] - torch.arange(n) + n - 1).flatten()
    total = torch.zeros(2 * n - 1, dtype=matrix.dtype).index_add_(0, offset, matrix.flatten())
    count = torch.zeros(2 * n - 1, dtype=matrix.dtype).index_add_(0, offset, torch.ones_like(matrix).flatten())
    return (total / count)[offset].unflatten(0, (n, n))


def toeplitz_r2(matrix: Float[Tensor, "n n"]) -> float:
    """The share of the variance of W that its diagonals explain: 1 for a Toeplitz matrix, about 2 / n for noise."""
    spread = (matrix - matrix.mean()).square().sum()
    if spread == 0:
        return 1.0
    return float(1 - (matrix - best_toeplitz(matrix)).square().sum() / spread)


@dataclass(frozen=True)
class ToeplitzFit:
    """The fit of a matrix, and of the same numbers with rows and columns in random order, which have no diagonals left."""

    r2: float
    permuted: float


def toeplitz_fit(matrix: Float[Tensor, "n n"], seed: int = 0, rounds: int = 20) -> ToeplitzFit:
    matrix = matrix.detach().double().cpu()
    generator = torch.Generator().manual_seed(seed)
    baselines = [toeplitz_r2(shuffled(matrix, generator)) for _ in range(rounds)]
    return ToeplitzFit(toeplitz_r2(matrix), sum(baselines) / rounds)


def shuffled(matrix: Float[Tensor, "n n"], generator: torch.Generator) -> Float[Tensor, "n n"]:
    """The same numbers with rows and columns in random order."""
    rows, columns = (torch.randperm(len(matrix), generator=generator) for _ in range(2))
    return matrix[rows][:, columns]
