"""What all heads share: a backbone with something on top, pooling, and losses.

Axes: b batch, n tokens, d channels, V vocabulary.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from mixlab.errors import MixlabError
from mixlab.modeling.backbone import MixerModel, MixerPreTrainedModel
from mixlab.modeling.config import MixerConfig
from mixlab.modeling.inputs import IGNORED
from mixlab.modeling.outputs import BackboneOutput, HeadOutput


class MixerHead(MixerPreTrainedModel):
    """A backbone, and something on top."""

    backbone_class: type[MixerModel]
    task: str

    def __init__(self, config: MixerConfig) -> None:
        super().__init__(config)
        if self.task not in config.traits.tasks:
            raise MixlabError(f"this {config.model_type} cannot do {self.task!r}; it can do: {', '.join(config.traits.tasks)}")
        self.model = self.backbone_class(config)
        self.main_input_name = self.model.main_input_name
        self.build(config)
        self.post_init()

    def build(self, config: MixerConfig) -> None:
        """Make the layers of the head."""
        raise NotImplementedError


class ClassifierHead(MixerHead):
    """Dropout and one projection to the labels."""

    def build(self, config: MixerConfig) -> None:
        if not config.num_labels:
            raise MixlabError("num_labels is 0, and a classifier needs a label at least; give num_labels=2, or task='features'")
        self.dropout = nn.Dropout(config.classifier_dropout)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)


def head_output(base: BackboneOutput, loss: Tensor | None, logits: Tensor) -> HeadOutput:
    return HeadOutput(
        loss=loss,
        logits=logits,
        past_key_values=base.past_key_values,
        hidden_states=base.hidden_states,
        attentions=base.attentions,
        maps=base.maps,
    )


def pool(hidden: Float[Tensor, "b n d"], mask: Int[Tensor, "b n"] | None, how: str) -> Float[Tensor, "b d"]:
    """One vector per sample; wherever the padding stands, only real tokens count."""
    if mask is None:
        return hidden.mean(1) if how == "mean" else hidden[:, 0 if how == "cls" else -1]
    mask = mask.bool()
    if how == "mean":
        return hidden.masked_fill(~mask[..., None], 0.0).sum(1) / mask.sum(1, keepdim=True)
    first_or_last = mask.int().argmax(1) if how == "cls" else mask.shape[1] - 1 - mask.int().flip(1).argmax(1)
    return hidden[torch.arange(len(hidden), device=hidden.device), first_or_last]


def token_loss(logits: Float[Tensor, "*b V"], labels: Int[Tensor, "*b"], count: Int[Tensor, ""] | int | None = None) -> Float[Tensor, ""]:
    """Mean cross-entropy of the labelled tokens; 0, not NaN, where there are none.

    `count` is the number of labelled tokens of a whole accumulated batch, when the trainer knows it.
    """
    labels = labels.to(logits.device)
    total = F.cross_entropy(logits.flatten(0, -2).float(), labels.flatten(), ignore_index=IGNORED, reduction="sum")
    return total / ((labels != IGNORED).sum().clamp(min=1) if count is None else count)
