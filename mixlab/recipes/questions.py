"""Question answering: small, on two cores in minutes."""

from __future__ import annotations

from typing import Any

from mixlab.recipes import SMALL, tiny
from mixlab.tasks.job import Job
from mixlab.training.settings import TrainingSettings


def answer(arch: str = "gmlp") -> Job:
    """Question answering over long contexts: the built-in reports, or SQuAD's layout (`data=train-v2.0.json validation=dev-v2.0.json`).

    Measured on SQuAD v1.1, 4,330 questions: amlp exact match 0.083 (0.076 to 0.091); random span exact match 0.006. generated
    questions: amlp exact match 0.866 (0.834 to 0.896); random span exact match 0.008, no answer exact match 0.212. generated
    questions, after the run above: amlp exact match 0.860 (0.826 to 0.888); random span exact match 0.008, no answer exact match
    0.212.
    """
    training = TrainingSettings(steps=1, batch_size=32, learning_rate=2e-3, warmup=0.1, save_every=500, evaluate_every=500, log_every=50)
    model: dict[str, Any] = {**SMALL, "hidden_dropout": 0.1}
    return Job("question-answering", tiny(arch), "questions", training, length=64, model=model, epochs=5)
