"""Lightweight and dynamic convolution against naive loops: padding, causality, cached decoding, dropped taps."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mixlab import MixlabError
from mixlab.layers import DynamicConv, LightConv, Tokens
from mixlab.layers.tokens import Record
from tests.layers.common import Past, both_ways
from tests.reference import lightconv
from tests.reference.compare import assert_same, mask_of, positions_of, random_input, randomised

D = 6
kinds = pytest.mark.parametrize("kind", [LightConv, DynamicConv])


def make(kind: type[LightConv], kernel: int = 3, heads: int = 2, **more: object) -> LightConv:
    return randomised(kind(D, kernel, heads, **more))


@kinds
@both_ways
@pytest.mark.parametrize(("n", "kernel", "heads"), [(5, 3, 2), (1, 3, 6), (4, 9, 1), (7, 5, 3)])
@pytest.mark.parametrize("padding", ["full", "right", "left", "holes"])
def test_against_reference(kind: type[LightConv], causal: bool, n: int, kernel: int, heads: int, padding: str) -> None:
    """Padding on the right needs a mask alone; elsewhere, positions say where each token is in its own text."""
    layer = make(kind, kernel, heads, causal=causal)
    mask = mask_of(padding, n)
    positions = None if padding in ("full", "right") else positions_of(mask)

    def reference(p: dict[str, Tensor], row: list[bool] | None, x: Tensor) -> Tensor:
        return lightconv.convolution(x, p, heads=heads, kernel=kernel, causal=causal, mask=row)

    assert_same(layer, lambda x: layer(x, Tokens(x, mask, positions)), reference, random_input(2, n, D), mask=mask)


@kinds
@pytest.mark.parametrize("steps", [(1, 1, 1, 1, 1), (3, 2), (1, 4)], ids=str)
@pytest.mark.parametrize("padding", ["full", "left", "holes"])
def test_cached(kind: type[LightConv], steps: tuple[int, ...], padding: str) -> None:
    """Token by token, or in chunks, from a cache of the past: as in one go."""
    layer = make(kind, 4, causal=True)
    x, mask = random_input(2, 5, D), mask_of(padding, 5)
    places = None if mask is None else positions_of(mask)
    whole = layer(x, Tokens(x, mask, places))
    past, out = Past(), []
    for step in steps:
        seen = past.tokens + step
        now = x[:, past.tokens : seen]
        seen_mask, seen_places = (None, None) if mask is None else (mask[:, :seen], places[:, :seen])
        out.append(layer(now, Tokens(now, seen_mask, seen_places, caches=[past], past=past.tokens)))
        past.tokens = seen
    counts = slice(None) if mask is None else mask
    torch.testing.assert_close(torch.cat(out, 1)[counts], whole[counts], rtol=1e-12, atol=1e-12)


@kinds
def test_map_is_shown(kind: type[LightConv]) -> None:
    """Rows far from the border sum to 1, nothing beyond the kernel is read, and it is the map that was used."""
    layer, x = make(kind), random_input(2, 7, D)
    record = Record(frozenset(["maps"]))
    out = layer(x, Tokens(x, record=record))
    (shown,) = record.of("maps")
    assert shown.shape[-3:] == (2, 7, 7)
    torch.testing.assert_close(shown[..., 1:-1, :].sum(-1), torch.ones_like(shown[..., 1:-1, 0]))
    assert torch.equal(shown.triu(2) + shown.tril(-2), torch.zeros_like(shown))
    applied = shown.expand(2, 2, 7, 7) @ x.unflatten(-1, (2, 3)).transpose(1, 2)
    torch.testing.assert_close(applied.transpose(1, 2).flatten(2), out)


@kinds
def test_taps_are_dropped_in_training_alone(kind: type[LightConv]) -> None:
    layer, x = make(kind, dropout=0.5), random_input(2, 7, D)
    assert not torch.equal(layer(x, Tokens(x)), layer(x, Tokens(x)))
    layer.eval()
    assert torch.equal(layer(x, Tokens(x)), layer(x, Tokens(x)))


def test_counts() -> None:
    assert sum(p.numel() for p in LightConv(64, 7, 8).parameters()) == 8 * 7
    assert sum(p.numel() for p in DynamicConv(64, 7, 8).parameters()) == 64 * 8 * 7


@kinds
@pytest.mark.parametrize(
    ("arguments", "says"),
    [((6, 3, 4), "6 channels cannot be shared by 4 heads of taps"), ((6, 4, 2), "a kernel of 4 taps has no middle"), ((6, 0, 2), "0 taps")],
)
def test_mistakes(kind: type[LightConv], arguments: tuple[int, int, int], says: str) -> None:
    """Refused in one line that names the value."""
    with pytest.raises(MixlabError, match=says) as caught:
        kind(*arguments)
    assert "\n" not in str(caught.value)
