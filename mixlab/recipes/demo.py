"""The jobs of the demonstration: two rivals with the same budget, then both on a classification task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mixlab.errors import unknown
from mixlab.tasks.job import Job, Vocabulary
from mixlab.training.settings import TrainingSettings


@dataclass(frozen=True)
class Rival:
    """A learning rate at which the architecture learns well, and what is changed in its tiny preset."""

    learning_rate: float
    model: Mapping[str, Any] = field(default_factory=dict)


# W is dense here, so that a Toeplitz pattern has to be learned. Four layers of BERT with f = 256 have about as many parameters.
RIVALS = {"gmlp": Rival(5e-3, {"spatial_structure": "dense"}), "bert": Rival(2e-3, {"intermediate_size": 128})}


def demo_pretrain(arch: str = "gmlp") -> Job:
    """Masked-language-model pretraining of the demonstration, on Python's documentation.

    Not run: with gmlp-tiny, 5.7e+09 FLOPs a step, 5.7e+12 for all 1,000.
    """
    rival = _rival(arch)
    training = TrainingSettings(steps=1000, batch_size=64, learning_rate=rival.learning_rate, warmup=50, save_every=250, log_every=25)
    return Job("masked-lm", f"{arch}-tiny", "pydocs", training, length=32, model=rival.model, vocabulary=Vocabulary(size=1000))


def demo_finetune(arch: str = "gmlp") -> Job:
    """Classification of generated reviews, from the model of `demo-pretrain` (`start=RUN`).

    Not run: with gmlp-tiny, 2.6e+09 FLOPs a step, 7.9e+11 for all 300.
    """
    _rival(arch)
    training = TrainingSettings(steps=300, batch_size=32, learning_rate=1e-3, warmup=20, save_every=300, log_every=50)
    return Job("sequence-classification", f"{arch}-tiny", "sentences", training, length=32)


def _rival(arch: str) -> Rival:
    if arch not in RIVALS:
        raise unknown("rival of the demonstration", arch, RIVALS)
    return RIVALS[arch]
