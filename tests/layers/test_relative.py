"""Attention that knows distances, against loops that gather every key: outputs, gradients, padding, causality, the cache, lengths."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from mixlab import MixlabError
from mixlab.layers import DistanceAttention, RelativeBias, RelativeKeys, SelfAttention, Tokens
from mixlab.layers.tokens import Record
from tests.layers.common import Past, both_ways
from tests.reference import relative
from tests.reference.compare import assert_same, mask_of, positions_of, random_input, randomised

CAP, D, HEADS = 9, 12, 3
KINDS = ("keys", "keys farthest", "keys shared", "bias", "both", "distance")
kinds = pytest.mark.parametrize("kind", KINDS)
paddings = pytest.mark.parametrize("padding", ["full", "right"])


def make(kind: str, causal: bool) -> nn.Module:
    """6 channels in 3 heads."""
    bias = RelativeBias(CAP, HEADS, causal=causal) if kind in ("bias", "both", "distance") else None
    keys = None
    if kind.startswith("keys") or kind == "both":
        more = {"keys farthest": {"farthest": 3}, "keys shared": {"shared": True}}.get(kind, {})
        keys = RelativeKeys(CAP, HEADS, 2, causal=causal, **more)
    if kind == "distance":
        return randomised(DistanceAttention(D, 5, 6, bias, causal=causal, kinds=("attention",)))
    return randomised(SelfAttention(D, 5, 6, heads=HEADS, causal=causal, logit_bias=bias, relative_keys=keys))


def reference(kind: str, causal: bool):
    def run(p, mask, x):
        if kind == "distance":
            return relative.distance_attention(x, p, HEADS, causal=causal, mask=mask)
        tables = {"keys": p.get("relative_keys.weight"), "bias": p.get("logit_bias.weight.taps")}
        return relative.self_attention(x, p, HEADS, causal=causal, mask=mask, **tables)

    return run


@both_ways
@kinds
@paddings
@pytest.mark.parametrize("n", [1, 5, CAP])
def test_against_reference(kind, causal, padding, n):
    attend, mask = make(kind, causal), mask_of(padding, n)
    assert_same(attend, lambda x: attend(Tokens(x, mask)), reference(kind, causal), random_input(2, n, D), mask=mask)


@both_ways
@kinds
@pytest.mark.parametrize("padding", ["left", "holes"])
def test_places_may_be_given(kind, causal, padding):
    """Padding in front, or in between: distances are counted among the real tokens."""
    attend, mask = make(kind, causal), mask_of(padding, 6)
    assert_same(attend, lambda x: attend(Tokens(x, mask, positions_of(mask))), reference(kind, causal), random_input(2, 6, D), mask=mask)


@kinds
@pytest.mark.parametrize("padding", ["full", "left", "holes"])
@pytest.mark.parametrize("steps", [(1, 1, 1, 1, 1), (3, 2), (1, 4)], ids=str)
def test_cached(kind, padding, steps):
    """Token by token, or in chunks: as in one go."""
    attend, x, mask = make(kind, True), random_input(2, 5, D), mask_of(padding, 5)
    whole = attend(Tokens(x, mask, None if mask is None else positions_of(mask)))
    past, out = Past(), []
    for step in steps:
        seen = past.tokens + step
        now, shown = x[:, past.tokens : seen], None if mask is None else mask[:, :seen]
        places = None if shown is None else positions_of(shown)
        out.append(attend(Tokens(now, shown, places, caches=[past], past=past.tokens)))
        past.tokens = seen
    counts = slice(None) if mask is None else mask
    torch.testing.assert_close(torch.cat(out, 1)[counts], whole[counts], rtol=1e-12, atol=1e-12)


@kinds
def test_causal(kind):
    attend = make(kind, True)
    read = torch.autograd.functional.jacobian(lambda x: attend(Tokens(x)).sum((0, 2)), random_input(1, 6, D))[:, 0].abs().sum(-1)
    assert torch.equal(read.triu(1), torch.zeros(6, 6, dtype=torch.float64))
    assert (read.tril() > 0).sum() == 21


@both_ways
@kinds
def test_recorded_map_is_what_was_used(kind, causal):
    attend, x, record = make(kind, causal), random_input(2, 7, D), Record(frozenset(["attention"]))
    out = attend(Tokens(x, record=record))
    (matrix,) = record.of("attention")
    v = attend.value(x) if kind == "distance" else attend.qkv(x)[..., 12:]
    mixed = torch.einsum("bhij,bjhc->bihc", matrix.expand(2, -1, -1, -1), v.unflatten(-1, (HEADS, 2))).flatten(2)
    torch.testing.assert_close(out, attend.out(mixed))


@kinds
def test_padding_is_finite_and_may_hold_anything(kind):
    attend, mask = make(kind, True), mask_of("right", 7)
    x = random_input(2, 7, D)
    out = attend(Tokens(x.masked_fill(~mask[..., None], float("nan")), mask))
    out.sum().backward()
    assert out.isfinite().all()
    assert all(p.grad.isfinite().all() for p in attend.parameters() if p.grad is not None)
    torch.testing.assert_close(out[mask], attend(Tokens(x, mask))[mask])


def moved(attend: nn.Module, n: int) -> list[str]:
    return [module.resize(n, None, 0) for module in attend.modules() if hasattr(module, "resize")]


@both_ways
@kinds
@pytest.mark.parametrize("length", [1, 2, 5, CAP, 14])
def test_resized(kind, causal, length):
    """What both lengths can read stays the same, bit for bit; what is new is zero."""
    attend, n = make(kind, causal), min(length, CAP)
    x = random_input(2, n, D)
    before, count = attend(Tokens(x)), sum(p.count_nonzero() for p in attend.parameters())
    assert moved(attend, length)
    assert torch.equal(attend(Tokens(x)), before)
    assert all(p.dtype == torch.float64 for p in attend.parameters())
    if length >= CAP:
        assert sum(p.count_nonzero() for p in attend.parameters()) == count
        moved(attend, CAP)
        assert torch.equal(attend(Tokens(x)), before)


@kinds
def test_made_causal(kind):
    """Weights of both directions, without those that look ahead: as those of a causal layer."""
    both, causal = make(kind, False), make(kind, True)
    said = [module.make_causal() for module in both.modules() if hasattr(module, "make_causal")]
    assert said
    assert all("dropped" in line for line in said)
    causal.load_state_dict(both.state_dict())
    both.causal = True
    x = Tokens(random_input(2, 6, D))
    assert torch.equal(both(x), causal(x))


@both_ways
def test_farther_than_the_farthest_says_nothing(causal):
    keys = randomised(RelativeKeys(8, 2, 3, farthest=3, causal=causal))
    given = keys.at(8, 8)
    distance = 7 - torch.arange(len(given[0]))
    assert not given[:, distance.abs() > 2].any()
    assert (given[:, distance.abs() <= 2] != 0).all()
    assert given.shape == (2, 8 if causal else 15, 3)


@pytest.mark.parametrize(
    ("causal", "shared", "farthest", "count"), [(True, False, None, 2 * 8), (False, False, None, 2 * 15), (True, True, 5, 5)]
)
def test_parameter_counts(causal, shared, farthest, count):
    keys = RelativeKeys(8, 2, 3, farthest=farthest, causal=causal, shared=shared, std=0.5)
    assert keys.weight.numel() == count * 3
    assert RelativeKeys(800, 4, 8, std=0.5).weight.std().item() == pytest.approx(0.5, rel=0.05)


def refused(build) -> str:
    with pytest.raises(MixlabError) as caught:
        build()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_refusals():
    assert "6 cannot be split into 4 heads" in refused(lambda: DistanceAttention(D, D, 6, RelativeBias(CAP, 4)))
    assert "at least 1" in refused(lambda: RelativeKeys(0, 1, 1))
    assert "at least 1" in refused(lambda: RelativeKeys(4, 1, 1, farthest=0))
    for module in (RelativeKeys(9, 1, 1), RelativeBias(9, 1)):
        assert "rows and columns" in refused(lambda module=module: module.resize(16, (3, 4), 0))


def test_dropout_only_in_training():
    attend = DistanceAttention(D, D, 6, RelativeBias(CAP, HEADS), dropout=0.5)
    x: Tokens = Tokens(torch.randn(2, 7, D))
    drawn: list[Tensor] = [attend(x), attend(x)]
    assert not torch.equal(*drawn)
    attend.eval()
    assert torch.equal(attend(x), attend(x))
