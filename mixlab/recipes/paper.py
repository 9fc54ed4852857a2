"""The settings of "Pay Attention to MLPs" (its Tables 8 and 9): for clusters. `mixlab train NAME --dry-run` says what one would cost.

Dropout in finetuning and the warm-up share are not printed in the paper; they are BERT's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mixlab.errors import unknown
from mixlab.tasks.job import Job, Vocabulary
from mixlab.training.settings import TrainingSettings

ADAMW: dict[str, Any] = {"weight_decay": 0.01, "betas": (0.9, 0.999), "eps": 1e-6, "clip": 0.0}
PRETRAINED = {"gmlp": "gmlp-base", "amlp": "amlp-base", "bert": "bert-base"}
ABLATED = {"gmlp": "gmlp-l36", "amlp": "amlp-base", "bert": "bert-base"}
DROPOUT = {
    "gmlp": {"hidden_dropout": 0.1},
    "amlp": {"hidden_dropout": 0.1, "attention_dropout": 0.1},
    "bert": {"hidden_dropout": 0.1, "attention_dropout": 0.1},
}


def paper_ablation(arch: str = "gmlp") -> Job:
    """Masked-language-model pretraining as in the paper's Tables 3 and 4: 128 tokens, 2,048 sequences a step, news of C4.

    Not run: with gmlp-l36, 1.5e+14 FLOPs a step, 1.9e+19 for all 125,000.
    """
    training = TrainingSettings(steps=125_000, batch_size=2048, learning_rate=7e-4, warmup=10_000, save_every=5000, log_every=100, **ADAMW)
    return _pretrain(_of(ABLATED, arch), "allenai/c4:realnewslike", 128, training)


def paper_pretrain(arch: str = "gmlp") -> Job:
    """Masked-language-model pretraining as in the paper's Tables 5 and 6: 512 tokens, 256 sequences a step, all of English C4.

    Not run: with gmlp-base, 1.2e+14 FLOPs a step, 1.2e+20 for all 1,000,000.
    """
    training = TrainingSettings(
        steps=1_000_000, batch_size=256, learning_rate=1e-4, warmup=10_000, save_every=10_000, log_every=100, **ADAMW
    )
    return _pretrain(_of(PRETRAINED, arch), "allenai/c4:en", 512, training)


def paper_sst2(arch: str = "gmlp") -> Job:
    """Finetuning on SST-2 from `start=RUN`, as in the paper; `--runs 5` for its median. It also tried 1e-5 and 3e-5, and batches of 16.

    Not run: with gmlp-base, 3e+12 FLOPs a step, 5 passes over the data.
    """
    return _finetune(arch, "nyu-mll/glue:sst2")


def paper_mnli(arch: str = "gmlp") -> Job:
    """Finetuning on MNLI from `start=RUN`, as in the paper, measured on the matched genres; `--runs 5` for its median.

    Not run: with gmlp-base, 3e+12 FLOPs a step, 5 passes over the data.
    """
    return _finetune(arch, "nyu-mll/glue:mnli", pairs=True, validation="nyu-mll/glue:mnli#validation_matched")


def paper_squad(arch: str = "gmlp") -> Job:
    """Finetuning on SQuAD v1.1 from `start=RUN`, as in the paper (`data=rajpurkar/squad_v2` for v2.0); `--runs 5` for its median.

    Not run: with gmlp-base, 1.5e+13 FLOPs a step, 1.2e+17 for all 8,000.
    """
    training = TrainingSettings(steps=8000, batch_size=32, learning_rate=5e-5, warmup=1000, save_every=1000, **ADAMW)
    return Job(
        "question-answering",
        _of(PRETRAINED, arch),
        "rajpurkar/squad",
        training,
        length=512,
        model=DROPOUT[arch],
        vocabulary=_sentencepiece(),
    )


def _pretrain(preset: str, data: str, length: int, training: TrainingSettings) -> Job:
    return Job("masked-lm", preset, data, training, length=length, vocabulary=_sentencepiece())


def _finetune(arch: str, data: str, **more: Any) -> Job:
    training = TrainingSettings(steps=1, batch_size=32, learning_rate=2e-5, warmup=0.1, save_every=1000, **ADAMW)
    preset, vocabulary = _of(PRETRAINED, arch), _sentencepiece()
    return Job("sequence-classification", preset, data, training, length=128, model=DROPOUT[arch], vocabulary=vocabulary, epochs=5, **more)


def _sentencepiece() -> Vocabulary:
    """The paper's 32,000 cased pieces."""
    return Vocabulary("unigram", 32000)


def _of(presets: Mapping[str, str], arch: str) -> str:
    if arch not in presets:
        raise unknown("architecture of the paper", arch, presets)
    return presets[arch]
