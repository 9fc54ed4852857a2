"""The tasks that models can be built for: the name of the head's class, the Auto class that loads it, its layers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TaskHead:
    suffix: str  # of the class: GMLP + ForMaskedLM
    auto_class: str  # of transformers
    parts: tuple[str, ...] = ()  # the layers that it puts on the backbone, by the names that its checkpoints use


TASK_HEADS = {
    "features": TaskHead("Model", "AutoModel"),
    "masked-lm": TaskHead("ForMaskedLM", "AutoModelForMaskedLM", ("transform", "lm_head")),
    "causal-lm": TaskHead("ForCausalLM", "AutoModelForCausalLM", ("transform", "lm_head")),
    "sequence-classification": TaskHead("ForSequenceClassification", "AutoModelForSequenceClassification", ("classifier",)),
    "token-classification": TaskHead("ForTokenClassification", "AutoModelForTokenClassification", ("classifier",)),
    "question-answering": TaskHead("ForQuestionAnswering", "AutoModelForQuestionAnswering", ("qa_outputs",)),
    "image-classification": TaskHead("ForImageClassification", "AutoModelForImageClassification", ("pooler", "classifier")),
    "masked-image-modeling": TaskHead("ForMaskedImageModeling", "AutoModelForMaskedImageModeling", ("mask_token", "decoder")),
    "image-restoration": TaskHead("ForImageToImage", "AutoModelForImageToImage", ("residual",)),
    "audio-classification": TaskHead("ForAudioClassification", "AutoModelForAudioClassification", ("classifier",)),
    "ctc": TaskHead("ForCTC", "AutoModelForCTC", ("symbols",)),
}
