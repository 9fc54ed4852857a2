"""What the tests of several layers share: the grid of cases, and random padded batches."""

from __future__ import annotations

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from torch import Tensor

GATES = pytest.mark.parametrize("kind", ["linear", "additive", "multiplicative", "split"])
structures = pytest.mark.parametrize("structure", ["dense", "toeplitz"])
both_ways = pytest.mark.parametrize("causal", [False, True], ids=["both", "causal"])
# Odd sizes: a dimension mistaken for another one cannot fit by accident.
sizes = pytest.mark.parametrize(("n", "width", "heads"), [(1, 6, 3), (5, 10, 1), (7, 30, 3)])
few_examples = settings(max_examples=25, derandomize=True, deadline=None)


@st.composite
def masks(draw: st.DrawFn, longest: int) -> Tensor:
    """b n, with at least one token in each row."""
    n = draw(st.integers(1, longest))
    row = st.lists(st.booleans(), min_size=n, max_size=n).filter(any)
    return torch.tensor(draw(st.lists(row, min_size=1, max_size=4)))


@st.composite
def padded_batches(draw: st.DrawFn, longest: int, width: int = 12) -> tuple[Tensor, Tensor]:
    """A mask and numbers for it, b n width."""
    mask = draw(masks(longest))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 999)))
    return mask, torch.randn(*mask.shape, width, generator=generator, dtype=torch.float64)


class Past:
    """The simplest cache of one layer: it concatenates."""

    def __init__(self) -> None:
        self.tokens = 0
        self.sequences: dict[str, Tensor] = {}

    def append(self, name: str, new: Tensor) -> Tensor:
        self.sequences[name] = torch.cat([self.sequences[name], new], 1) if name in self.sequences else new
        return self.sequences[name]
