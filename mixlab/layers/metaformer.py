"""The block that leaves open how tokens are mixed (Yu et al. 2021, arXiv:2111.11418): first across tokens, then across channels.

    A = X + s_1 * mix(norm_1(X))
    Y = A + s_2 * ffn(norm_2(A))

Axes: b batch, n tokens, d channels.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from mixlab.layers.drop_path import DropPath
from mixlab.layers.tokens import Tokens


class MetaFormerBlock(nn.Module):
    """`token_mixing` gets the normalised numbers (b n d) and the tokens that they belong to, `channel_mixing` the numbers alone.

    `norm` makes a norm for each branch, and `scale` what each is multiplied by at its end.
    """

    def __init__(
        self,
        token_mixing: nn.Module,
        channel_mixing: nn.Module,
        norm: Callable[[], nn.Module],
        *,
        scale: Callable[[], nn.Module] = nn.Identity,
        dropout: float = 0.0,
        drop_path: float = 0.0,
    ) -> None:
        super().__init__()
        self.token_norm = norm()
        self.token_mixing = token_mixing
        self.token_scale = scale()
        self.channel_norm = norm()
        self.channel_mixing = channel_mixing
        self.channel_scale = scale()
        self.dropout = nn.Dropout(dropout)
        self.drop_path = DropPath(drop_path)

    def forward(self, tokens: Tokens) -> Tokens:
        x = tokens.x  # b n d
        mixed = self.token_scale(self.token_mixing(self.token_norm(x), tokens))
        x = x + self.drop_path(self.dropout(mixed))
        wide = self.channel_scale(self.channel_mixing(self.channel_norm(x)))
        return tokens.with_x(x + self.drop_path(self.dropout(wide)))
