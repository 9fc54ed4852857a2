"""The tiny attention against its naive reference, padding, causality and the cache."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given

from mixlab import MixlabError
from mixlab.layers import SelfAttention, Tokens
from mixlab.layers.tokens import Record
from tests.layers.common import Past, both_ways, few_examples, padded_batches
from tests.reference.attention import attention as reference_attention
from tests.reference.compare import assert_same, mask_of, random_input, randomised


def make(d_in=12, d_out=5, d_attn=6, **more) -> SelfAttention:
    return randomised(SelfAttention(d_in, d_out, d_attn, **more))


@both_ways
@pytest.mark.parametrize("padding", ["full", "right", "left", "holes"])
@pytest.mark.parametrize(("heads", "d_attn"), [(1, 5), (1, 9), (3, 9)])
@pytest.mark.parametrize(("n", "d_in"), [(1, 6), (5, 10), (7, 30)])
@pytest.mark.parametrize("qkv_bias", [True, False], ids=["bias", "no bias"])
def test_against_reference(n, d_in, heads, d_attn, causal, padding, qkv_bias):
    attend = make(d_in, 7, d_attn, heads=heads, causal=causal, qkv_bias=qkv_bias)
    assert (attend.qkv.bias is not None) == qkv_bias
    mask = mask_of(padding, n)

    def reference(p, mask, x):
        projections = (p["qkv.weight"], p.get("qkv.bias"), p["out.weight"], p["out.bias"])
        return reference_attention(x, *projections, heads=heads, causal=causal, mask=mask)

    assert_same(attend, lambda x: attend(Tokens(x, mask)), reference, random_input(2, n, d_in), mask=mask)


@both_ways
@given(batch=padded_batches(9))
@few_examples
def test_padded_equals_alone(causal, batch):
    mask, x = batch
    attend = make(heads=3, causal=causal)
    out = attend(Tokens(x, mask))
    for row, own, real in zip(out, x, mask, strict=True):
        torch.testing.assert_close(row[real], attend(Tokens(own[real][None]))[0], rtol=1e-12, atol=1e-12)


@both_ways
@pytest.mark.parametrize("padding", ["right", "left", "holes"])
@pytest.mark.parametrize("rubbish", [float("nan"), float("inf"), 1e30], ids=str)
def test_padding_may_hold_anything(causal, padding, rubbish):
    """A weight of 0 does not hide a NaN, and neither does a logit of -inf."""
    attend = make(causal=causal)
    mask, x = mask_of(padding, 7), random_input(2, 7, 12)
    out = attend(Tokens(x.masked_fill(~mask[..., None], rubbish), mask))
    torch.testing.assert_close(out[mask], attend(Tokens(x, mask))[mask])


@both_ways
@pytest.mark.parametrize("padding", ["right", "left", "holes"])
def test_padding_is_finite(causal, padding):
    """A padded token that may read nobody must not be a softmax over nothing: its NaN would reach every gradient."""
    attend, x, mask = make(causal=causal), random_input(2, 7, 12).requires_grad_(), mask_of(padding, 7)
    record = Record(frozenset(["attention"]))
    out = attend(Tokens(x, mask, record=record))
    (matrix,) = record.of("attention")
    torch.testing.assert_close(matrix.sum(-1), torch.ones_like(matrix[..., 0]))
    out.sum().backward()
    assert all(tensor.isfinite().all() for tensor in (out, x.grad, attend.qkv.weight.grad))


def test_causal():
    attend = make(causal=True)
    jacobian = torch.autograd.functional.jacobian(lambda x: attend(Tokens(x)).sum((0, 2)), random_input(1, 6, 12))[:, 0].abs().sum(-1)
    assert torch.equal(jacobian.triu(1), torch.zeros(6, 6, dtype=torch.float64))
    assert (jacobian.tril() > 0).sum() == 21


@pytest.mark.parametrize("steps", [(1, 1, 1, 1, 1), (3, 2), (4, 1), (1, 4)], ids=str)
@pytest.mark.parametrize("padding", ["full", "left", "holes"])
def test_cached(steps, padding):
    """Token by token, or in chunks, from a cache of the past: as in one go."""
    attend = make(heads=3, causal=True)
    x, mask = random_input(2, 5, 12), mask_of(padding, 5)
    whole = attend(Tokens(x, mask))
    past, out = Past(), []
    for step in steps:
        seen = past.tokens + step
        now = x[:, past.tokens : seen]
        out.append(attend(Tokens(now, None if mask is None else mask[:, :seen], caches=[past], past=past.tokens)))
        past.tokens = seen
    counts = slice(None) if mask is None else mask
    torch.testing.assert_close(torch.cat(out, 1)[counts], whole[counts], rtol=1e-12, atol=1e-12)


@both_ways
@pytest.mark.parametrize("padding", ["full", "right"])
def test_recorded_map_is_what_was_used(causal, padding):
    """The map that can be looked at, times v, is the output."""
    attend = make(heads=3, causal=causal)
    x, mask = random_input(2, 7, 12), mask_of(padding, 7)
    record = Record(frozenset(["attention"]))
    out = attend(Tokens(x, mask, record=record))
    (matrix,) = record.of("attention")
    v = attend.qkv(x)[..., 12:].unflatten(-1, (3, 2))  # b n H c
    mixed = torch.einsum("bhij,bjhc->bihc", matrix, v).flatten(2)
    counts = slice(None) if mask is None else mask
    torch.testing.assert_close(out[counts], attend.out(mixed)[counts])


def test_dropout_only_in_training():
    attend = make(dropout=0.5)
    x = Tokens(random_input(2, 7, 12))
    assert not torch.equal(attend(x), attend(x))
    attend.eval()
    assert torch.equal(attend(x), attend(x))


@pytest.mark.parametrize(("width", "heads"), [(10, 0), (10, 3), (0, 1)])
def test_heads_that_do_not_divide(width, heads):
    with pytest.raises(MixlabError, match=f"{width} cannot be split into {heads} heads") as caught:
        SelfAttention(8, 8, width, heads=heads)
    assert "\n" not in str(caught.value)


@both_ways
def test_one_graph_for_any_length(causal):
    """A length that decides something would cut the graph, or compile it anew."""
    attend = make(heads=3, causal=causal)
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: attend(Tokens(x)), backend="eager", dynamic=True, fullgraph=True)
    for n in (5, 7, 9):
        x = random_input(2, n, 12)
        torch.testing.assert_close(compiled(x), attend(Tokens(x)))
