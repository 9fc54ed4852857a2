"""DynamicConv: a convolution whose taps each token makes for itself (Wu et al. 2019, arXiv:1901.10430, section 4).

    A = norm(X + W_O DynamicConv(GLU(X)))                      as in LightConv, but for the taps
    Y = norm(A + relu(A W_1) W_2)

    DynamicConv(X)_ic = sum_j softmax(W_h x_i)_j x_(i - j)c    W_h: k x d, head h = c H // d; j around 0, or 0..k-1 where causal

What a token reads depends on itself and on how far others are, not, as in attention, on what they say. Linear in the length.

Axes: b batch, n tokens, d model, f expanded, H heads, k taps.
"""

from __future__ import annotations

from collections import Counter
from functools import partial

from mixlab.accounting import Line, Mixing
from mixlab.archs import lightconv
from mixlab.layers import DynamicConv
from mixlab.modeling.architecture import Architecture, Preset, stack


class DynamicConvConfig(lightconv.LightConvConfig):
    """LightConv's fields."""

    model_type = "mixlab-dynamicconv"
    order = (2,)  # taps are of degree 1 in x, and multiply x


class Block(lightconv.Block):
    """LightConv's block with the other convolution."""

    convolution = DynamicConv


def account(config: DynamicConvConfig, n: int) -> list[Line]:
    """The lines of the body for n tokens."""
    symbols = {"n": n, "d": config.hidden_size, "H": config.convolution_heads}
    mixing = Mixing(2, "min(H, n*k)", "n*d", "k")
    cost = {"work": "5*n*H*k", "kept": "2*n*d + n*H*k", "live": "2*n*d + n*H*k", "state": "d"}
    taps = [
        Line(f"W_h of {k} taps, and their use", "d*H*k", "n*d*H*k + n*k*d", {**symbols, "k": k}, times=many, mixing=mixing, **cost)
        for k, many in Counter(config.kernels).items()
    ]
    return [*taps, *lightconv.layers(config, n)]


PRESETS = {"dynamicconv-tiny": Preset(lightconv.TINY, "masked-lm", "tests and demos")}

ARCH = Architecture("dynamicconv", DynamicConvConfig, body=partial(stack, block=Block), account=account, presets=PRESETS)
