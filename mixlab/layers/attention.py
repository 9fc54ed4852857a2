"""Self-attention, of any width: the tiny one of aMLP (one head of 64 channels beside the gate), and BERT's.

    q, k, v = x W_qkv        attend(x) = softmax(q k^T / sqrt(d_attn / heads)) v W_o

Axes: b batch, n tokens, t tokens seen so far, d channels in, a = d_attn, o channels out.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from mixlab.errors import MixlabError
from mixlab.layers.tokens import Tokens, without_padding
from mixlab.maps import SoftmaxMap
from mixlab.maps.base import split_heads


class SelfAttention(nn.Module):
    """Self-attention of width `d_attn`, from `d_in` channels to `d_out`. It is shown as `attention`, and under the other `kinds`."""

    def __init__(
        self,
        d_in: int,
        d_out: int,
        d_attn: int = 64,
        *,
        heads: int = 1,
        causal: bool = False,
        qkv_bias: bool = True,
        dropout: float = 0.0,
        kinds: tuple[str, ...] = ("attention",),
    ) -> None:
        super().__init__()
        if d_attn < 1 or heads < 1 or d_attn % heads:
            raise MixlabError(f"attention width {d_attn} cannot be split into {heads} heads; choose a multiple of at least 1")
        self.heads, self.causal, self.dropout, self.kinds = heads, causal, dropout, kinds
        self.qkv = nn.Linear(d_in, 3 * d_attn, bias=qkv_bias)
        self.out = nn.Linear(d_attn, d_out)

    def forward(self, tokens: Tokens) -> Float[Tensor, "b n o"]:
        # Zeroed, since a weight of 0 on a padded token would still pass on its NaN.
        q, k, v = self.qkv(without_padding(tokens.x, tokens.mask)).chunk(3, dim=-1)  # b n a
        if tokens.cache is not None:
            k, v = tokens.cache.append("keys", k), tokens.cache.append("values", v)  # b t a
        allowed = self.allowed(tokens, k.shape[1])
        attention = SoftmaxMap(
            split_heads(q, self.heads),
            split_heads(k, self.heads),
            allowed,
            causal=self.causal and allowed is None and q.shape[1] > 1,
            dropout=self.dropout if self.training else 0.0,
        )
        for kind in self.kinds:
            tokens.keep(kind, attention.dense)
        return self.out(attention(v))

    def allowed(self, tokens: Tokens, seen: int) -> Bool[Tensor, "#b 1 n t"] | None:
        """Who may read whom, where that is more than a plain causal triangle: no token reads padding or what comes after it."""
        n, device = tokens.x.shape[1], tokens.x.device
        if tokens.mask is None and (not self.causal or tokens.past == 0 or n == 1):
            return None
        own = torch.arange(n, device=device)[:, None] + tokens.past  # n 1
        frm = torch.arange(seen, device=device)  # t
        allowed = (frm <= own if self.causal else frm >= 0)[None, None].expand(1, 1, n, seen)
        if tokens.mask is not None:
            # A padded token reads itself alone: its row is never used, but must not be a softmax over nothing.
            allowed = (allowed & tokens.mask[:, None, None, :]) | (frm == own)
        return allowed
