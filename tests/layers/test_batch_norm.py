"""The batch norm of sequences against torch's on the real tokens alone, and what gradient checkpointing does to it."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given
from torch import nn

from mixlab import MixlabError
from mixlab.layers import Stack, Tokens
from mixlab.layers.batch_norm import TokenBatchNorm
from tests.layers.common import few_examples, padded_batches
from tests.modeling.tiny import randomise


def pair(width: int, **options: object) -> tuple[TokenBatchNorm, nn.BatchNorm1d]:
    ours = randomise(TokenBatchNorm(width, **options)).double()
    theirs = nn.BatchNorm1d(width, **options).double()
    theirs.load_state_dict(ours.state_dict())
    return ours, theirs


@given(batch=padded_batches(9, width=5))
@few_examples
def test_statistics_are_those_of_the_real_tokens(batch):
    """Output, gradients and running statistics, in training and then in evaluation; padding may even be NaN."""
    mask, x = batch
    if int(mask.sum()) < 2:
        return
    ours, theirs = pair(5)
    x = x.masked_fill(~mask[..., None], torch.nan)
    mine, other = x.clone().requires_grad_(), x[mask].clone().requires_grad_()
    found, expected = ours(mine, mask)[mask], theirs(other)
    torch.testing.assert_close(found, expected)
    (found**3).sum().backward()
    (expected**3).sum().backward()
    torch.testing.assert_close(mine.grad[mask], other.grad)
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict())
    torch.testing.assert_close(ours.eval()(x, mask)[mask], theirs.eval()(x[mask]))


@pytest.mark.parametrize("momentum", [0.3, None])
def test_without_padding_it_is_torchs(momentum):
    ours, theirs = pair(5, momentum=momentum, eps=1e-3)
    for step in range(3):
        x = torch.randn(2, 4, 5, dtype=torch.float64) + step
        torch.testing.assert_close(ours(x), theirs(x.mT).mT)
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict())


def test_half_precision_sums_in_full():
    ours, x = TokenBatchNorm(3), (100 + torch.randn(2, 400, 3)).bfloat16()
    out = ours(x)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(ours.running_mean, 0.1 * x.float().mean((0, 1)), rtol=1e-5, atol=0)


def test_a_single_token_is_no_batch():
    with pytest.raises(MixlabError, match="cannot learn from a single token"):
        TokenBatchNorm(3)(torch.randn(1, 1, 3))
    TokenBatchNorm(3).eval()(torch.randn(1, 1, 3))


class Block(nn.Module):
    def __init__(self, norm: type[nn.BatchNorm1d], momentum: float | None) -> None:
        super().__init__()
        self.norm = norm(7, momentum=momentum)

    def forward(self, tokens: Tokens) -> Tokens:
        return tokens.with_x(tokens.x + self.norm(tokens.x))


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("momentum", [0.3, None])
@pytest.mark.parametrize("norm", [TokenBatchNorm, nn.BatchNorm1d])
def test_a_block_that_is_computed_twice_learns_its_statistics_once(norm, momentum, reentrant):
    plain = Stack([Block(norm, momentum), Block(norm, momentum)], nn.Identity()).train()
    checkpointed = copy.deepcopy(plain)
    checkpointed.gradient_checkpointing = True
    checkpointed._gradient_checkpointing_func = lambda f, x: torch.utils.checkpoint.checkpoint(f, x, use_reentrant=reentrant)
    x = torch.randn(2, 7, 7)  # either axis may be that of the channels
    for stack in (plain, checkpointed):
        stack(Tokens(x.clone().requires_grad_())).x.square().sum().backward()
    torch.testing.assert_close(checkpointed.state_dict(), plain.state_dict(), rtol=0, atol=0)
    assert plain.blocks[0].norm.num_batches_tracked == 1
    for a, b in zip(plain.parameters(), checkpointed.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)
