"""Moving padding behind the tokens and back, hiding it, and keeping intermediates."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given

from mixlab.layers.tokens import Record, Tokens, from_front, front_slots, to_front, without_padding
from tests.layers.common import Past, few_examples, masks, padded_batches


@given(mask=masks(12))
@few_examples
def test_slots_are_a_permutation(mask):
    """Every slot once; real tokens first, and both real tokens and padding in their old order."""
    slots = front_slots(mask)
    for row, real in zip(slots, mask, strict=True):
        count = int(real.sum())
        assert row[real].tolist() == list(range(count))
        assert row[~real].tolist() == list(range(count, len(real)))


@given(batch=padded_batches(12))
@few_examples
def test_round_trip(batch):
    mask, x = batch
    slots = front_slots(mask)
    moved = to_front(x, slots)
    assert torch.equal(from_front(moved, slots), x)
    assert torch.equal(to_front(mask, slots).sum(1), mask.sum(1))
    for row, own, real in zip(moved, x, mask, strict=True):
        assert torch.equal(row[: int(real.sum())], own[real])


@pytest.mark.parametrize("trailing", [(), (3,), (3, 2)], ids=str)
@pytest.mark.parametrize("dtype", [torch.bool, torch.long, torch.float64], ids=str)
def test_any_shape_and_type(trailing, dtype):
    mask = torch.tensor([[False, True, False, True], [True, True, True, True]])
    x = torch.arange(8 * torch.Size(trailing).numel()).view(2, 4, *trailing).to(dtype)
    moved = to_front(x, front_slots(mask))
    assert moved.dtype == dtype
    assert torch.equal(moved[0], x[0][[1, 3, 0, 2]])
    assert torch.equal(moved[1], x[1])
    assert torch.equal(from_front(moved, front_slots(mask)), x)


def test_gradients_take_the_way_back():
    mask = torch.tensor([[False, True, True]])
    x = torch.randn(1, 3, 2, requires_grad=True)
    weights = torch.tensor([5.0, 7.0, 11.0])[None, :, None]
    (to_front(x, front_slots(mask)) * weights).sum().backward()
    assert x.grad[0, :, 0].tolist() == [11.0, 5.0, 7.0]


@pytest.mark.parametrize("rubbish", [float("nan"), float("inf")], ids=str)
def test_without_padding(rubbish):
    """Zero, whatever stood there, and of a mask that covers the past only its end is meant."""
    x = torch.ones(1, 2, 3)
    x[0, 1] = rubbish
    hidden = without_padding(x, torch.tensor([[True, False, True, False]]))
    assert torch.equal(hidden[0], torch.tensor([[1.0] * 3, [0.0] * 3]))
    assert without_padding(x, None) is x


def test_keep():
    """Only what was asked for is computed, and it comes back in the order of the layers."""
    record = Record(frozenset(["maps"]))
    for layer in (2, 0, 1):
        tokens = Tokens(torch.zeros(1, 1, 1), layer=layer, record=record)
        tokens.keep("maps", lambda layer=layer: torch.tensor(layer))
        tokens.keep("hidden", lambda: pytest.fail("nobody asked for it"))
    assert [int(value) for value in record.of("maps")] == [0, 1, 2]
    assert record.of("hidden") == ()
    Tokens(torch.zeros(1, 1, 1)).keep("maps", lambda: pytest.fail("there is no record"))


def test_cache_is_that_of_the_layer():
    first, second = Past(), Past()
    tokens = Tokens(torch.zeros(1, 1, 1), caches=[first, second], layer=1)
    assert tokens.cache is second
    assert tokens.with_x(torch.ones(1, 1, 1)).cache is second
    assert Tokens(torch.zeros(1, 1, 1)).cache is None
