"""The softmax map: attention, an operator made from its input, M = softmax(Q K^T / sqrt(c) + B)."""

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
    """`allowed` says which token may read which (None: all may, or, if `causal`, all up to itself); `bias` is B, added to the logits."""

    q: Float[Tensor, "b H m c"]
    k: Float[Tensor, "b H t c"]
    allowed: Bool[Tensor, "#b 1 m t"] | None = None
    bias: Float[Tensor, "#b #H m t"] | None = None
    causal: bool = False
    dropout: float = 0.0
    structure: ClassVar[str] = "softmax"

    def __post_init__(self) -> None:
        if self.causal and (self.allowed is not None or self.bias is not None):
            raise MixlabError("give either causal, or allowed and bias; a causal triangle can be part of allowed")

    def __call__(self, v: Float[Tensor, "b t e"]) -> Float[Tensor, "b m e"]:
        v, mask = split_heads(v, self.q.shape[1]), self.allowed
        if self.bias is not None:
            mask = self.bias if self.allowed is None else self.bias.masked_fill(~self.allowed, -math.inf)
        mixed = F.scaled_dot_product_attention(self.q, self.k, v, attn_mask=mask, is_causal=self.causal, dropout_p=self.dropout)
        return merge_heads(mixed)

    def dense(self) -> Float[Tensor, "b H m t"]:
        logits = torch.matmul(self.q, self.k.mT) / math.sqrt(self.q.shape[-1])  # b H m t
        if self.bias is not None:
            logits = logits + self.bias
        allowed = self.allowed
        if self.causal:
            allowed = torch.ones(logits.shape[-2:], dtype=torch.bool, device=logits.device).tril()
        if allowed is not None:
            logits = logits.masked_fill(~allowed, -math.inf)
        return logits.softmax(-1)

    def macs(self, channels: int) -> int:
        """Of Q K^T and of the product with v."""
        return self.q.shape[-2] * self.k.shape[-2] * (self.q.shape[1] * self.q.shape[-1] + channels)

    def terms(self) -> int:
        """Rows sum to 1, so that fewer matrices than numbers are independent."""
        return min(self.q.shape[1], self.q.shape[-2] * (self.k.shape[-2] - 1) + 1)
