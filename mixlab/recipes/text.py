"""Small recipes for text that finish on two cores: pretraining, next-token models, classification of sentences and pairs."""

from __future__ import annotations

from mixlab import registry
from mixlab.errors import MixlabError, unknown
from mixlab.tasks.job import Job, Vocabulary
from mixlab.training.settings import TrainingSettings


def pretrain_small(arch: str = "gmlp") -> Job:
    """Masked-language-model pretraining of the tiny preset on Python's documentation (or on `data=`), minutes on two cores.

    Not run yet.
    """
    training = TrainingSettings(steps=1500, batch_size=32, learning_rate=2e-3, warmup=100, save_every=250, evaluate_every=500)
    return Job("masked-lm", _tiny(arch), "pydocs", training, length=64)


def causal_small(arch: str = "gmlp") -> Job:
    """A next-token model of the tiny preset on Python's documentation (or on `data=`), to generate from.

    Not run yet.
    """
    training = TrainingSettings(steps=1500, batch_size=32, learning_rate=2e-3, warmup=100, save_every=250, evaluate_every=500)
    return Job("causal-lm", _tiny(arch), "pydocs", training, length=64, vocabulary=Vocabulary("bpe", 2000))


def classify(arch: str = "gmlp") -> Job:
    """Classification of sentences: the built-in generated reviews, or a table with a text and a label (`data=reviews.csv`).

    Not run yet.
    """
    training = TrainingSettings(steps=600, batch_size=32, learning_rate=1e-3, warmup=60, save_every=200, evaluate_every=200)
    return Job("sequence-classification", _tiny(arch), "sentences", training, length=64)


def classify_pairs(arch: str = "amlp") -> Job:
    """Classification of pairs of texts: the built-in facts and claims, or a table (`data=nli.csv columns.text_pair=hypothesis`).

    Not run yet.
    """
    training = TrainingSettings(steps=1500, batch_size=32, learning_rate=1e-3, warmup=100, save_every=250, evaluate_every=500)
    return Job("sequence-classification", _tiny(arch), "pairs", training, length=64)


def _tiny(arch: str) -> str:
    if arch not in registry.archs():
        raise unknown("architecture", arch, registry.archs())
    if f"{arch}-tiny" not in registry.presets(arch):
        raise MixlabError(f"{arch} has no preset {arch}-tiny for text; set preset instead")
    return f"{arch}-tiny"
