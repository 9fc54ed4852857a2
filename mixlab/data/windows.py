"""Question answering over long contexts: overlapping windows of n tokens, with the way back from tokens to characters.

A window is  [CLS] question [SEP] part of the context [SEP].  Neighbours share `stride` tokens, so that an answer near an edge is whole in
one of them. Every question has at least one window, whatever its length.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mixlab.data import fingerprint
from mixlab.errors import MixlabError

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import BatchEncoding, PreTrainedTokenizerFast

LAYOUT = 2  # raised when the same questions would give other windows
QUESTION = 64  # tokens of a question that are read, as in BERT; at most half of the window
NOWHERE = (-1, -1)  # offsets of a token that is not of the context, or of blanks alone


def training(questions: Dataset, tokenizer: PreTrainedTokenizerFast, length: int, stride: int = 128) -> Dataset:
    """Windows with `start_positions` and `end_positions` of the first gold answer; both 0, the first token, where the window has none."""
    cut = _Cut(tokenizer, length, stride)

    def encode(batch: dict[str, list[Any]]) -> dict[str, Any]:
        encoded, owners = cut(batch)
        spans = []
        for window, owner in enumerate(owners):
            answers = batch["answers"][owner]
            spans.append(_span(_offsets(encoded, window, batch["context"][owner]), answers) if answers["text"] else (0, 0))
        positions = {"start_positions": [start for start, _ in spans], "end_positions": [end for _, end in spans]}
        return {**cut.inputs(encoded), **positions}

    return cut.all_of(questions, "training", encode)


def evaluation(questions: Dataset, tokenizer: PreTrainedTokenizerFast, length: int, stride: int = 128) -> Dataset:
    """Windows with `id`, and `offsets`: the characters of the context that each token stands for, without blanks around; (-1, -1) else."""
    cut = _Cut(tokenizer, length, stride)
    return cut.all_of(questions, "evaluation", lambda batch: _with_offsets(cut, batch))


def of_question(
    name: str, question: str, context: str, tokenizer: PreTrainedTokenizerFast, length: int, stride: int
) -> list[dict[str, Any]]:
    """The same windows of a single question."""
    columns = _with_offsets(_Cut(tokenizer, length, stride), {"id": [name], "question": [question], "context": [context]})
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def by_id(windows: Dataset) -> dict[str, list[int]]:
    """For every question's id, which windows are its own."""
    found: dict[str, list[int]] = {}
    for window, name in enumerate(windows["id"]):
        found.setdefault(name, []).append(window)
    return found


class _Cut:
    """Windows of `length` tokens that share `stride` of the context."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, length: int, stride: int) -> None:
        fixed = tokenizer.num_special_tokens_to_add(pair=True)
        asked = min(QUESTION, max((length - fixed) // 2, 0))
        room = length - fixed - asked  # for the context, beside the longest question
        if asked < 1 or not 0 <= stride < room:
            raise MixlabError(
                f"length {length} leaves {max(room, 0)} tokens for the context; stride is {stride}, and must be at least 0 and below that"
            )
        self.tokenizer, self.length, self.stride, self.asked = tokenizer, length, stride, asked
        self.segments = "token_type_ids" in tokenizer.model_input_names

    def __call__(self, batch: dict[str, list[Any]]) -> tuple[BatchEncoding, list[int]]:
        """Windows of some questions, and which question each belongs to."""
        encoded = self.tokenizer(
            [_shortened(question, self.tokenizer, self.asked) for question in batch["question"]],
            batch["context"],
            truncation="only_second",
            max_length=self.length,
            stride=self.stride,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
            return_attention_mask=False,
            return_token_type_ids=self.segments,
        )
        return encoded, encoded["overflow_to_sample_mapping"]

    def inputs(self, encoded: BatchEncoding) -> dict[str, Any]:
        """What the model reads."""
        return {name: encoded[name] for name in ("input_ids", *(["token_type_ids"] if self.segments else []))}

    def all_of(self, questions: Dataset, use: str, encode: Callable[[dict[str, list[Any]]], dict[str, Any]]) -> Dataset:
        content = [fingerprint.of_dataset(questions), fingerprint.of_tokenizer(self.tokenizer)]
        key = fingerprint.of_settings([LAYOUT, *content, self.length, self.stride, self.segments, use])[:16]
        columns = questions.column_names
        return questions.map(encode, batched=True, batch_size=200, remove_columns=columns, new_fingerprint=key, desc="cutting windows")


def _with_offsets(cut: _Cut, batch: dict[str, list[Any]]) -> dict[str, Any]:
    encoded, owners = cut(batch)
    offsets = [_offsets(encoded, window, batch["context"][owner]) for window, owner in enumerate(owners)]
    return {**cut.inputs(encoded), "id": [batch["id"][owner] for owner in owners], "offsets": offsets}


def _shortened(question: str, tokenizer: PreTrainedTokenizerFast, most: int) -> str:
    """A question's first tokens, as text; nearly all are short enough."""
    while len(question.encode()) > most:  # no token is less than a byte
        read = tokenizer(question, add_special_tokens=False, return_offsets_mapping=True, truncation=False, verbose=False)
        if len(read["offset_mapping"]) <= most:
            break
        shorter = question[: read["offset_mapping"][most - 1][1]]
        question = shorter if len(shorter) < len(question) else question[:-1]  # several tokens can stand for one character
    return question


def _offsets(encoded: BatchEncoding, window: int, context: str) -> list[tuple[int, int]]:
    """Where in the context each token of a window lies; blanks that a token carries are not its own."""
    out = []
    for (start, end), part in zip(encoded["offset_mapping"][window], encoded.sequence_ids(window), strict=True):
        if part != 1:
            out.append(NOWHERE)
            continue
        text = context[start:end]
        start, end = start + len(text) - len(text.lstrip()), end - len(text) + len(text.rstrip())
        out.append((start, end) if start < end else NOWHERE)
    return out


def _span(offsets: list[tuple[int, int]], answers: dict[str, list[Any]]) -> tuple[int, int]:
    """The first and last token of the first answer, or (0, 0) if the window does not hold all of it."""
    first, text = answers["answer_start"][0], answers["text"][0]
    first, text = first + len(text) - len(text.lstrip()), text.strip()
    last = first + len(text)
    inside = [token for token, place in enumerate(offsets) if place != NOWHERE]
    if not inside or offsets[inside[0]][0] > first or offsets[inside[-1]][1] < last:
        return 0, 0
    covered = [token for token in inside if offsets[token][1] > first and offsets[token][0] < last]
    return (covered[0], covered[-1]) if covered else (0, 0)
