"""The block whose branches run at once, against the formula, written out."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from mixlab.layers import FeedForward, ParallelBlock, SelfAttention, Tokens
from tests.reference.attention import attention as reference_attention
from tests.reference.compare import assert_same, random_input, randomised

EPS = 1e-3


def rms(x, weight):
    return x / (x.square().mean(-1, keepdim=True) + EPS).sqrt() * weight


def test_against_the_formula():
    """Without norms of queries and keys: the reference's attention has none."""
    block = randomised(ParallelBlock(6, SelfAttention(6, 6, 4, heads=2, qkv_bias=False), FeedForward(6, 10), eps=EPS))

    def reference(p, mask, x):
        y = rms(x, p["norm.weight"])
        attended = reference_attention(y, p["attention.qkv.weight"], None, p["attention.out.weight"], p["attention.out.bias"], heads=2)
        wide = F.gelu(y @ p["ffn.widen.weight"].mT + p["ffn.widen.bias"])
        return x + attended + wide @ p["ffn.narrow.weight"].mT + p["ffn.narrow.bias"]

    assert_same(block, lambda x: block(Tokens(x)).x, reference, random_input(2, 5, 6))


def test_norms_of_queries_and_keys_are_those_of_each_head():
    attend = randomised(SelfAttention(6, 6, 4, heads=2, qkv_bias=False, qk_norm=partial(nn.RMSNorm, eps=EPS)))

    def reference(p, mask, x):
        q, k, v = (x @ p["qkv.weight"].mT).chunk(3, dim=-1)
        mixed = []
        for h in range(2):
            of_head = slice(2 * h, 2 * h + 2)
            logits = rms(q[:, of_head], p["q_norm.weight"]) @ rms(k[:, of_head], p["k_norm.weight"]).mT / 2**0.5
            mixed.append(logits.softmax(-1) @ v[:, of_head])
        return torch.cat(mixed, dim=-1) @ p["out.weight"].mT + p["out.bias"]

    assert_same(attend, lambda x: attend(Tokens(x)), reference, random_input(2, 5, 6))


def test_dropout_and_stochastic_depth_belong_to_training():
    block = ParallelBlock(6, SelfAttention(6, 6, 4), FeedForward(6, 10), dropout=0.5, drop_path=0.5)
    x = Tokens(torch.randn(8, 5, 6))
    assert not torch.equal(block(x).x, block(x).x)
    block.eval()
    assert torch.equal(block(x).x, block(x).x)
