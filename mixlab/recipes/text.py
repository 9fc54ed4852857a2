"""Small recipes for text that finish on two cores in minutes: pretraining, next-token models, classification of sentences and pairs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mixlab.recipes import SMALL, tiny
from mixlab.tasks.job import Job, Vocabulary
from mixlab.training.settings import TrainingSettings


def pretrain_small(arch: str = "gmlp") -> Job:
    """Masked-language-model pretraining of a small model on Python's documentation, or on your texts (`data=`).

    Not run: with gmlp-tiny, 1.3e+10 FLOPs a step, 3.4e+13 for all 2,500.
    """
    training = TrainingSettings(steps=2500, batch_size=48, learning_rate=2e-3, warmup=100, save_every=500, evaluate_every=500, log_every=50)
    return Job("masked-lm", tiny(arch), "pydocs", training, length=64, model=SMALL, vocabulary=Vocabulary(size=8192))


def causal_small(arch: str = "gmlp") -> Job:
    """A next-token model, small, on Python's documentation or on your texts (`data=`), to generate from.

    Not run: with gmlp-tiny, 1.2e+10 FLOPs a step, 1.7e+13 for all 1,500.
    """
    training = TrainingSettings(steps=1500, batch_size=32, learning_rate=2e-3, warmup=100, save_every=500, evaluate_every=500, log_every=50)
    model = {**SMALL, "hidden_dropout": 0.1}
    return Job("causal-lm", tiny(arch), "pydocs", training, length=64, model=model, vocabulary=Vocabulary("bpe", 2000))


def classify(arch: str = "gmlp") -> Job:
    """Classification of sentences: the built-in generated reviews, or a table with a text and a label (`data=reviews.csv`).

    Not run: with gmlp-tiny, 8.5e+09 FLOPs a step, 6 passes over the data.
    """
    return _classification(arch, "sentences", epochs=6)


def classify_pairs(arch: str = "amlp") -> Job:
    """Classification of pairs of texts: the built-in facts and claims, or a table (`data=nli.csv`).

    Not run: with amlp-tiny, 1e+10 FLOPs a step, 12 passes over the data.
    """
    return replace(_classification(arch, "pairs", epochs=12), pairs=True)


def _classification(arch: str, data: str, epochs: float) -> Job:
    training = TrainingSettings(steps=1, batch_size=32, learning_rate=1e-3, warmup=0.1, save_every=500, evaluate_every=500, log_every=50)
    model: dict[str, Any] = {**SMALL, "pooling": "mean", "hidden_dropout": 0.1}
    return Job("sequence-classification", tiny(arch), data, training, length=64, model=model, epochs=epochs)
