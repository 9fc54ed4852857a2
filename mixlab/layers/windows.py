"""Attention in windows of an image's grid, and the merging of its tokens (Liu et al. 2021, arXiv:2103.14030).

    attend(x) = softmax(q k^T / sqrt(c) + B) v W_o          within each window, B by offset
    merge(x)  = norm([x_00, x_10, x_01, x_11]) W            x_rc: the tokens of a 2 x 2 square,  W: 4d x o

Axes: b batch, W windows, s tokens of a window, n tokens, d channels, o channels out, h heads.
"""

from __future__ import annotations

from dataclasses import replace

from jaxtyping import Float
from torch import Tensor, nn

from mixlab.errors import MixlabError
from mixlab.layers.tokens import Tokens
from mixlab.maps import BlockDiagonalMap, SoftmaxMap, WindowBias, Windows
from mixlab.maps.base import split_heads


class WindowAttention(nn.Module):
    """Self-attention of `heads` heads in windows of `side` x `side` tokens, moved by `shift`. It is shown as `attention` and `maps`."""

    order = 3  # the degree of the mixing in its input

    def __init__(self, d: int, side: int, *, heads: int = 1, shift: int = 0, dropout: float = 0.0) -> None:
        super().__init__()
        if heads < 1 or d % heads:
            raise MixlabError(f"{d} channels cannot be split into {heads} heads; choose a number of heads that divides them")
        self.side, self.heads, self.shift, self.dropout = side, heads, shift, dropout
        self.qkv = nn.Linear(d, 3 * d)
        self.offsets = WindowBias(side, heads)
        self.out = nn.Linear(d, d)

    def forward(self, tokens: Tokens) -> Float[Tensor, "b n d"]:
        if tokens.grid is None or tokens.mask is not None:
            raise MixlabError("attention in windows needs the rows and columns of an image, and no mask; give Tokens(x, grid=...)")
        windows = Windows(tokens.grid, self.side, self.shift)
        qk, v = self.qkv(tokens.x).tensor_split([2 * self.out.in_features], dim=-1)  # b n 2d, b n d
        q, k = split_heads(windows.cut(qk), 2 * self.heads).chunk(2, dim=1)  # b*W h s c
        near = windows.neighbours(q.device)
        allowed = None if near is None else near[:, None].repeat(tokens.x.shape[0], 1, 1, 1)
        dropout = self.dropout if self.training else 0.0
        attention = BlockDiagonalMap(SoftmaxMap(q, k, allowed, self.offsets(), dropout=dropout), windows)
        for kind in ("attention", "maps"):
            tokens.keep(kind, attention.dense)
        return self.out(attention(v))

    def extra_repr(self) -> str:
        return f"side={self.side}, heads={self.heads}, shift={self.shift}"


class PatchMerging(nn.Module):
    """Every 2 x 2 tokens become one, of `out` channels."""

    def __init__(self, d: int, out: int, *, eps: float = 1e-5) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4 * d, eps=eps)
        self.reduction = nn.Linear(4 * d, out, bias=False)

    def forward(self, tokens: Tokens) -> Tokens:
        rows, columns = tokens.grid or (0, 0)
        if tokens.grid is None or rows % 2 or columns % 2:
            raise MixlabError(f"a grid of {rows} x {columns} has no squares of 2 x 2 to merge; give an even number of rows and columns")
        x = tokens.x.unflatten(1, (rows // 2, 2, columns // 2, 2))  # b R r C c d
        x = x.permute(0, 1, 3, 4, 2, 5).flatten(3).flatten(1, 2)  # b n/4 4d: column by column
        return replace(tokens, x=self.reduction(self.norm(x)), grid=(rows // 2, columns // 2))
