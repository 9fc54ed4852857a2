"""Stems turn raw input into tokens: ids of text into embeddings, an image into patches, frames of sound into groups of them.

Axes: b batch, n tokens, d channels, c image channels, t frames, m features of a frame.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from mixlab.layers.tokens import without_padding


class TextStem(nn.Module):
    """A table of token embeddings and, optionally, one of segments. Positions are the business of the body."""

    def __init__(self, vocabulary: int, d: int, *, segments: int = 0, pad: int | None = None, dropout: float = 0.0) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, d, padding_idx=pad)
        self.segments = nn.Embedding(segments, d) if segments else None
        self.dropout = nn.Dropout(dropout)

    def embed(self, ids: Int[Tensor, "b n"]) -> Float[Tensor, "b n d"]:
        return self.tokens(ids)

    def forward(self, embedded: Float[Tensor, "b n d"], segments: Int[Tensor, "b n"] | None = None) -> Float[Tensor, "b n d"]:
        """From embeddings of `self.tokens`; without segment ids, all tokens are of segment 0."""
        if self.segments is not None:
            embedded = embedded + (self.segments.weight[0] if segments is None else self.segments(segments))
        return self.dropout(embedded)


class PatchStem(nn.Module):
    """Cuts an image into square patches and projects each; optionally puts a learned `cls` token before them."""

    def __init__(self, patch: int, channels: int, d: int, *, cls: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        self.projection = nn.Conv2d(channels, d, kernel_size=patch, stride=patch)
        self.cls = nn.Parameter(torch.empty(1, 1, d)) if cls else None
        self.dropout = nn.Dropout(dropout)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if self.cls is not None:
            nn.init.normal_(self.cls, std=0.02)

    def forward(self, pixels: Float[Tensor, "b c height width"]) -> Float[Tensor, "b n d"]:
        x = self.projection(pixels).flatten(2).transpose(1, 2)  # b n d, row by row
        if self.cls is not None:
            x = torch.cat([self.cls.expand(x.shape[0], -1, -1), x], dim=1)
        return self.dropout(x)


class FrameStem(nn.Module):
    """Joins every `stride` frames of sound into one token."""

    def __init__(self, features: int, d: int, stride: int, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.stride = stride
        self.projection = nn.Linear(stride * features, d)
        self.dropout = nn.Dropout(dropout)

    def shorten(self, mask: Bool[Tensor, "b t"]) -> Bool[Tensor, "b n"]:
        """Which tokens hold a frame, when padding stands behind."""
        return mask[:, :: self.stride]

    def forward(self, frames: Float[Tensor, "b t m"], mask: Bool[Tensor, "b t"] | None = None) -> Float[Tensor, "b n d"]:
        frames = without_padding(frames, mask)
        frames = F.pad(frames, (0, 0, 0, -frames.shape[1] % self.stride))
        return self.dropout(self.projection(frames.unflatten(1, (-1, self.stride)).flatten(2)))
