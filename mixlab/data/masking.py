"""Targets of pretraining: masked tokens, next tokens, or what follows a prefix; what is drawn depends on (seed, epoch, index) alone.

So a batch is the same in whichever worker, process or resumed run it is built. Examples carry `index` and `epoch`, which `Keyed` adds.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
import torch
from torch import Tensor

from mixlab.data import draws
from mixlab.data.collating import IGNORED, attention_mask, pad, pad_id
from mixlab.errors import MixlabError, unknown

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

UNITS = ("token", "word", "span")
SPAN_ENDS, LONGEST_SPAN = 0.2, 10  # SpanBERT's: after each token a span ends with this probability, and at 10 tokens anyway


class MaskingCollator:
    """Chooses `rate` of each text's tokens (at least one): 80% become the mask token, 10% a random one, 10% stay; those are the labels.

    unit "token" chooses tokens one by one, "word" all tokens of a word, "span" runs of tokens, each with one fate. Special tokens are never
    chosen. An attention mask is given where a text is shorter than the others.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerFast,
        seed: int,
        rate: float = 0.15,
        unit: Literal["token", "word", "span"] = "token",
        masked: float = 0.8,
        random: float = 0.1,
    ) -> None:
        if unit not in UNITS:
            raise unknown("unit of masking", unit, UNITS)
        if not 0.0 < rate <= 1.0:
            raise MixlabError(f"rate is {rate}; it must be above 0 and at most 1")
        if masked < 0.0 or random < 0.0 or masked + random > 1.0:
            raise MixlabError(f"masked {masked} and random {random} are shares; their sum must be at most 1")
        if tokenizer.mask_token_id is None:
            raise MixlabError("the tokenizer has no mask token; train one, or pretrain with next-token targets")
        self.seed, self.rate, self.unit, self.masked, self.random = seed, rate, unit, masked, random
        self.pad, self.mask = pad_id(tokenizer), cast(int, tokenizer.mask_token_id)
        self.special = np.zeros(len(tokenizer), bool)
        self.special[tokenizer.all_special_ids] = True
        self.ordinary = np.flatnonzero(~self.special)
        self.joints = word_joints(tokenizer) if unit == "word" else None

    def __call__(self, examples: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        pairs = [self._mask(np.asarray(example["input_ids"], np.int64), *_key(example)) for example in examples]
        width = max(len(ids) for ids, _ in pairs)
        batch = {
            "input_ids": torch.from_numpy(pad([ids for ids, _ in pairs], width, self.pad)),
            "labels": torch.from_numpy(pad([labels for _, labels in pairs], width, IGNORED)),
        }
        return _with_mask(batch, [len(ids) for ids, _ in pairs], width)

    def _mask(self, ids: np.ndarray, epoch: int, index: int) -> tuple[np.ndarray, np.ndarray]:
        """One text with its labels."""
        open_ = np.flatnonzero(~self.special[ids])
        labels = np.full(len(ids), IGNORED, np.int64)
        if len(open_) == 0:
            return ids, labels
        order, fate, choice, extent = draws.uniform(self.seed, draws.MASKING, epoch, index, 4 * len(ids)).reshape(4, -1)
        budget = max(1, round(self.rate * len(open_)))
        if self.unit == "token":
            chosen = open_[np.argsort(order[open_], kind="stable")[:budget]]
        elif self.unit == "word":
            chosen = self._words(ids, open_, order, budget)
        else:
            chosen, starts = _spans(open_, order, extent, budget)
            fate[chosen] = fate[starts]
        labels[chosen] = ids[chosen]
        out, drawn = ids.copy(), fate[chosen]
        out[chosen[drawn < self.masked]] = self.mask
        swapped = chosen[(drawn >= self.masked) & (drawn < self.masked + self.random)]
        out[swapped] = self.ordinary[(choice[swapped] * len(self.ordinary)).astype(np.int64)]
        return out, labels

    def _words(self, ids: np.ndarray, open_: np.ndarray, order: np.ndarray, budget: int) -> np.ndarray:
        """Whole words in random order; one that would pass the budget is left out, unless it is the first."""
        assert self.joints is not None
        goes_on, may_go_on = self.joints
        starts = ~(goes_on[ids[open_]] & may_go_on[ids[open_ - 1]]) | (np.diff(open_, prepend=-2) > 1)
        words = np.split(open_, np.flatnonzero(starts)[1:])
        chosen: list[np.ndarray] = []
        left = budget
        for word in sorted(words, key=lambda word: order[word[0]]):
            if len(word) <= left or not chosen:
                chosen.append(word)
                left -= len(word)
            if left <= 0:
                break
        return np.concatenate(chosen)


class NextTokenCollator:
    """The text itself as labels; the model shifts them. With `prefix`, what precedes is read but not scored.

    A text's prefix has `prefix_length` tokens where the example brings that number; otherwise its length is drawn, from 1 to all but one.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, seed: int = 0, prefix: bool = False) -> None:
        self.pad, self.seed, self.prefix = pad_id(tokenizer), seed, prefix

    def __call__(self, examples: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        rows = [np.asarray(example["input_ids"], np.int64) for example in examples]
        width = max(len(row) for row in rows)
        labels = pad(rows, width, IGNORED)
        if self.prefix:
            for row, example in zip(labels, examples, strict=True):
                row[: self._prefix(example)] = IGNORED
        batch = {"input_ids": torch.from_numpy(pad(rows, width, self.pad)), "labels": torch.from_numpy(labels)}
        return _with_mask(batch, [len(row) for row in rows], width)

    def _prefix(self, example: dict[str, Any]) -> int:
        if "prefix_length" in example:
            return int(example["prefix_length"])
        choices = max(len(example["input_ids"]) - 1, 1)
        epoch, index = _key(example)
        return 1 + int(draws.uniform(self.seed, draws.PREFIX, epoch, index, 1)[0] * choices)


def word_joints(tokenizer: PreTrainedTokenizerFast) -> tuple[np.ndarray, np.ndarray]:
    """For every id, whether its token can go on with a word, and whether a word can go on after it; both hold inside a word.

    WordPiece marks its tokens ("##ing"). Elsewhere a word is a run of letters and digits, and a blank starts the next.
    """
    model = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    tokens = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    if model.get("type") == "WordPiece":
        return np.array([token.startswith(model["continuing_subword_prefix"]) for token in tokens]), np.ones(len(tokens), bool)
    texts = tokenizer.batch_decode([[i] for i in range(len(tokenizer))])
    goes_on = [token[0] not in "Ġ▁" and _inside_word(text[:1]) for token, text in zip(tokens, texts, strict=True)]
    return np.array(goes_on), np.array([_inside_word(text[-1:]) for text in texts])


def _inside_word(character: str) -> bool:
    return character.isalnum() or character == "\ufffd"  # what a piece of a character decodes to


def _spans(open_: np.ndarray, order: np.ndarray, extent: np.ndarray, budget: int) -> tuple[np.ndarray, np.ndarray]:
    """Runs of tokens from random starts until the budget is spent; of each token its place and the start of its run."""
    lengths = 1 + np.floor(np.log1p(-extent) / np.log1p(-SPAN_ENDS)).astype(np.int64)
    start_of: dict[int, int] = {}
    allowed = set(open_.tolist())
    for start in open_[np.argsort(order[open_], kind="stable")].tolist():
        for place in range(start, start + min(int(lengths[start]), LONGEST_SPAN)):
            if place not in allowed or len(start_of) == budget:
                break
            start_of.setdefault(place, start)
        if len(start_of) == budget:
            break
    return np.array(list(start_of)), np.array(list(start_of.values()))


def _key(example: dict[str, Any]) -> tuple[int, int]:
    if "index" not in example or "epoch" not in example:
        raise MixlabError("an example has no index and epoch, which masking is drawn from; wrap the dataset in Keyed")
    return int(example["epoch"]), int(example["index"])


def _with_mask(batch: dict[str, Tensor], lengths: list[int], width: int) -> dict[str, Tensor]:
    if min(lengths) < width:
        batch["attention_mask"] = attention_mask(lengths, width)
    return batch
