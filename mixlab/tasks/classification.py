"""Classification of sentences and of pairs, single or multi-label, and regression: accuracy, F1, MCC, with intervals, and per source."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mixlab.data import finetuning, fingerprint, sources
from mixlab.data.collating import PaddingCollator
from mixlab.data.columns import Kind
from mixlab.data.labels import Labels
from mixlab.data.sampling import BucketSampler
from mixlab.errors import MixlabError
from mixlab.tasks.base import Prepared, Task, in_batches
from mixlab.tasks.baselines import commonest, linear_on_words
from mixlab.tasks.metrics import class_metrics, number_metrics

BATCH = 32
SEPARATOR = "\t"  # between the two texts of a pair on one line


class Classification(Task):
    """sequence-classification; the kind of rows is told by the data's columns."""

    heads = ("sequence-classification",)

    def prepare(self, folder: Path) -> Prepared:
        kind = self.kind()
        train = sources.read(self.job.data, kind, self.job.columns, split=self.train_split, label_kind=self.job.label_kind)
        assert train.labels is not None
        self.say(train.note)
        self.say(f"{len(train.data):,} training rows, {train.labels.kind}: {', '.join(train.labels.names) or 'numbers'}"[:200])
        valid = self.rows(None, None, train.labels)
        content = fingerprint.of_dataset(train.data)
        tokenizer = self.tokenizer(folder, content, lambda: texts_of(train.data))
        model = self.build(tokenizer, train.labels.config_fields())
        examples = finetuning.examples(train.data, tokenizer, self.job.length)
        lengths = finetuning.lengths(examples)
        sampler = BucketSampler(lengths.tolist(), self.job.training.batch_size, self.job.training.seed)
        fingerprints = {"data": content, "tokenizer": fingerprint.of_tokenizer(tokenizer)}
        full = int((lengths == self.job.length).sum())
        if full:
            self.say(f"{full:,} rows reach the {self.job.length} tokens of an example; what is beyond was cut")
        return Prepared(
            model,
            tokenizer,
            examples,
            finetuning.examples(valid.data, tokenizer, self.job.length),
            PaddingCollator(tokenizer),
            sampler=sampler,
            compute_metrics=headline(train.labels),
            fingerprints=fingerprints,
        )

    def kind(self) -> Kind:
        """As a built-in source says; else pairs where the job or a named second column says so."""
        from mixlab.data import builtin

        if self.job.data in builtin.names():
            kind = builtin.load(self.job.data, self.job.data_seed).description.kind
            if kind not in ("sentences", "pairs"):
                raise MixlabError(f"{self.job.data} holds {kind}, which have no labels; use sentences or pairs")
            return kind  # pyright: ignore[reportReturnType]
        return "pairs" if self.job.pairs or self.job.columns.text_pair else "sentences"

    def rows(self, place: str | None, split: str | None, labels: Labels) -> sources.Source:
        if place is None and split is None:
            place, split = (self.job.validation, None) if self.job.validation else (None, "validation")
        return sources.read(place or self.job.data, self.kind(), self.job.columns, split=split, labels=labels)

    def evaluate(self, model: Any, tokenizer: Any, place: str | None, split: str | None) -> dict[str, Any]:
        labels = labels_of(model.config)
        rows = self.rows(place, split, labels)
        outputs = np.concatenate(list(self._outputs(model, tokenizer, finetuning.examples(rows.data, tokenizer, self.job.length))))
        if labels.kind == "regression":
            return measured(outputs[:, 0], rows.data, labels)
        return measured((outputs > 0).astype(int) if labels.kind == "multi" else outputs.argmax(-1), rows.data, labels)

    def baselines(self, model: Any, tokenizer: Any, place: str | None, split: str | None) -> dict[str, Any]:
        labels = labels_of(model.config)
        train = sources.read(self.job.data, self.kind(), self.job.columns, split=self.train_split, labels=labels).data
        rows = self.rows(place, split, labels).data
        methods = {"commonest label": commonest, "linear model of words (TF-IDF)": linear_on_words}
        return {name: measured(method(train, rows, labels), rows, labels) for name, method in methods.items()}

    def _outputs(self, model: Any, tokenizer: Any, examples: Any) -> Iterator[np.ndarray]:
        collate = PaddingCollator(tokenizer)
        model.eval()
        for batch in in_batches(examples, BATCH):
            inputs = {name: value for name, value in collate(batch).items() if name in ("input_ids", "attention_mask")}
            with torch.no_grad():
                yield model(**inputs).logits.numpy()

    def predict(self, model: Any, tokenizer: Any, texts: Iterable[str]) -> Iterator[dict[str, Any]]:
        """The label and its probability; the two texts of a pair are separated by a tab. A text that had to be cut is `truncated`."""
        labels, most = labels_of(model.config), self.job.length
        read = _pair if self.kind() == "pairs" else _single
        for batch in in_batches(((text, read(text)) for text in texts), BATCH):
            examples = [{"input_ids": tokenizer(*parts, truncation=True, max_length=most)["input_ids"]} for _, parts in batch]
            rows = np.concatenate(list(self._outputs(model, tokenizer, examples)))
            for (text, parts), row in zip(batch, rows, strict=True):
                cut = len(tokenizer(*parts, truncation=False, verbose=False)["input_ids"]) > most
                yield {"text": text, **_answer(row, labels), **({"truncated": True} if cut else {})}


def measured(found: np.ndarray, rows: Any, labels: Labels) -> dict[str, Any]:
    """All scores of what was found for labelled rows."""
    truth = np.asarray(rows["label"])
    groups = rows["group"] if "group" in rows.column_names else None
    if labels.kind == "regression":
        return number_metrics(found, truth, groups)
    return class_metrics(found, truth.astype(int) if labels.kind == "multi" else truth, labels.names, groups)


def _single(text: str) -> list[str]:
    return [text]


def _pair(text: str) -> list[str]:
    first, separator, second = text.partition(SEPARATOR)
    if not (separator and first.strip() and second.strip()):
        raise MixlabError(f"{text[:40]!r} is one text, and the model reads pairs; write the second after a tab")
    return [first, second]


def _answer(row: np.ndarray, labels: Labels) -> dict[str, Any]:
    if labels.kind == "regression":
        return {"value": round(float(row[0]), 6)}
    if labels.kind == "multi":
        scores = 1 / (1 + np.exp(-row))
        told = {name: round(float(score), 6) for name, score in zip(labels.names, scores, strict=True)}
        return {"labels": [name for name, score in told.items() if score > 0.5], "scores": told}
    scores = np.exp(row - row.max())
    best = int(scores.argmax())
    return {"label": labels.names[best], "score": round(float(scores[best] / scores.sum()), 6)}


def texts_of(rows: Any) -> Iterator[str]:
    """All texts of labelled rows, for training a tokenizer."""
    for name in ("text", "text_pair"):
        if name in rows.column_names:
            yield from rows[name]


def labels_of(config: Any) -> Labels:
    """The labels that a model was trained with."""
    if config.problem_type == "regression":
        return Labels("regression")
    names = tuple(config.id2label[i] for i in range(len(config.id2label)))
    return Labels("multi" if config.problem_type == "multi_label_classification" else "single", names)


def headline(labels: Labels) -> Callable[[Any], dict[str, float]]:
    """The one number to watch while training."""

    def measure(found: Any) -> dict[str, float]:
        outputs, truth = np.asarray(found.predictions), np.asarray(found.label_ids)
        if labels.kind == "regression":
            return {"error": float(np.mean((outputs[:, 0] - truth) ** 2))}
        if labels.kind == "multi":
            return {"accuracy": float(((outputs > 0) == (truth > 0.5)).all(-1).mean())}
        return {"accuracy": float((outputs.argmax(-1) == truth).mean())}

    return measure
