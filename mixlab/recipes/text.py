"""Small recipes for text that finish on two cores in minutes: pretraining, next-token models, classification of sentences and pairs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mixlab.recipes import SMALL, tiny
from mixlab.tasks.job import Job, Vocabulary
from mixlab.training.settings import TrainingSettings


def pretrain_small(arch: str = "gmlp") -> Job:
    """Masked-language-model pretraining of a small model on Python's documentation, or on your texts (`data=`).

    Measured on State of the Union, Wikipedia, prose: gmlp perplexity 40.6, amlp perplexity 36.8; 3-gram perplexity 80.1.
    """
    training = TrainingSettings(steps=2500, batch_size=48, learning_rate=2e-3, warmup=100, save_every=500, evaluate_every=500, log_every=50)
    return Job("masked-lm", tiny(arch), "pydocs", training, length=64, model=SMALL, vocabulary=Vocabulary(size=8192))


def causal_small(arch: str = "gmlp") -> Job:
    """A next-token model, small, on Python's documentation or on your texts (`data=`), to generate from.

    Measured on tiny Shakespeare: gmlp 1.979 bits per character, bert 2.037 bits per character; 3-gram 2.094 bits per character.
    """
    training = TrainingSettings(steps=1500, batch_size=32, learning_rate=2e-3, warmup=100, save_every=500, evaluate_every=500, log_every=50)
    model = {**SMALL, "hidden_dropout": 0.1}
    return Job("causal-lm", tiny(arch), "pydocs", training, length=64, model=model, vocabulary=Vocabulary("bpe", 2000))


def classify(arch: str = "gmlp") -> Job:
    """Classification of sentences: the built-in generated reviews, or a table with a text and a label (`data=reviews.csv`).

    Measured on SST-2: gmlp accuracy 0.845 (0.821 to 0.869), amlp accuracy 0.857 (0.834 to 0.877); commonest label accuracy 0.509,
    linear model of words (TF-IDF) accuracy 0.831.
    """
    return _classification(arch, "sentences", epochs=6)


def classify_pairs(arch: str = "amlp") -> Job:
    """Classification of pairs of texts: the built-in facts and claims, or a table (`data=nli.csv`).

    Measured on SICK: amlp accuracy 0.652 (median of 3 seeds, 0.632 to 0.670); commonest label accuracy 0.564, linear model of words
    (TF-IDF) accuracy 0.798.
    """
    return replace(_classification(arch, "pairs", epochs=12), pairs=True)


def _classification(arch: str, data: str, epochs: float) -> Job:
    training = TrainingSettings(steps=1, batch_size=32, learning_rate=1e-3, warmup=0.1, save_every=500, evaluate_every=500, log_every=50)
    model: dict[str, Any] = {**SMALL, "pooling": "mean", "hidden_dropout": 0.1}
    return Job("sequence-classification", tiny(arch), data, training, length=64, model=model, epochs=epochs)
