"""Lightweight and dynamic convolution (Wu et al. 2019, arXiv:1901.10430): few taps, shared by the channels of a head, summing to 1.

    LightConv(X)_ic   = sum_j softmax(w_h)_j x_(i - j)c                h = c H // d, the head of channel c
    DynamicConv(X)_ic = sum_j softmax(W_h x_i)_j x_(i - j)c            the taps are made by the token that they are for

The offset j goes from 0 to k - 1 in a causal convolution, and around 0 otherwise.

Axes: b batch, n tokens, t tokens seen so far, d channels, H heads, k taps.
"""

from __future__ import annotations

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from mixlab.errors import MixlabError
from mixlab.layers.glu import GLU
from mixlab.layers.tokens import Tokens, without_padding
from mixlab.maps import BandedMap, BandedWeight, DenseMap, DynamicBandedMap, TokenMap
from mixlab.maps.banded import band, taps_ahead


class LightConv(nn.Module):
    """H k parameters. `dropout` drops single taps in training (the paper's DropConnect)."""

    order = 1  # the degree of the mixing in its input

    def __init__(self, d: int, kernel: int, heads: int, *, causal: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        if heads < 1 or d % heads:
            raise MixlabError(f"{d} channels cannot be shared by {heads} heads of taps; choose a divisor")
        self.kernel, self.heads, self.ahead, self.dropout = kernel, heads, taps_ahead(kernel, causal), dropout
        self.make_taps(d, causal)

    def make_taps(self, d: int, causal: bool) -> None:
        """The parameters that taps come from."""
        self.weight = BandedWeight(self.kernel, self.heads, causal=causal, softmax=True)

    def taps(self, x: Float[Tensor, "b n d"]) -> Float[Tensor, "*b H #n k"]:
        """One row per head, or per head and token."""
        return self.weight.values()[:, None]

    def forward(self, x: Float[Tensor, "b n d"], tokens: Tokens) -> Float[Tensor, "b n d"]:
        n = x.shape[1]
        x = without_padding(x, tokens.mask)
        taps = F.dropout(self.taps(x), self.dropout, self.training)
        if tokens.cache is not None:
            x = tokens.cache.append("convolved", x)  # b t d
        mix = self.token_map(taps, tokens, n, x.shape[1])
        tokens.keep("maps", mix.dense)
        return mix(x)

    def make_causal(self) -> str:
        """Refused where taps look ahead: the same taps would stand elsewhere, and sum to 1 there."""
        if self.ahead:
            raise MixlabError(f"{self.kernel} taps around a token cannot become {self.kernel} taps before it; train a causal model anew")
        return f"a convolution of {self.kernel} taps reads no later token"

    def token_map(self, taps: Float[Tensor, "*b H #n k"], tokens: Tokens, n: int, seen: int) -> TokenMap:
        """A band; or its rows by position, when the tokens are not simply 0..n-1."""
        if tokens.positions is not None or tokens.past:
            return DenseMap(band(taps, tokens.places(), tokens.seen_places(seen), self.ahead))
        return DynamicBandedMap(taps, self.ahead) if taps.dim() == 4 else BandedMap(taps[:, 0], n, self.ahead)


class DynamicConv(LightConv):
    """d H k parameters."""

    order = 2

    def make_taps(self, d: int, causal: bool) -> None:
        self.predict = nn.Linear(d, self.heads * self.kernel, bias=False)

    def taps(self, x: Float[Tensor, "b n d"]) -> Float[Tensor, "b H n k"]:
        return self.predict(x).unflatten(-1, (self.heads, self.kernel)).softmax(-1).transpose(1, 2)


class ConvolutionBranch(nn.Module):
    """What stands in the place of attention: a gated linear unit, the convolution, a projection; all of `d` channels."""

    def __init__(self, d: int, convolution: LightConv) -> None:
        super().__init__()
        self.gated = GLU(d, d)
        self.convolution = convolution
        self.out = nn.Linear(d, d)

    def forward(self, tokens: Tokens) -> Float[Tensor, "b n d"]:
        return self.out(self.convolution(self.gated(tokens.x), tokens))
