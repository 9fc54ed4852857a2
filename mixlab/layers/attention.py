"""Self-attention, of any width: the tiny one of aMLP (one head of 64 channels beside the gate), and a Transformer's.

    q, k, v = x W_qkv        attend(x) = softmax((q k^T + S) / sqrt(c) + B) v W_o,        c = d_attn / heads channels of a head

S, if there is one, are products of queries with keys of distances (`RelativeKeys`); B comes from a module of its own, such as a bias by
distance (`RelativeBias`).

Axes: b batch, n tokens, t tokens seen so far, d channels in, a = d_attn, o channels out, h heads, c channels of a head.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from mixlab.errors import MixlabError
from mixlab.layers.relative import RelativeBias, RelativeKeys
from mixlab.layers.tokens import Tokens, without_padding
from mixlab.maps import DenseMap, SoftmaxMap
from mixlab.maps.base import split_heads


class LogitBias(Protocol):
    """What is added to the logits (those of q k^T are scaled by then). `to` and `frm` are the places of queries and keys."""

    def __call__(
        self, q: Float[Tensor, "b h n c"], k: Float[Tensor, "b h t c"], to: Int[Tensor, "#b n"], frm: Int[Tensor, "#b t"]
    ) -> Float[Tensor, "#b #h n t"]: ...


class SelfAttention(nn.Module):
    """Self-attention of width `d_attn`, from `d_in` channels to `d_out`. It is shown as `attention`, and under the other `kinds`.

    `logit_bias` is a `LogitBias` module; `relative_keys` make S. `qk_norm` makes a norm for queries and for keys, given the channels of a
    head.
    """

    order = 3  # the degree of the mixing in its input

    def __init__(
        self,
        d_in: int,
        d_out: int,
        d_attn: int = 64,
        *,
        heads: int = 1,
        causal: bool = False,
        qkv_bias: bool = True,
        out_bias: bool = True,
        dropout: float = 0.0,
        kinds: tuple[str, ...] = ("attention",),
        logit_bias: nn.Module | None = None,
        relative_keys: RelativeKeys | None = None,
        qk_norm: Callable[[int], nn.Module] | None = None,
    ) -> None:
        super().__init__()
        if d_attn < 1 or heads < 1 or d_attn % heads:
            raise MixlabError(f"attention width {d_attn} cannot be split into {heads} heads; choose a multiple of at least 1")
        self.heads, self.causal, self.dropout, self.kinds = heads, causal, dropout, kinds
        self.qkv = nn.Linear(d_in, 3 * d_attn, bias=qkv_bias)
        self.q_norm = qk_norm(d_attn // heads) if qk_norm else nn.Identity()
        self.k_norm = qk_norm(d_attn // heads) if qk_norm else nn.Identity()
        self.logit_bias = logit_bias
        self.relative_keys = relative_keys
        self.out = nn.Linear(d_attn, d_out, bias=out_bias)

    def forward(self, tokens: Tokens) -> Float[Tensor, "b n o"]:
        # Zeroed, since a weight of 0 on a padded token would still pass on its NaN.
        q, k, v = self.qkv(without_padding(tokens.x, tokens.mask)).chunk(3, dim=-1)  # b n a
        if tokens.cache is not None:
            k, v = tokens.cache.append("keys", k), tokens.cache.append("values", v)  # b t a
        q, k = self.q_norm(split_heads(q, self.heads)), self.k_norm(split_heads(k, self.heads))  # b h n c, b h t c
        seen = k.shape[2]
        to, frm = tokens.places(), tokens.seen_places(seen)
        bias = None if self.logit_bias is None else self.logit_bias(q, k, to, frm)
        relative = None
        if self.relative_keys is not None and tokens.positions is None:
            relative = self.relative_keys.at(q.shape[2], seen)
        elif self.relative_keys is not None:
            said = self.relative_keys.between(q, to, frm)
            bias = said if bias is None else bias + said
        plain = bias is None and relative is None
        allowed = self.allowed(tokens, seen, explicit=not plain)
        attention = SoftmaxMap(
            q,
            k,
            allowed,
            bias,
            relative,
            causal=self.causal and plain and allowed is None and tokens.past == 0,  # a single new token reads all of the past
            dropout=self.dropout if self.training else 0.0,
        )
        for kind in self.kinds:
            tokens.keep(kind, attention.dense)
        return self.out(attention(v))

    def allowed(self, tokens: Tokens, seen: int, explicit: bool = False) -> Bool[Tensor, "#b 1 n t"] | None:
        """Who may read whom; None where that is everybody or, unless it is to be `explicit`, a plain causal triangle."""
        return who_reads_whom(tokens, seen, causal=self.causal, explicit=explicit)


class DistanceAttention(nn.Module):
    """softmax(b_(i - j)) v W_o, v = x W_v: attention without queries and keys, so that who reads whom depends on the distance alone."""

    order = 1

    def __init__(
        self,
        d_in: int,
        d_out: int,
        d_attn: int,
        bias: RelativeBias,
        *,
        causal: bool = False,
        dropout: float = 0.0,
        kinds: tuple[str, ...] = ("maps",),
    ) -> None:
        super().__init__()
        if d_attn < 1 or d_attn % bias.heads:
            raise MixlabError(f"attention width {d_attn} cannot be split into {bias.heads} heads; choose a multiple of at least 1")
        self.causal, self.dropout, self.kinds = causal, dropout, kinds
        self.value = nn.Linear(d_in, d_attn)
        self.bias = bias
        self.out = nn.Linear(d_attn, d_out)

    def forward(self, tokens: Tokens) -> Float[Tensor, "b n o"]:
        v = self.value(without_padding(tokens.x, tokens.mask))  # b n a
        if tokens.cache is not None:
            v = tokens.cache.append("values", v)  # b t a
        seen = v.shape[1]
        logits = self.bias.between(tokens.places(), tokens.seen_places(seen))  # b h n t
        allowed = who_reads_whom(tokens, seen, causal=self.causal, explicit=True)
        if allowed is not None:
            logits = logits.masked_fill(~allowed, -math.inf)
        weights = logits.softmax(-1)
        for kind in self.kinds:
            tokens.keep(kind, lambda: weights)
        return self.out(DenseMap(F.dropout(weights, self.dropout, self.training))(v))


def who_reads_whom(tokens: Tokens, seen: int, *, causal: bool, explicit: bool = False) -> Bool[Tensor, "#b 1 n t"] | None:
    """No token reads padding, nor, in a causal model, what comes after it.

    None where all may read all; of a plain causal triangle, too, unless it is to be `explicit`.
    """
    n, device = tokens.x.shape[1], tokens.x.device
    if tokens.mask is None and (not causal or (tokens.past == 0 and not explicit) or n == 1):
        return None
    own = torch.arange(n, device=device)[:, None] + tokens.past  # n 1
    frm = torch.arange(seen, device=device)  # t
    allowed = (frm <= own if causal else frm >= 0)[None, None].expand(1, 1, n, seen)
    if tokens.mask is not None:
        # A padded token reads itself alone: its row is never used, but must not be a softmax over nothing.
        allowed = (allowed & tokens.mask[:, None, None, :]) | (frm == own)
    return allowed
