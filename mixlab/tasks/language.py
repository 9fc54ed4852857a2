"""Language modelling: masked tokens from both sides, or next tokens. Measured by perplexity; predicts words, or continues a text."""

from __future__ import annotations

import contextlib
import math
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader

from mixlab.data import fingerprint, pretraining, sources
from mixlab.data.collating import IGNORED
from mixlab.data.masking import MaskingCollator, NextTokenCollator
from mixlab.data.sampling import Keyed
from mixlab.errors import MixlabError
from mixlab.tasks.base import Prepared, Task
from mixlab.tasks.trigram import Trigram

EVALUATION_SEED = 12345  # of the masking that every evaluation uses
BATCH = 32


class LanguageModelling(Task):
    """masked-lm and causal-lm."""

    heads = ("masked-lm", "causal-lm")

    @property
    def causal(self) -> bool:
        return self.job.task == "causal-lm"

    def prepare(self, folder: Path) -> Prepared:
        train, held_out = self.read(self.job.data, self.train_split), self.validation()
        self.say(train.note)
        content = fingerprint.of_dataset(train.data)
        tokenizer = self.tokenizer(folder, content, lambda: train.data["text"])
        model = self.build(tokenizer, {} if self.causal else {"labelled_logits_only": True})
        cache = folder / "cache"
        examples = pretraining.chunks(train.data, tokenizer, self.job.length, cache, causal=self.causal, progress=True)
        valid = pretraining.chunks(held_out.data, tokenizer, self.job.length, cache, causal=self.causal)
        fingerprints = {"data": content, "tokenizer": fingerprint.of_tokenizer(tokenizer)}
        counts = pretraining.about(examples)
        self.say(f"{counts['documents']:,} documents, {counts['tokens']:,} tokens, {counts['examples']:,} examples of {self.job.length}")
        return Prepared(model, tokenizer, examples, valid, self.collator(tokenizer), fingerprints=fingerprints)

    def read(self, place: str, split: str | None) -> sources.Source:
        return sources.read(place, "texts", self.job.columns, split=split, documents=self.job.documents)

    def validation(self) -> sources.Source:
        if self.job.validation is not None:
            return self.read(self.job.validation, None)
        return self.read(self.job.data, "validation")

    def collator(self, tokenizer: Any, seed: int | None = None) -> Any:
        seed = self.job.training.seed if seed is None else seed
        if self.causal:
            return NextTokenCollator(tokenizer, seed)
        return MaskingCollator(tokenizer, seed, self.job.masking.rate, self.job.masking.unit)

    def evaluate(self, model: Any, tokenizer: Any, place: str | None, split: str | None) -> dict[str, Any]:
        """Perplexity per token; for causal models also bits per character, each token seen with at least half a window before it."""
        model.eval()
        with self._examples(tokenizer, self._texts(place, split)) as examples, torch.no_grad():
            if self.causal:
                return self._next_token_metrics(model, examples)
            return self._masked_metrics(model, examples, tokenizer)

    def baselines(self, model: Any, tokenizer: Any, place: str | None, split: str | None) -> dict[str, Any]:
        """A 3-gram of the training tokens on the same tokens. For a masked one it sees the two tokens before it as they were."""
        train = self.read(self.job.data, self.train_split)
        with self._examples(tokenizer, train) as seen, self._examples(tokenizer, self._texts(place, split)) as examples:
            nats = -Trigram(self._stream(seen), len(tokenizer)).log_probabilities(self._stream(examples))
            if self.causal:
                bits = float(nats[1:].sum()) / math.log(2) / pretraining.about(examples)["characters"]
                return {"3-gram": {"perplexity": math.exp(nats[1:].mean()), "bits_per_character": bits}}
            return {"3-gram": {"perplexity": math.exp(nats[self._labelled(examples, tokenizer)].mean())}}

    def _stream(self, examples: Any) -> np.ndarray:
        """The tokens of all examples as one text, without the special ones around each."""
        edge = 0 if self.causal else 1
        return np.concatenate([row[edge : len(row) - edge] for row in examples["input_ids"]])

    def _labelled(self, examples: Any, tokenizer: Any) -> np.ndarray:
        """Which tokens of the stream an evaluation asks for."""
        collate = self.collator(tokenizer, EVALUATION_SEED)
        rows = (collate([example])["labels"][0, 1:-1].numpy() != IGNORED for example in Keyed(examples))
        return np.concatenate(list(rows))

    def _texts(self, place: str | None, split: str | None) -> sources.Source:
        if place is None and split in (None, "validation"):
            return self.validation()
        return self.read(place or self.job.data, split)

    @contextlib.contextmanager
    def _examples(self, tokenizer: Any, texts: sources.Source) -> Iterator[Any]:
        """Examples of texts, for as long as they are looked at."""
        with tempfile.TemporaryDirectory() as scratch:
            yield pretraining.chunks(texts.data, tokenizer, self.job.length, scratch, causal=self.causal)

    def _masked_metrics(self, model: Any, examples: Any, tokenizer: Any) -> dict[str, Any]:
        """On one fixed masking, the same for every model with this tokenizer."""
        total, count = 0.0, 0
        for batch in DataLoader(Keyed(examples), BATCH, collate_fn=self.collator(tokenizer, EVALUATION_SEED)):
            labelled = int((batch["labels"] != IGNORED).sum())
            total, count = total + float(model(**batch).loss) * labelled, count + labelled
        if not count:
            raise MixlabError("the text to measure on holds no token that can be masked; give more of it, or text like the training text")
        return {"perplexity": math.exp(total / count), "loss": total / count, "labelled_tokens": count}

    def _next_token_metrics(self, model: Any, examples: Any) -> dict[str, Any]:
        """Windows that overlap by half, so that all but the first tokens have at least half a window before them."""
        ids = torch.tensor([token for row in examples["input_ids"] for token in row])
        if len(ids) < 2:
            raise MixlabError("the text is shorter than two tokens; there is nothing to predict")
        n, total, count, end = self.job.length, 0.0, 0, 0
        while end < len(ids):
            start = max(0, end - n // 2) if end else 0
            window = ids[start : start + n]
            losses = F.cross_entropy(model(input_ids=window[None]).logits[0, :-1], window[1:], reduction="none")
            fresh = losses[max(end - start - 1, 0) :]
            total, count, end = total + float(fresh.sum()), count + len(fresh), start + len(window)
        bits = total / math.log(2) / pretraining.about(examples)["characters"]
        return {"perplexity": math.exp(total / count), "loss": total / count, "bits_per_character": bits, "tokens": count}

    def predict(self, model: Any, tokenizer: Any, texts: Iterable[str]) -> Iterator[dict[str, Any]]:
        """For each [MASK] of a text, the five likeliest tokens; a causal model gives the likeliest next tokens."""
        model.eval()
        for text in texts:
            ids = tokenizer(text, return_tensors="pt", truncation=False, verbose=False)["input_ids"]
            places = [-1] if self.causal else (ids[0] == tokenizer.mask_token_id).nonzero()[:, 0].tolist()
            if not places:
                raise MixlabError(f"{text[:40]!r} has no {tokenizer.mask_token}; write it where a word is to be filled in")
            with torch.no_grad():
                logits = model(input_ids=ids).logits[0]
            found = []
            for place in places:
                best = logits[place].softmax(-1).topk(5)
                pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
                found.append([{"token": tokenizer.decode([token]), "score": round(score, 6)} for token, score in pairs])
            yield {"text": text, "next" if self.causal else "masked": found}
