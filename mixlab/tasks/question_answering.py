"""Extractive question answering: the span of a context that answers a question, or none. EM and F1 by SQuAD's rules, with intervals."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mixlab.data import finetuning, fingerprint, sources, windows
from mixlab.data.collating import PaddingCollator
from mixlab.data.sampling import BucketSampler
from mixlab.errors import MixlabError
from mixlab.tasks.base import Prepared, Task, in_batches
from mixlab.tasks.job import Spans
from mixlab.tasks.spans import Found, Span, in_window, over_windows
from mixlab.tasks.squad import best_threshold, exact, f1, measured

BATCH = 32
CANDIDATES, SHOWN = 20, 5  # spans of a question that are kept, and told by a prediction
SEPARATOR = "\t"  # between a question and its document on one line
SEED = 12345  # of the baseline


class QuestionAnswering(Task):
    """question-answering, over windows of any context; v2.0's questions without an answer too."""

    heads = ("question-answering",)

    @property
    def stride(self) -> int:
        return stride_of(self.job.spans, self.job.length)

    def prepare(self, folder: Path) -> Prepared:
        train, valid = self._read(self.job.data, self.train_split), self.rows(None, None)
        self.say(train.note)
        content = fingerprint.of_dataset(train.data)
        tokenizer = self.tokenizer(folder, content, lambda: [*train.data["question"], *dict.fromkeys(train.data["context"])])
        model = self.build(tokenizer)
        examples = windows.training(train.data, tokenizer, self.job.length, self.stride)
        lengths = finetuning.lengths(examples)
        holding = int((np.asarray(examples["start_positions"]) > 0).sum())
        self.say(
            f"{len(train.data):,} questions, {len(examples):,} windows of up to {self.job.length} tokens that share {self.stride}; "
            f"{holding:,} hold the answer"
        )
        return Prepared(
            model,
            tokenizer,
            examples,
            windows.training(valid, tokenizer, self.job.length, self.stride),
            PaddingCollator(tokenizer),
            sampler=BucketSampler(lengths.tolist(), self.job.training.batch_size, self.job.training.seed),
            compute_metrics=self._headline(valid, windows.evaluation(valid, tokenizer, self.job.length, self.stride)),
            conclude=lambda trained: self._settle_threshold(trained, tokenizer, valid),
            fingerprints={"data": content, "tokenizer": fingerprint.of_tokenizer(tokenizer)},
        )

    def rows(self, place: str | None, split: str | None) -> Any:
        """Questions of a place, or of the run's own data: the validation rows unless a split says otherwise."""
        if place is None and split in (None, "validation"):
            place, split = (self.job.validation, None) if self.job.validation else (self.job.data, "validation")
        return self._read(place or self.job.data, split).data

    def _read(self, place: str, split: str | None) -> sources.Source:
        source = sources.read(place, "questions", self.job.columns, split=split)
        if not any(gold["text"] for gold in source.data["answers"]):
            raise MixlabError(f"{place}: no question has an answer; there is nothing to learn from or to measure against")
        return source

    def evaluate(self, model: Any, tokenizer: Any, place: str | None, split: str | None) -> dict[str, Any]:
        """EM and F1; with unanswerable questions also the threshold in use, and the best ones that these rows would have had."""
        rows = self.rows(place, split)
        found, golds = self._found(model, tokenizer, rows), _golds(rows)
        threshold = model.config.null_threshold
        result = measured(_texts(rows, found, threshold), golds)
        if not all(golds):
            result |= {"null_threshold": threshold, "best_null_threshold": _thresholds(rows, found)}
        return result

    def baselines(self, model: Any, tokenizer: Any, place: str | None, split: str | None) -> dict[str, Any]:
        """A random span of words, as long as answers of the training rows are; where some questions have none, never to answer."""
        lengths = [len(gold["text"][0].split()) for gold in self._read(self.job.data, self.train_split).data["answers"] if gold["text"]]
        rows, draw = self.rows(place, split), np.random.default_rng(SEED)
        golds = _golds(rows)
        result = {"random span": measured([_random_span(context, lengths, draw) for context in rows["context"]], golds)}
        if not all(golds):
            result["no answer"] = measured([""] * len(golds), golds)
        return result

    def _found(self, model: Any, tokenizer: Any, rows: Any) -> list[Found]:
        """Of every question, in order."""
        cut: Any = windows.evaluation(rows, tokenizer, self.job.length, self.stride)
        found = decoded(cut, _logits(model, tokenizer, cut), self.job.spans)
        return [found[name] for name in rows["id"]]

    def _settle_threshold(self, model: Any, tokenizer: Any, valid: Any) -> None:
        """Tuned on the validation rows and kept with the model; None when all of them have an answer."""
        model.config.null_threshold = None
        if not all(_golds(valid)):
            training = model.training
            model.config.null_threshold = _thresholds(valid, self._found(model, tokenizer, valid))["f1"]["threshold"]
            model.train(training)

    def _headline(self, valid: Any, cut: Any) -> Callable[[Any], dict[str, float]]:
        """EM and F1 while training, each question answered, or left without, as its best score says."""

        def measure(given: Any) -> dict[str, float]:
            found = decoded(cut, zip(*given.predictions, strict=True), self.job.spans)
            texts = _texts(valid, [found[name] for name in valid["id"]], None if all(_golds(valid)) else 0.0)
            pairs = list(zip(texts, _golds(valid), strict=True))
            return {"exact": float(np.mean([exact(*pair) for pair in pairs])), "f1": float(np.mean([f1(*pair) for pair in pairs]))}

        return measure

    def predict(self, model: Any, tokenizer: Any, texts: Iterable[str]) -> Iterator[dict[str, Any]]:
        """Question and document with a tab between them, or a JSON object with `question` and `context`."""
        for text in texts:
            row = _asked(text)
            told = ask(model, tokenizer, row["question"], row["context"], self.job.spans)
            yield {**({"id": row["id"]} if "id" in row else {}), "question": row["question"], **told}


def ask(model: Any, tokenizer: Any, question: str, document: str, spans: Spans | None = None) -> dict[str, Any]:
    """The answer to a question in a document of any length: its text, its characters, its probability, and the next best candidates.

    The text is "" and the place None where the model's threshold says that the document holds no answer.
    """
    for name, text in (("question", question), ("document", document)):
        if not text.strip():
            raise MixlabError(f"the {name} is empty; there is nothing to answer")
    spans, length = spans or Spans(), min(model.config.length, tokenizer.model_max_length)
    cut = windows.of_question(question, question, document, tokenizer, length, stride_of(spans, length))
    found = decoded(cut, _logits(model, tokenizer, cut), spans)[question]
    chosen = found.answer(model.config.null_threshold)
    candidates = [_told(span, document) for span in found.spans[:SHOWN]]
    nothing = {"answer": "", "start": None, "end": None, "score": round(math.exp(found.null), 6)}
    return {**(_told(chosen, document) if chosen else nothing), "candidates": candidates}


def stride_of(spans: Spans, length: int) -> int:
    return length // 4 if spans.stride is None else spans.stride


def decoded(cut: Iterable[Mapping[str, Any]], logits: Iterable[tuple[np.ndarray, np.ndarray]], spans: Spans) -> dict[str, Found]:
    """What the windows say of each question, by id. Every question has a window, so every id is answered."""
    by_id: dict[str, list[tuple[list[Span], float]]] = {}
    for window, (start, end) in zip(cut, logits, strict=True):
        n = len(window["input_ids"])
        said = in_window(start[:n], end[:n], np.asarray(window["offsets"]), spans.longest, CANDIDATES)
        by_id.setdefault(window["id"], []).append(said)
    return {name: over_windows(said, CANDIDATES) for name, said in by_id.items()}


def _logits(model: Any, tokenizer: Any, cut: Iterable[Mapping[str, Any]]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Of the start and of the end, window by window."""
    collate = PaddingCollator(tokenizer)
    model.eval()
    for batch in in_batches(cut, BATCH):
        inputs = {name: value.to(model.device) for name, value in collate(batch).items()}
        with torch.no_grad():
            output = model(**inputs)
        yield from zip(output.start_logits.cpu().numpy(), output.end_logits.cpu().numpy(), strict=True)


def _texts(rows: Any, found: Sequence[Found], threshold: float | None) -> list[str]:
    """The answers as texts."""
    chosen = (one.answer(threshold) for one in found)
    return [context[span.start : span.end] if span else "" for context, span in zip(rows["context"], chosen, strict=True)]


def _golds(rows: Any) -> list[list[str]]:
    return [gold["text"] for gold in rows["answers"]]


def _thresholds(rows: Any, found: Sequence[Found]) -> dict[str, dict[str, float]]:
    """For EM and for F1, the threshold that is best on these rows and what it reaches."""
    margins, golds, texts = np.array([one.margin for one in found]), _golds(rows), _texts(rows, found, None)
    result = {}
    for name, score in (("exact", exact), ("f1", f1)):
        answered = np.array([score(*pair) for pair in zip(texts, golds, strict=True)])
        threshold, reached = best_threshold(margins, answered, np.array([score("", gold) for gold in golds]))
        result[name] = {"threshold": threshold, "reaches": reached}
    return result


def _told(span: Span, document: str) -> dict[str, Any]:
    return {"answer": document[span.start : span.end], "start": span.start, "end": span.end, "score": round(math.exp(span.score), 6)}


def _random_span(context: str, lengths: Sequence[int], draw: np.random.Generator) -> str:
    words = list(re.finditer(r"\S+", context))
    size = min(int(draw.choice(lengths)), len(words))
    first = int(draw.integers(len(words) - size + 1))
    return context[words[first].start() : words[first + size - 1].end()]


def _asked(text: str) -> dict[str, str]:
    """A line with a question and its document."""
    if not text.lstrip().startswith("{"):
        question, separator, document = text.partition(SEPARATOR)
        if not separator:
            raise MixlabError(f"{text[:40]!r} has no document; write it after the question and a tab, or give --document FILE")
        return {"question": question, "context": document}
    try:
        row = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MixlabError(f"{text[:40]!r} is not JSON ({error}); write an object with question and context on one line") from error
    for name in ("question", "context"):
        if not isinstance(row.get(name), str):
            raise MixlabError(f"{text[:40]!r} has no text named {name!r}; write an object with question and context")
    return row
