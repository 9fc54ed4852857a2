"""Transformer blocks with their norms before the branches, which run one after the other or both at once.

Axes: b batch, n tokens, d channels.
"""

from __future__ import annotations

from torch import nn

from mixlab.layers.drop_path import DropPath
from mixlab.layers.tokens import Tokens


class PreNormBlock(nn.Module):
    """x + attend(norm(x)), then x + ffn(norm(x)). `attention` turns tokens into their new numbers (b n d), `ffn` each token on its own."""

    def __init__(
        self, d: int, attention: nn.Module, ffn: nn.Module, *, eps: float = 1e-6, dropout: float = 0.0, drop_path: float = 0.0
    ) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(d, eps=eps)
        self.attention = attention
        self.ffn_norm = nn.LayerNorm(d, eps=eps)
        self.ffn = ffn
        self.dropout = nn.Dropout(dropout)
        self.drop_path = DropPath(drop_path)

    def forward(self, tokens: Tokens) -> Tokens:
        attended = self.attention(tokens.with_x(self.attention_norm(tokens.x)))  # b n d
        x = tokens.x + self.drop_path(self.dropout(attended))
        return tokens.with_x(x + self.drop_path(self.dropout(self.ffn(self.ffn_norm(x)))))


class ParallelBlock(nn.Module):
    """x + attend(norm(x)) + ffn(norm(x)), as in ViT-22B (Dehghani et al. 2023, arXiv:2302.05442): the norm has no centring and no bias."""

    def __init__(
        self, d: int, attention: nn.Module, ffn: nn.Module, *, eps: float = 1e-6, dropout: float = 0.0, drop_path: float = 0.0
    ) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(d, eps=eps)
        self.attention = attention
        self.ffn = ffn
        self.dropout = nn.Dropout(dropout)
        self.drop_path = DropPath(drop_path)

    def forward(self, tokens: Tokens) -> Tokens:
        y = self.norm(tokens.x)  # b n d
        return tokens.with_x(tokens.x + self.drop_path(self.dropout(self.attention(tokens.with_x(y)) + self.ffn(y))))
