"""What models return: the usual fields of transformers, and `maps`, the token maps that were applied."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from transformers.cache_utils import Cache
from transformers.utils.generic import ModelOutput


@dataclass
class BackboneOutput(ModelOutput):
    """Of a backbone: the last hidden state and, on request, intermediates per layer."""

    last_hidden_state: Tensor | None = None
    past_key_values: Cache | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
    maps: tuple[Tensor, ...] | None = None


@dataclass
class HeadOutput(ModelOutput):
    """Of a head with one set of logits."""

    loss: Tensor | None = None
    logits: Tensor | None = None
    past_key_values: Cache | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
    maps: tuple[Tensor, ...] | None = None


@dataclass
class SpanOutput(ModelOutput):
    """Of question answering: where the answer starts and ends."""

    loss: Tensor | None = None
    start_logits: Tensor | None = None
    end_logits: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
    maps: tuple[Tensor, ...] | None = None


@dataclass
class MaskedImageOutput(ModelOutput):
    """Of masked image modelling: what each patch is predicted to be, and which were hidden (1) or seen (0); the rest is the encoder's."""

    loss: Tensor | None = None
    logits: Tensor | None = None
    mask: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
    maps: tuple[Tensor, ...] | None = None


@dataclass
class ImageOutput(ModelOutput):
    """Of restoration: the image."""

    loss: Tensor | None = None
    reconstruction: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
    maps: tuple[Tensor, ...] | None = None
