"""What every task has in common: a run's tokenizer and starting weights, and what a task must provide."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
from filelock import FileLock

from mixlab.data import fingerprint, vocabulary
from mixlab.errors import MixlabError
from mixlab.modeling.architecture import find_preset
from mixlab.modeling.auto import create, model_class
from mixlab.modeling.convert import import_model
from mixlab.modeling.loading import load_config
from mixlab.tasks.job import Job
from mixlab.training import checkpoints


@dataclass(frozen=True)
class Prepared:
    """Everything that `fit` needs."""

    model: Any
    tokenizer: Any
    train: Any
    validation: Any
    collator: Callable[[Sequence[Any]], dict[str, Any]]
    sampler: Any = None
    compute_metrics: Callable[[Any], dict[str, float]] | None = None
    conclude: Callable[[Any], None] | None = None
    fingerprints: Mapping[str, str] = field(default_factory=dict)


class Task(ABC):
    """A task of one or several heads."""

    heads: ClassVar[tuple[str, ...]]

    def __init__(self, job: Job, say: Callable[[str], None] = lambda note: None) -> None:
        self.job, self._say = job, say

    def say(self, note: str) -> None:
        """Tell the user what was found, as soon as it is known; an empty note is nothing to tell."""
        if note:
            self._say(note)

    @abstractmethod
    def prepare(self, folder: Path) -> Prepared:
        """Read the data, train or load the tokenizer, build the model."""

    @abstractmethod
    def evaluate(self, model: Any, tokenizer: Any, place: str | None, split: str | None) -> dict[str, Any]:
        """Metrics on rows of `place`, or on the run's own data."""

    @abstractmethod
    def baselines(self, model: Any, tokenizer: Any, place: str | None, split: str | None) -> dict[str, Any]:
        """What simple methods that learn from the run's training data reach on the same rows."""

    @abstractmethod
    def predict(self, model: Any, tokenizer: Any, texts: Iterable[str]) -> Iterator[dict[str, Any]]:
        """One record per text."""

    @property
    def train_split(self) -> str | None:
        """Which split to learn from; a file is one, and a name of the Hub can say which (`owner/name#split`)."""
        return None if "#" in self.job.data else "train"

    def tokenizer(self, folder: Path, data: str, texts: Callable[[], Iterable[str]]) -> Any:
        """That of the run or model to start from, or one trained on the texts, whose fingerprint is `data`.

        It is trained once and kept in the run's folder: Unigram learns another one each time, with which no run could be continued and
        no two processes could work together.
        """
        if self.job.start is not None:
            return vocabulary.load(model_folder(self.job.start), self.job.length)
        kind, size, causal = self.job.vocabulary.kind, self.job.vocabulary.size, self.job.task == "causal-lm"
        key = fingerprint.of_settings([data, kind, size, self.job.length, causal])
        kept = folder / "cache" / f"tokenizer-{key[:24]}"
        with checkpoints.writing_to(kept):
            kept.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(f"{kept}.lock"):  # one process trains, the others wait for it
                if checkpoints.problems(kept):
                    self.say(f"training a {kind} tokenizer of {size:,} entries")
                    trained = vocabulary.train(texts(), kind, size, self.job.length, causal=causal, progress=sys.stderr.isatty())
                    checkpoints.write(kept, lambda folder: _save(trained, folder))
        return vocabulary.load(kept, self.job.length)

    def build(self, tokenizer: Any, more: Mapping[str, Any] | None = None) -> Any:
        """A new model of the preset, seeded, with the vocabulary of the tokenizer; or the one to start from, with a new head."""
        torch.manual_seed(self.job.training.seed)
        if self.job.start is None:
            settings = {**vocabulary.config_fields(tokenizer), "max_position_embeddings": self.job.length, **self.job.model, **(more or {})}
            return create(self.job.preset, task=self.job.task, **settings)
        return self._continued(model_folder(self.job.start), {**self.job.model, **(more or {})})

    def _continued(self, folder: Path, more: Mapping[str, Any]) -> Any:
        config = load_config(str(folder))
        arch = config.model_type.removeprefix("mixlab-")
        if find_preset(self.job.preset)[0].name != arch:
            raise MixlabError(f"{folder} holds a {arch}, and the recipe asks for {self.job.preset}; set preset to one of {arch}")
        if self.job.task == "causal-lm" and not config.causal:
            return import_model(str(folder), task="causal-lm")[0].train()
        for name, value in more.items():
            setattr(config, name, value)
        model = model_class(arch, self.job.task).from_pretrained(folder, config=config)
        if self.job.length > model.config.length:
            model.resize_length(self.job.length)
        return model


def model_folder(place: str) -> Path:
    """A run's finished model, or a model folder itself."""
    folder = Path(place)
    if (folder / "model" / "config.json").is_file():
        return folder / "model"
    if (folder / "config.json").is_file():
        return folder
    if (folder / "recipe.json").is_file():
        raise MixlabError(f"{place} is a run that has not finished; run its training command again")
    raise MixlabError(f"{place} is neither a run nor a model folder; train one with `mixlab train`")


def _save(tokenizer: Any, folder: Path) -> None:
    tokenizer.save_pretrained(folder)


def in_batches(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    batch: list[Any] = []
    for item in items:
        batch.append(item)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch
