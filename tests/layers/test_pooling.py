"""Pooling by attention against loops, and the mean with a norm behind it."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mixlab import MixlabError
from mixlab.layers import AttentionPool, MeanPool
from tests.reference.compare import assert_same, random_input, randomised

D, HEADS, EPS = 6, 3, 1e-3


def test_attention_against_loops():
    pool = randomised(AttentionPool(D, 10, heads=HEADS, norm=partial(nn.LayerNorm, eps=EPS)))

    def reference(p, mask, x):
        q = p["probe"][0, 0] @ p["q.weight"].mT + p["q.bias"]
        k, v = (x @ p["kv.weight"].mT + p["kv.bias"]).chunk(2, dim=-1)
        c, mixed = D // HEADS, []
        for h in range(HEADS):
            own = slice(h * c, (h + 1) * c)
            exp = [((q[own] * k[j, own]).sum() / c**0.5).exp() for j in range(len(x))]
            mixed.append(sum(e / sum(exp) * v[j, own] for j, e in enumerate(exp)))
        read = torch.cat(mixed) @ p["out.weight"].mT + p["out.bias"]
        normed = F.layer_norm(read, (D,), p["ffn_norm.weight"], p["ffn_norm.bias"], EPS)
        wide = F.gelu(normed @ p["ffn.widen.weight"].mT + p["ffn.widen.bias"])
        return (read + wide @ p["ffn.narrow.weight"].mT + p["ffn.narrow.bias"])[None]

    assert_same(pool, lambda x: pool(x)[:, None], reference, random_input(2, 5, D))


def test_it_does_not_ask_where_tokens_are():
    pool, x = randomised(AttentionPool(D, 10, heads=HEADS, norm=nn.LayerNorm)), random_input(2, 5, D)
    torch.testing.assert_close(pool(x), pool(x.flip(1)))


def test_heads_that_do_not_divide_are_refused():
    with pytest.raises(MixlabError, match="6 cannot be split into 4 heads"):
        AttentionPool(6, 10, heads=4, norm=nn.LayerNorm)


def test_the_norm_stands_behind_the_mean():
    x = random_input(2, 5, D)
    norm = randomised(nn.LayerNorm(D))
    torch.testing.assert_close(MeanPool(norm)(x), norm(x.sum(1) / 5))
    assert not torch.allclose(MeanPool(norm)(x), norm(x).mean(1))
