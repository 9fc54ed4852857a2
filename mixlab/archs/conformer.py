"""Conformer: attention for what is far, convolution for what is near, between two halves of a feed-forward network (Gulati et al. 2020).

    A = X + 1/2 ffn(norm(X))
    B = A + attend(norm(A))
    C = B + convolve(norm(B))
    Y = norm(C + 1/2 ffn(norm(C)))

    ffn(x)      = swish(x W_1) W_2                                        W_1: d x f,  W_2: f x d
    attend(x)   : softmax of (q_i k_j + u k_j + (q_i + v) W_r r_{i-j}) / sqrt(d / h); r: sines and cosines of a distance, u and v learned
    convolve(x) = swish(batch_norm(depthwise_k(a * sigmoid(g)))) W_p      [a, g] = x W_g,  W_g: d x 2d,  W_p: d x d

The stem: 3 x 3 convolutions with stride 2 over frames and features, each with a relu, then one projection. Paper: arXiv:2005.08100; the
relative attention is Transformer-XL's (Dai et al. 2019, arXiv:1901.02860).

Axes: b batch, t frames, m features of a frame, n tokens, d model, f expanded, h heads, c channels of a head, k kernel.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from mixlab.accounting import Line, in_group
from mixlab.accounting.parts import (
    activation,
    attention,
    batch_norm,
    convolution,
    convolution_1d,
    feed_forward,
    gated_linear,
    layer_norm,
    linear,
    sums,
)
from mixlab.errors import MixlabError
from mixlab.layers import FeedForward, SelfAttention, Tokens
from mixlab.layers.batch_norm import TokenBatchNorm
from mixlab.layers.tokens import without_padding
from mixlab.maps.base import split_heads
from mixlab.modeling.architecture import Architecture, Preset, stack
from mixlab.modeling.config import MixerConfig, Number
from mixlab.modeling.traits import AUDIO_TASKS, Traits


class ConformerConfig(MixerConfig):
    """hidden_size = d, intermediate_size = f, num_attention_heads = h, conv_kernel_size = k."""

    model_type = "mixlab-conformer"

    modality = "audio"
    pooling = "mean"
    final_norm = False  # a block ends with its own
    intermediate_size: int = 2048
    num_attention_heads: int = 4
    attention_dropout: Number = 0.0
    conv_kernel_size: int = 31
    conv_uneven: bool = False  # an even kernel then reads one token more ahead than back; else it is refused, for it has no middle

    def __post_init__(self, **kwargs: object) -> None:
        super().__post_init__(**kwargs)
        d, kernel, stride = self.hidden_size, self.conv_kernel_size, self.frame_stride
        self.check_split("hidden_size", "num_attention_heads")
        if d % 2:
            raise MixlabError(f"hidden_size {d} is odd, and a distance is told by pairs of sine and cosine; use an even one")
        if kernel < 1:
            raise MixlabError(f"conv_kernel_size is {kernel}; it must be at least 1")
        if self.conv_uneven == bool(kernel % 2):
            even = f"is even and has no middle; use {kernel + 1}, or conv_uneven=True to read one token more ahead than back"
            raise MixlabError(f"conv_kernel_size {kernel} {'is odd; leave conv_uneven out' if kernel % 2 else even}")
        if stride < 2 or stride & (stride - 1):
            raise MixlabError(f"frame_stride is {stride}; every convolution of the stem halves the frames: use 2, 4 or 8")
        if self.num_mel_bins < 2 * stride - 1:
            raise MixlabError(f"num_mel_bins is {self.num_mel_bins}; the stem's convolutions leave nothing of fewer than {2 * stride - 1}")

    @property
    def halvings(self) -> int:
        """Convolutions of the stem."""
        return self.frame_stride.bit_length() - 1

    def fewest_frames(self, tokens: int) -> int:
        """A convolution without padding makes n of 2 n + 1."""
        return self.frame_stride * (tokens + 1) - 1

    @property
    def traits(self) -> Traits:
        return Traits(masks=True, causal=False, length="any", modalities=("audio",), tasks=AUDIO_TASKS, order=(1, 3), attention=True)


def halved(size: int, times: int = 1) -> int:
    """What convolutions of width 3 and stride 2 leave, without padding."""
    return size if times == 0 else halved((size - 1) // 2, times - 1)


class Subsampling(nn.Module):
    """The stem. Without padding, a token is made of real frames alone, or is padding itself."""

    def __init__(self, config: ConformerConfig) -> None:
        super().__init__()
        d = config.hidden_size
        self.convolutions = nn.ModuleList(nn.Conv2d(d if i else 1, d, kernel_size=3, stride=2) for i in range(config.halvings))
        self.projection = nn.Linear(d * halved(config.num_mel_bins, config.halvings), d)
        self.dropout = nn.Dropout(config.stem_dropout)

    def shorten(self, mask: Bool[Tensor, "b t"]) -> Bool[Tensor, "b n"]:
        """Which tokens have all their frames, when padding stands behind."""
        for _ in self.convolutions:
            mask = mask[:, 2::2]
        return mask

    def forward(self, frames: Float[Tensor, "b t m"], mask: Bool[Tensor, "b t"] | None = None) -> Float[Tensor, "b n d"]:
        x = without_padding(frames, mask)[:, None]  # b 1 t m
        for halve in self.convolutions:
            x = F.relu(halve(x))
        return self.dropout(self.projection(x.transpose(1, 2).flatten(2)))


def sinusoids(distances: Int[Tensor, "r"], d: int) -> Float[Tensor, "r d"]:
    """Sines and cosines of a distance in turn, from one per token to one per 10,000."""
    rates = 10000.0 ** (-torch.arange(0, d, 2, device=distances.device) / d)
    angles = distances[:, None] * rates
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)


class RelativeLogits(nn.Module):
    """What the distance adds to the logits, and what a key has to say whoever asks: (u k_j + (q_i + v) W_r r_{i-j}) / sqrt(c)."""

    def __init__(self, d: int, heads: int, std: float) -> None:
        super().__init__()
        self.std = std
        self.projection = nn.Linear(d, d, bias=False)  # W_r
        self.u = nn.Parameter(torch.empty(heads, 1, d // heads))
        self.v = nn.Parameter(torch.empty(heads, 1, d // heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.u, std=self.std)
        nn.init.normal_(self.v, std=self.std)

    def forward(
        self, q: Float[Tensor, "b h n c"], k: Float[Tensor, "b h n c"], to: Int[Tensor, "#b n"], frm: Int[Tensor, "#b n"]
    ) -> Float[Tensor, "b h n n"]:
        n, weight = k.shape[2], self.projection.weight
        distances = torch.arange(1 - n, n, device=k.device)
        r = split_heads(self.projection(sinusoids(distances, len(weight)).to(weight.dtype))[None], len(self.u))  # 1 h 2n-1 c
        by_distance = (q + self.v) @ r.mT  # b h n 2n-1
        place = (to[:, :, None] - frm[:, None, :] + n - 1)[:, None]  # #b 1 n n
        by_place = by_distance.gather(-1, place.expand(*q.shape[:3], n))
        by_key = (k * self.u).sum(-1)[:, :, None]  # b h 1 n
        return (by_key + by_place) / math.sqrt(k.shape[-1])


class DepthwiseConvolution(nn.Module):
    """Each channel mixes k neighbours by weights of its own; beyond the ends, and in padding, there is nothing."""

    order = 1  # the degree of the mixing in its input

    def __init__(self, d: int, kernel: int) -> None:
        super().__init__()
        self.margins = ((kernel - 1) // 2, kernel // 2)
        self.taps = nn.Conv1d(d, d, kernel, groups=d)

    def forward(self, x: Float[Tensor, "b n d"], mask: Bool[Tensor, "b n"] | None) -> Float[Tensor, "b n d"]:
        return self.taps(F.pad(without_padding(x, mask).mT, self.margins)).mT


class ConvolutionModule(nn.Module):
    def __init__(self, d: int, kernel: int) -> None:
        super().__init__()
        self.widen = nn.Linear(d, 2 * d)
        self.depthwise = DepthwiseConvolution(d, kernel)
        self.norm = TokenBatchNorm(d)
        self.narrow = nn.Linear(d, d)

    def forward(self, tokens: Tokens) -> Float[Tensor, "b n d"]:
        gated = F.glu(self.widen(tokens.x), dim=-1)
        return self.narrow(F.silu(self.norm(self.depthwise(gated, tokens.mask), tokens.mask)))


class Block(nn.Module):
    def __init__(self, config: ConformerConfig, layer: int) -> None:
        super().__init__()
        d, f, eps, heads = config.hidden_size, config.intermediate_size, config.layer_norm_eps, config.num_attention_heads
        self.ffn_norm_1, self.ffn_1 = nn.LayerNorm(d, eps=eps), FeedForward(d, f, activation="silu")
        self.attention_norm = nn.LayerNorm(d, eps=eps)
        relative = RelativeLogits(d, heads, config.initializer_range)
        drop = config.attention_dropout
        self.attention = SelfAttention(d, d, d, heads=heads, dropout=drop, kinds=("attention", "maps"), logit_bias=relative)
        self.convolution_norm, self.convolution = nn.LayerNorm(d, eps=eps), ConvolutionModule(d, config.conv_kernel_size)
        self.ffn_norm_2, self.ffn_2 = nn.LayerNorm(d, eps=eps), FeedForward(d, f, activation="silu")
        self.norm = nn.LayerNorm(d, eps=eps)
        self.dropout = nn.Dropout(config.hidden_dropout)

    def forward(self, tokens: Tokens) -> Tokens:
        x = tokens.x  # b n d
        x = x + 0.5 * self.dropout(self.ffn_1(self.ffn_norm_1(x)))
        x = x + self.dropout(self.attention(tokens.with_x(self.attention_norm(x))))
        x = x + self.dropout(self.convolution(tokens.with_x(self.convolution_norm(x))))
        return tokens.with_x(self.norm(x + 0.5 * self.dropout(self.ffn_2(self.ffn_norm_2(x)))))


def account(config: ConformerConfig, n: int) -> list[Line]:
    """The lines of the stem, from as many frames as n tokens need, and of the body."""
    d, f, bins = config.hidden_size, config.intermediate_size, config.num_mel_bins
    places = [halved(config.fewest_frames(n), i) * halved(bins, i) for i in range(1, config.halvings + 1)]
    reads = [config.fewest_frames(n) * bins, *places]
    stem = [convolution(f"subsampling {i + 1}", 3, d if i else 1, d, at, read=reads[i]) for i, at in enumerate(places)]
    half = [layer_norm("feed-forward norm", d, n), *feed_forward(d, f, n, act="swish")]
    heads = config.num_attention_heads
    symbols = {"n": n, "d": d, "h": heads}
    block = [
        *half,
        layer_norm("attention norm", d, n),
        linear("W_qkv", d, 3 * d, n),
        Line("W_r", "d*d", "(2*n - 1)*d*d", symbols, kept="(2*n - 1)*d", live="2*(2*n - 1)*d"),
        Line("u", "d", "0", symbols, work="n*d", live="n*d"),
        Line(
            "v, (q + v) r",
            "d",
            "n*(2*n - 1)*d",
            symbols,
            work="n*d",
            kept="n*d + (2*n - 1)*d + h*n*(2*n - 1)",
            live="3*n*d + h*n*(2*n - 1)",
        ),
        attention(n, n, d, heads, biased=True),
        linear("W_o", d, d, n),
        layer_norm("convolution norm", d, n),
        linear("W_g", d, 2 * d, n),
        gated_linear(d, n, fused=True),
        convolution_1d("depthwise", config.conv_kernel_size, d, d, n, groups=d),
        replace(batch_norm("batch norm", d, n), kept="3*n*d + d"),  # written out, so that padding is not counted
        activation("swish", d, n),
        linear("W_p", d, d, n),
        *half,
        sums(d, n, 4),
        layer_norm("norm", d, n),
    ]
    final = [layer_norm("final norm", d, n)] if config.final_norm else []
    projection = linear("frames", d * halved(bins, config.halvings), d, n)
    return [*in_group("stem", [*stem, projection]), *in_group("body", block, times=config.num_hidden_layers), *final]


def _published(layers: int, d: int, heads: int, published: str) -> Preset:
    # The paper's kernel of 32 is even. Tokens are counted for 20 seconds of sound, at 100 frames a second.
    sizes = {"num_hidden_layers": layers, "hidden_size": d, "intermediate_size": 4 * d, "num_attention_heads": heads}
    settings = {**sizes, "conv_kernel_size": 32, "conv_uneven": True, "vocab_size": 1024, "max_position_embeddings": 500}
    return Preset(
        {**settings, "hidden_dropout": 0.1},
        "features",
        "Gulati et al. 2020, Table 1",
        published,
        "printed with the LSTM decoder of its transducer; this is the encoder",
    )


PRESETS = {
    "conformer-s": _published(16, 144, 4, "10.3M"),
    "conformer-m": _published(16, 256, 4, "30.7M"),
    "conformer-l": _published(17, 512, 8, "118.8M"),
    "conformer-tiny": Preset(
        {
            "num_hidden_layers": 4,
            "hidden_size": 64,
            "intermediate_size": 256,
            "conv_kernel_size": 15,
            "num_mel_bins": 40,
            "vocab_size": 32,
            "max_position_embeddings": 128,
            "num_labels": 10,
        },
        "audio-classification",
        "tests and demos",
    ),
}

ARCH = Architecture("conformer", ConformerConfig, body=partial(stack, block=Block), account=account, presets=PRESETS, stem=Subsampling)
