"""Joining and cutting as matrices: identities of which only some rows or columns are kept. They have no weights.

    [X_1; X_2] = P_1 X_1 + P_2 X_2            tokens joined: P_i is (n_1 + n_2) x n_i
    [X_1, X_2] = X_1 P_1^T + X_2 P_2^T        channels joined
    X[start:stop] = S X                       tokens cut out; X[:, start:stop] = X S^T channels

A cut undoes a join, P_i^T P_i = I, and a matrix behind joined channels is a sum of two: [X_1, X_2] W = X_1 (P_1^T W) + X_2 (P_2^T W).

Axes: m joined, n of one part.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from mixlab.errors import MixlabError


def joining(sizes: Sequence[int]) -> list[Float[Tensor, "m n"]]:
    """P_1, P_2, ... for parts of these sizes, in their order."""
    if not sizes or min(sizes) < 1:
        raise MixlabError(f"parts of sizes {list(sizes)}; give at least one part, and each at least one row")
    return list(torch.eye(sum(sizes)).split(list(sizes), dim=1))


def cutting(size: int, start: int, stop: int) -> Float[Tensor, "m n"]:
    """S, which keeps rows start .. stop - 1 of `size`."""
    if not 0 <= start < stop <= size:
        raise MixlabError(f"rows {start} to {stop} of {size}; give 0 <= start < stop <= {size}")
    return torch.eye(size)[start:stop]
