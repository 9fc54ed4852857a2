"""Heads over text: its vocabulary, its labels, its spans.

Axes: b batch, n tokens of this call, t tokens seen so far, d channels, V vocabulary, C classes.
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn
from transformers import GenerationMixin
from transformers.cache_utils import Cache
from transformers.utils.generic import can_return_tuple

from mixlab.errors import MixlabError
from mixlab.layers.activation import ACTIVATIONS
from mixlab.layers.tokens import from_front, front_slots, to_front
from mixlab.modeling.cache import check_cache_implementation
from mixlab.modeling.config import MixerConfig
from mixlab.modeling.heads.base import ClassifierHead, MixerHead, head_output, pool, token_loss
from mixlab.modeling.inputs import IGNORED, check_classes, check_labels, tracing
from mixlab.modeling.outputs import HeadOutput, SpanOutput


class VocabularyHead(MixerHead):
    """Logits over the vocabulary, tied to the embeddings unless the configuration says otherwise."""

    _tied_weights_keys = {"lm_head.weight": "model.stem.tokens.weight"}  # noqa: RUF012 (transformers reads a plain dict)
    accepts_loss_kwargs = True

    def build(self, config: MixerConfig) -> None:
        self.transform = HeadTransform(config) if config.head_transform else nn.Identity()
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=config.head_bias)

    def get_output_embeddings(self) -> nn.Linear:
        return self.lm_head

    def set_output_embeddings(self, new_embeddings: nn.Linear) -> None:
        self.lm_head = new_embeddings

    def logits(self, hidden: Float[Tensor, "*b d"]) -> Float[Tensor, "*b V"]:
        return self.lm_head(self.transform(hidden))

    def score(
        self, hidden: Float[Tensor, "b n d"], labels: Int[Tensor, "b n"] | None, count: Int[Tensor, ""] | int | None
    ) -> tuple[Float[Tensor, "*b V"], Float[Tensor, ""] | None]:
        """Logits and their loss; with labels and `labelled_logits_only`, the logits of the labelled tokens alone, (labelled, V)."""
        if labels is None:
            return self.logits(hidden), None
        check_labels(labels, hidden.shape[:2], self.config.vocab_size)
        if self.config.labelled_logits_only:
            labelled = labels != IGNORED
            hidden, labels = hidden[labelled], labels[labelled]  # m d, m
        logits = self.logits(hidden)
        return logits, token_loss(logits, labels, count)


class HeadTransform(nn.Module):
    """BERT's: a dense layer, an activation and a norm before the logits."""

    def __init__(self, config: MixerConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = ACTIVATIONS[config.transform_act]
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, hidden: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d"]:
        return self.norm(self.activation(self.dense(hidden)))


class MixerForMaskedLM(VocabularyHead):
    """Predicts hidden tokens from both sides."""

    task = "masked-lm"

    def build(self, config: MixerConfig) -> None:
        if config.causal:
            raise MixlabError("masked-lm needs a model that sees both sides; build it with causal=False, or use task='causal-lm'")
        super().build(config)

    @can_return_tuple
    def forward(
        self,
        input_ids: Int[Tensor, "b n"] | None = None,
        attention_mask: Int[Tensor, "b n"] | None = None,
        token_type_ids: Int[Tensor, "b n"] | None = None,
        inputs_embeds: Float[Tensor, "b n d"] | None = None,
        labels: Int[Tensor, "b n"] | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        output_maps: bool = False,
        num_items_in_batch: Int[Tensor, ""] | int | None = None,
    ) -> HeadOutput:
        """With `labels` and `labelled_logits_only`, the logits are those of the labelled tokens alone, (labelled, V)."""
        base = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            inputs_embeds=inputs_embeds,
            output_hidden_states=output_hidden_states,
            output_attentions=output_attentions,
            output_maps=output_maps,
            return_dict=True,
        )
        logits, loss = self.score(base.last_hidden_state, labels, num_items_in_batch)
        return head_output(base, loss, logits)


class MixerForCausalLM(VocabularyHead, GenerationMixin):
    """Predicts the next token; generates with a cache."""

    task = "causal-lm"
    generate = GenerationMixin.generate  # pyright: ignore[reportAttributeAccessIssue] (before the backbone's refusal)

    def build(self, config: MixerConfig) -> None:
        if not config.causal:
            raise MixlabError(
                "causal-lm needs causal=True, and this configuration reads both sides; "
                "create(..., task='causal-lm') builds one, `mixlab import DIR --task causal-lm` converts a checkpoint"
            )
        super().build(config)

    @can_return_tuple
    def forward(
        self,
        input_ids: Int[Tensor, "b n"] | None = None,
        attention_mask: Int[Tensor, "b t"] | None = None,
        token_type_ids: Int[Tensor, "b n"] | None = None,
        inputs_embeds: Float[Tensor, "b n d"] | None = None,
        past_key_values: Cache | None = None,
        use_cache: bool = False,
        labels: Int[Tensor, "b n"] | None = None,
        shift_labels: Int[Tensor, "b n"] | None = None,
        logits_to_keep: int | Int[Tensor, " m"] = 0,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        output_maps: bool = False,
        num_items_in_batch: Int[Tensor, ""] | int | None = None,
    ) -> HeadOutput:
        """Labels are the inputs themselves; they are shifted here, unless `shift_labels` brings the next tokens already shifted.

        `logits_to_keep`: only the last ones, 0 for all. `labelled_logits_only` leaves those of tokens whose next one is labelled.
        """
        base = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            inputs_embeds=inputs_embeds,
            past_key_values=past_key_values,
            use_cache=use_cache,
            output_hidden_states=output_hidden_states,
            output_attentions=output_attentions,
            output_maps=output_maps,
            return_dict=True,
        )
        hidden = base.last_hidden_state
        if attention_mask is not None and labels is None and shift_labels is None:
            hidden = carry_last(hidden, attention_mask)
        keep = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        kept = hidden[:, keep]
        if shift_labels is None and labels is not None:
            check_labels(labels, hidden.shape[:2], self.config.vocab_size)
            shift_labels = F.pad(labels[:, 1:], (0, 1), value=IGNORED)
        if shift_labels is not None and kept.shape[1] != hidden.shape[1]:
            raise MixlabError("labels need the logits of all tokens; leave logits_to_keep at 0")
        logits, loss = self.score(kept, shift_labels, num_items_in_batch)
        return head_output(base, loss, logits)

    def _prepare_cache_for_generation(self, generation_config: Any, *args: Any, **kwargs: Any) -> Any:
        check_cache_implementation(generation_config.cache_implementation)
        return super()._prepare_cache_for_generation(generation_config, *args, **kwargs)  # pyright: ignore[reportAttributeAccessIssue]


class MixerForSequenceClassification(ClassifierHead):
    """Labels or numbers for a whole text, from its first token, its last, or their mean."""

    task = "sequence-classification"

    @can_return_tuple
    def forward(
        self,
        input_ids: Int[Tensor, "b n"] | None = None,
        attention_mask: Int[Tensor, "b n"] | None = None,
        token_type_ids: Int[Tensor, "b n"] | None = None,
        inputs_embeds: Float[Tensor, "b n d"] | None = None,
        labels: Shaped[Tensor, "b ..."] | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        output_maps: bool = False,
    ) -> HeadOutput:
        """The loss follows `config.problem_type`: regression, one label, or several."""
        base = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            inputs_embeds=inputs_embeds,
            output_hidden_states=output_hidden_states,
            output_attentions=output_attentions,
            output_maps=output_maps,
            return_dict=True,
        )
        pooled = pool(base.last_hidden_state, attention_mask, self.config.pooling)
        logits = self.classifier(self.dropout(pooled))
        if labels is not None:
            check_classes(self.config, labels, len(logits))
        loss = None if labels is None else self.loss_function(labels=labels, pooled_logits=logits, config=self.config)
        return head_output(base, loss, logits)


class MixerForTokenClassification(ClassifierHead):
    """A label for every token."""

    task = "token-classification"

    @can_return_tuple
    def forward(
        self,
        input_ids: Int[Tensor, "b n"] | None = None,
        attention_mask: Int[Tensor, "b n"] | None = None,
        token_type_ids: Int[Tensor, "b n"] | None = None,
        inputs_embeds: Float[Tensor, "b n d"] | None = None,
        labels: Int[Tensor, "b n"] | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        output_maps: bool = False,
    ) -> HeadOutput:
        """Tokens with the label -100 are not scored."""
        base = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            inputs_embeds=inputs_embeds,
            output_hidden_states=output_hidden_states,
            output_attentions=output_attentions,
            output_maps=output_maps,
            return_dict=True,
        )
        logits = self.classifier(self.dropout(base.last_hidden_state))
        if labels is not None:
            check_labels(labels, logits.shape[:2], logits.shape[-1])
        loss = None if labels is None else token_loss(logits, labels)
        return head_output(base, loss, logits)


class MixerForQuestionAnswering(MixerHead):
    """Where in the text the answer starts and where it ends."""

    task = "question-answering"

    def build(self, config: MixerConfig) -> None:
        self.qa_outputs = nn.Linear(config.hidden_size, 2)

    @can_return_tuple
    def forward(
        self,
        input_ids: Int[Tensor, "b n"] | None = None,
        attention_mask: Int[Tensor, "b n"] | None = None,
        token_type_ids: Int[Tensor, "b n"] | None = None,
        inputs_embeds: Float[Tensor, "b n d"] | None = None,
        start_positions: Int[Tensor, " b"] | None = None,
        end_positions: Int[Tensor, " b"] | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        output_maps: bool = False,
    ) -> SpanOutput:
        """Positions outside the text (an answer in another window) are not scored."""
        base = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            inputs_embeds=inputs_embeds,
            output_hidden_states=output_hidden_states,
            output_attentions=output_attentions,
            output_maps=output_maps,
            return_dict=True,
        )
        start, end = self.qa_outputs(base.last_hidden_state).unbind(-1)  # b n each
        loss = None
        if (start_positions is None) != (end_positions is None):
            raise MixlabError("give both start_positions and end_positions, or neither")
        if start_positions is not None and end_positions is not None:
            loss = (span_loss(start, start_positions) + span_loss(end, end_positions)) / 2
        return SpanOutput(
            loss=loss,
            start_logits=start,
            end_logits=end,
            hidden_states=base.hidden_states,
            attentions=base.attentions,
            maps=base.maps,
        )


def carry_last(hidden: Float[Tensor, "b n d"], mask: Int[Tensor, "b t"]) -> Float[Tensor, "b n d"]:
    """Padding says what the token before it says, so that what is generated after a right-padded prompt follows its text."""
    real = mask[:, -hidden.shape[1] :].bool()
    if not tracing() and bool(real.all()):
        return hidden
    before = (real.long().cumsum(1) - 1).clamp(min=0)  # the rank of the last real token so far
    return from_front(to_front(hidden, front_slots(real)), before)


def span_loss(logits: Float[Tensor, "b n"], positions: Int[Tensor, " b"]) -> Float[Tensor, ""]:
    """Mean cross-entropy of one end of a span over the tokens; positions outside are ignored."""
    batch, n = logits.shape
    if positions.numel() != batch:
        raise MixlabError(f"start and end positions of shape {tuple(positions.shape)}, expected ({batch},): one per text")
    positions = positions.reshape(-1).to(logits.device)
    inside = (positions >= 0) & (positions < n)
    return token_loss(logits, positions.masked_fill(~inside, IGNORED))
