"""The tasks that models can be built for: the name of the head's class and the Auto class that loads it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TaskHead:
    suffix: str  # of the class: GMLP + ForMaskedLM
    auto_class: str  # of transformers


TASK_HEADS = {
    "features": TaskHead("Model", "AutoModel"),
    "masked-lm": TaskHead("ForMaskedLM", "AutoModelForMaskedLM"),
    "causal-lm": TaskHead("ForCausalLM", "AutoModelForCausalLM"),
    "sequence-classification": TaskHead("ForSequenceClassification", "AutoModelForSequenceClassification"),
    "token-classification": TaskHead("ForTokenClassification", "AutoModelForTokenClassification"),
    "question-answering": TaskHead("ForQuestionAnswering", "AutoModelForQuestionAnswering"),
    "image-classification": TaskHead("ForImageClassification", "AutoModelForImageClassification"),
    "masked-image-modeling": TaskHead("ForMaskedImageModeling", "AutoModelForMaskedImageModeling"),
    "image-restoration": TaskHead("ForImageToImage", "AutoModelForImageToImage"),
    "audio-classification": TaskHead("ForAudioClassification", "AutoModelForAudioClassification"),
    "ctc": TaskHead("ForCTC", "AutoModelForCTC"),
}
