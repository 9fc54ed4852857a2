"""LightConv: taps shared by the channels of a head in the place of attention (Wu et al. 2019, arXiv:1901.10430).

    A = norm(X + W_O LightConv(GLU(X)))                        GLU(x) = (x W + b) * sigmoid(x V + c),  W, V and W_O: d x d
    Y = norm(A + relu(A W_1) W_2)                              W_1: d x f,  W_2: f x d

    LightConv(X)_ic = sum_j softmax(w_h)_j x_(i - j)c          w: H x k, head h = c H // d; j around 0, or 0..k-1 where causal

Post-norm, so there is no final norm. k grows from layer to layer. No weight knows a position, so that any length is read; the authors' own
models add sinusoids to the embeddings.

Axes: b batch, n tokens, d model, f expanded, H heads, k taps.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import ClassVar, Literal

from torch import nn

from mixlab.accounting import Line, Mixing, in_group
from mixlab.accounting.parts import feed_forward, gated_linear, layer_norm, linear, sums
from mixlab.errors import MixlabError
from mixlab.layers import FeedForward, LightConv, Tokens
from mixlab.layers.lightconv import ConvolutionBranch
from mixlab.modeling.architecture import Architecture, Preset, stack
from mixlab.modeling.config import LARGEST, MixerConfig, Number
from mixlab.modeling.traits import TEXT_TASKS, Traits


class LightConvConfig(MixerConfig):
    """intermediate_size = f, convolution_heads = H, kernel_sizes = k of the first layers; the last one is that of all layers left."""

    model_type = "mixlab-lightconv"
    order: ClassVar[tuple[int, ...]] = (1,)

    intermediate_size: int = 2048
    convolution_heads: int = 8
    kernel_sizes: list[int] | tuple[int, ...] = (3, 7, 15, 31)
    hidden_act: Literal["relu", "gelu", "silu"] = "relu"
    taps_dropout: Number = 0.0  # of single taps, in training

    def __post_init__(self, **kwargs: object) -> None:
        # Before the shell's own checks, which ask for the traits.
        if not self.kernel_sizes or min(self.kernel_sizes) < 1 or max(self.kernel_sizes) > LARGEST:
            raise MixlabError(f"kernel_sizes are {self.kernel_sizes}; give one of 1..{LARGEST} for each layer, or for the first ones")
        even = [k for k in self.kernel_sizes if k % 2 == 0]
        if even and not self.causal:
            raise MixlabError(f"a kernel of {even[0]} taps has no middle; use odd kernel_sizes, or causal=True")
        self.kernel_sizes = list(self.kernel_sizes)  # as JSON gives them back
        super().__post_init__(**kwargs)
        self.check_rate("taps_dropout")
        if self.convolution_heads < 1 or self.hidden_size % self.convolution_heads:
            raise MixlabError(
                f"hidden_size {self.hidden_size} cannot be shared by convolution_heads={self.convolution_heads}; use a divisor"
            )

    def kernel(self, layer: int) -> int:
        return self.kernel_sizes[min(layer, len(self.kernel_sizes) - 1)]

    @property
    def kernels(self) -> list[int]:
        """k of every layer."""
        return [self.kernel(layer) for layer in range(self.num_hidden_layers)]

    @property
    def traits(self) -> Traits:
        return Traits(
            masks=True,
            causal=True,
            length="any",
            modalities=("text",),
            tasks=TEXT_TASKS,
            order=self.order,
            attention=False,
            equivariance="shift",
            reach=sum(k - 1 if self.causal else k // 2 for k in self.kernels),
        )


class Block(nn.Module):
    """Convolution, then the feed-forward network, each with its norm behind the sum."""

    convolution: ClassVar[type[LightConv]] = LightConv

    def __init__(self, config: LightConvConfig, layer: int) -> None:
        super().__init__()
        d, eps = config.hidden_size, config.layer_norm_eps
        heads, drop = config.convolution_heads, config.taps_dropout
        self.branch = ConvolutionBranch(d, self.convolution(d, config.kernel(layer), heads, causal=config.causal, dropout=drop))
        self.branch_norm = nn.LayerNorm(d, eps=eps)
        self.ffn = FeedForward(d, config.intermediate_size, activation=config.hidden_act)
        self.ffn_norm = nn.LayerNorm(d, eps=eps)
        self.dropout = nn.Dropout(config.hidden_dropout)

    def forward(self, tokens: Tokens) -> Tokens:
        x = self.branch_norm(tokens.x + self.dropout(self.branch(tokens)))  # b n d
        return tokens.with_x(self.ffn_norm(x + self.dropout(self.ffn(x))))


def layers(config: LightConvConfig, n: int) -> list[Line]:
    """What all layers have in common."""
    d, f = config.hidden_size, config.intermediate_size
    block = [
        linear("W and V of the gated linear unit", d, 2 * d, n),
        gated_linear(d, n),
        linear("W_O", d, d, n),
        layer_norm("convolution norm", d, n),
        *feed_forward(d, f, n, act=config.hidden_act),
        layer_norm("feed-forward norm", d, n),
        sums(d, n, 2),
    ]
    final = [layer_norm("final norm", d, n)] if config.final_norm else []
    return [*in_group("body", block, times=config.num_hidden_layers), *final]


def account(config: LightConvConfig, n: int) -> list[Line]:
    """The lines of the body for n tokens."""
    symbols = {"n": n, "d": config.hidden_size, "H": config.convolution_heads}
    mixing = Mixing(1, "min(H, k)", "n*d", "k")
    cost = {"work": "5*H*k", "kept": "(n + k - 1)*d + d*k + H*k", "live": "2*n*d", "state": "d"}
    taps = [
        Line(f"w of {k} taps", "H*k", "n*k*d", {**symbols, "k": k}, times=many, mixing=mixing, **cost)
        for k, many in Counter(config.kernels).items()
    ]
    return [*taps, *layers(config, n)]


TINY = {"num_hidden_layers": 4, "hidden_size": 128, "intermediate_size": 384, "final_norm": False, "vocab_size": 2000}

PRESETS = {"lightconv-tiny": Preset(TINY, "masked-lm", "tests and demos")}

ARCH = Architecture("lightconv", LightConvConfig, body=partial(stack, block=Block), account=account, presets=PRESETS)
