"""The softmax map: attention, an operator made from its input, M = softmax((Q K^T + S) / sqrt(c) + B).

S, if there is one, is what queries say of distances: S[i, j] = q_i e_(i - j), with a key e for every distance. Gathered first, these keys
take m t c numbers; here the products of Q with each of them are made once, m w of them, and moved into place by a change of shape.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from mixlab.errors import MixlabError
from mixlab.maps.base import merge_heads, split_heads


@dataclass(frozen=True)
class SoftmaxMap:
    """`allowed` says which token may read which (None: all may, or, if `causal`, all up to itself); `bias` is B, added to the logits.

    The m queries are the last of the t tokens. `relative` holds the keys of the distances from t - 1 (the first token, seen from the last)
    down to 0 (w = t; `allowed` must then hide later tokens), or on to 1 - m (w = m + t - 1).
    """

    q: Float[Tensor, "b H m c"]
    k: Float[Tensor, "b H t c"]
    allowed: Bool[Tensor, "#b 1 m t"] | None = None
    bias: Float[Tensor, "#b #H m t"] | None = None
    relative: Float[Tensor, "#H w c"] | None = None
    causal: bool = False
    dropout: float = 0.0
    structure: ClassVar[str] = "softmax"

    def __post_init__(self) -> None:
        if self.causal and (self.allowed is not None or self.bias is not None or self.relative is not None):
            raise MixlabError("give either causal, or allowed, bias and relative; a causal triangle can be part of allowed")
        m, t = self.q.shape[-2], self.k.shape[-2]
        if self.relative is not None and self.relative.shape[-2] not in (t, m + t - 1):
            raise MixlabError(f"keys of {self.relative.shape[-2]} distances for {m} of {t} tokens; give {t} or {m + t - 1}")

    def __call__(self, v: Float[Tensor, "b t e"]) -> Float[Tensor, "b m e"]:
        v, mask = split_heads(v, self.q.shape[1]), self.allowed
        added = self.bias
        if self.relative is not None:
            said = skew(torch.matmul(self.q, self.relative.mT), self.k.shape[-2]) / math.sqrt(self.q.shape[-1])  # b H m t
            added = said if added is None else said + added
        if added is not None:
            mask = added if self.allowed is None else added.masked_fill(~self.allowed, -math.inf)
        mixed = F.scaled_dot_product_attention(self.q, self.k, v, attn_mask=mask, is_causal=self.causal, dropout_p=self.dropout)
        return merge_heads(mixed)

    def dense(self) -> Float[Tensor, "b H m t"]:
        logits = torch.matmul(self.q, self.k.mT)  # b H m t
        if self.relative is not None:
            m, t = logits.shape[-2:]
            column = m - 1 - torch.arange(m, device=logits.device)[:, None] + torch.arange(t, device=logits.device)  # m t
            column = column.clamp(max=self.relative.shape[-2] - 1)  # the rest is of later tokens, which are hidden
            logits = logits + torch.matmul(self.q, self.relative.mT).gather(-1, column.expand_as(logits))
        logits = logits / math.sqrt(self.q.shape[-1])
        if self.bias is not None:
            logits = logits + self.bias
        allowed = self.allowed
        if self.causal:
            allowed = torch.ones(logits.shape[-2:], dtype=torch.bool, device=logits.device).tril()
        if allowed is not None:
            logits = logits.masked_fill(~allowed, -math.inf)
        return logits.softmax(-1)

    def macs(self, channels: int) -> int:
        """Of Q K^T, of the product with v, and of Q with the keys of distances."""
        heads, m, c = self.q.shape[1:]
        distances = 0 if self.relative is None else self.relative.shape[-2]
        return m * self.k.shape[-2] * (heads * c + channels) + m * distances * heads * c

    def terms(self) -> int:
        """Rows sum to 1, so that fewer matrices than numbers are independent."""
        return min(self.q.shape[1], self.q.shape[-2] * (self.k.shape[-2] - 1) + 1)


def skew(scores: Float[Tensor, "*b m w"], t: int) -> Float[Tensor, "*b m t"]:
    """Scores by distance, as those of `SoftmaxMap.relative`, become scores by token: row i moves left by m - 1 - i.

    With one more column, rows that are read w numbers at a time begin one number later each.
    """
    m, w = scores.shape[-2:]
    return F.pad(scores, (1, 0)).flatten(-2)[..., m:].unflatten(-1, (m, w))[..., :t]
