"""The default body: a block may change the number of tokens and their grid, with or without checkpointing."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from mixlab.layers import Stack, Tokens
from mixlab.layers.patches import as_image, as_tokens


class Halve(nn.Module):
    """A stage of a hierarchy: half as many rows and columns, by the mean of four."""

    def __init__(self) -> None:
        super().__init__()
        self.channels = nn.Linear(3, 3)

    def forward(self, tokens: Tokens) -> Tokens:
        assert tokens.grid is not None
        image = nn.functional.avg_pool2d(as_image(tokens.x, tokens.grid), 2)
        return replace(tokens, x=self.channels(as_tokens(image)), grid=(tokens.grid[0] // 2, tokens.grid[1] // 2))


@pytest.mark.parametrize("every", [1, 2])
def test_a_grid_that_changes_survives_checkpointing(every: int) -> None:
    torch.manual_seed(0)
    stack = Stack([Halve(), Halve()], nn.Identity()).train()
    tokens = Tokens(torch.randn(2, 32, 3, requires_grad=True), grid=(8, 4))
    plain = stack(tokens)
    (wanted,) = torch.autograd.grad(plain.x.square().sum(), tokens.x)
    stack.gradient_checkpointing, stack.checkpoint_every = True, every
    again = stack(tokens)
    (found,) = torch.autograd.grad(again.x.square().sum(), tokens.x)
    assert plain.grid == again.grid == (2, 1)
    assert torch.equal(plain.x, again.x)
    assert torch.equal(wanted, found)
