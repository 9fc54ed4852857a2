"""The heads: one class per task, written once, for every architecture that declares the task."""

from mixlab.modeling.heads.audio import MixerForAudioClassification, MixerForCTC
from mixlab.modeling.heads.base import MixerHead
from mixlab.modeling.heads.image import MixerForImageClassification, MixerForImageToImage, MixerForMaskedImageModeling
from mixlab.modeling.heads.text import (
    MixerForCausalLM,
    MixerForMaskedLM,
    MixerForQuestionAnswering,
    MixerForSequenceClassification,
    MixerForTokenClassification,
)

HEADS: tuple[type[MixerHead], ...] = (
    MixerForMaskedLM,
    MixerForCausalLM,
    MixerForSequenceClassification,
    MixerForTokenClassification,
    MixerForQuestionAnswering,
    MixerForImageClassification,
    MixerForMaskedImageModeling,
    MixerForImageToImage,
    MixerForAudioClassification,
    MixerForCTC,
)

__all__ = ["HEADS", "MixerHead"]
