"""Heads over sound: a label for a recording, or its transcription.

Axes: b batch, t frames, m features of a frame, n tokens, l symbols of a transcription, V symbols in all.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn
from transformers.utils.generic import can_return_tuple

from mixlab.errors import MixlabError
from mixlab.modeling.config import MixerConfig
from mixlab.modeling.heads.base import ClassifierHead, MixerHead, head_output, pool
from mixlab.modeling.inputs import IGNORED, WHOLE, check_classes, tracing
from mixlab.modeling.outputs import HeadOutput

BLANK = 0  # the symbol that CTC writes between others


class MixerForAudioClassification(ClassifierHead):
    """A label for a recording, from the mean of its tokens."""

    task = "audio-classification"
    main_input_name = "input_features"

    @can_return_tuple
    def forward(
        self,
        input_features: Float[Tensor, "b t m"] | None = None,
        attention_mask: Int[Tensor, "b t"] | None = None,
        labels: Shaped[Tensor, "b ..."] | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        output_maps: bool = False,
    ) -> HeadOutput:
        base = self.model(
            input_features=input_features,
            attention_mask=attention_mask,
            output_hidden_states=output_hidden_states,
            output_attentions=output_attentions,
            output_maps=output_maps,
            return_dict=True,
        )
        mask = self.model.token_mask(attention_mask)
        logits = self.classifier(self.dropout(pool(base.last_hidden_state, mask, self.config.pooling)))
        if labels is not None:
            check_classes(self.config, labels, len(logits))
        loss = None if labels is None else self.loss_function(labels, logits, self.config)
        return head_output(base, loss, logits)


class MixerForCTC(MixerHead):
    """Symbols for every token, and blanks (symbol 0); the loss sums over all ways to space a transcription (CTC, Graves et al. 2006)."""

    task = "ctc"
    main_input_name = "input_features"

    def build(self, config: MixerConfig) -> None:
        self.dropout = nn.Dropout(config.classifier_dropout)
        self.symbols = nn.Linear(config.hidden_size, config.vocab_size)

    @can_return_tuple
    def forward(
        self,
        input_features: Float[Tensor, "b t m"] | None = None,
        attention_mask: Int[Tensor, "b t"] | None = None,
        labels: Int[Tensor, "b l"] | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        output_maps: bool = False,
    ) -> HeadOutput:
        """Labels are the symbols of each transcription, filled up with -100."""
        base = self.model(
            input_features=input_features,
            attention_mask=attention_mask,
            output_hidden_states=output_hidden_states,
            output_attentions=output_attentions,
            output_maps=output_maps,
            return_dict=True,
        )
        logits = self.symbols(self.dropout(base.last_hidden_state))
        mask = self.model.token_mask(attention_mask)
        loss = None if labels is None else ctc_loss(logits, labels, mask)
        return head_output(base, loss, logits)


def ctc_loss(logits: Float[Tensor, "b n V"], labels: Int[Tensor, "b l"], mask: Bool[Tensor, "b n"] | None) -> Float[Tensor, ""]:
    """Per symbol, averaged over the recordings. One that is too short for its transcription counts as 0."""
    batch, n, symbols = logits.shape
    if labels.dim() != 2 or len(labels) != batch or labels.dtype not in WHOLE:
        raise MixlabError(f"labels are {labels.dtype} {tuple(labels.shape)}; give whole numbers (batch, symbols), {IGNORED} where none is")
    scored = labels != IGNORED
    if not tracing() and bool((scored & ((labels <= BLANK) | (labels >= symbols))).any()):
        raise MixlabError(f"labels hold a symbol outside 1..{symbols - 1}; {BLANK} is the blank, {IGNORED} fills up")
    lengths = logits.new_full((batch,), n, dtype=torch.long) if mask is None else mask.sum(1)
    log_probabilities = logits.float().log_softmax(-1).transpose(0, 1)  # n b V
    targets = labels.masked_fill(~scored, BLANK + 1)
    return F.ctc_loss(log_probabilities, targets, lengths, scored.sum(1), blank=BLANK, reduction="mean", zero_infinity=True)
