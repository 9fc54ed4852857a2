"""Question answering over long contexts: overlapping windows of n tokens, with the way back from tokens to characters.

A window is  [CLS] question [SEP] part of the context [SEP].  Neighbours share `stride` tokens, so that an answer near an edge is whole in
one of them. Every question has at least one window, whatever its length.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mixlab.data import fingerprint
from mixlab.errors import MixlabError

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import BatchEncoding, PreTrainedTokenizerFast

LAYOUT = 1  # raised when the same questions would give other windows
QUESTION = 64  # tokens of a question that are read, as in BERT; at most half of the window
NOWHERE = (-1, -1)  # offsets of a token that is not of the context


def training(questions: Dataset, tokenizer: PreTrainedTokenizerFast, length: int, stride: int = 128) -> Dataset:
    """Windows with `start_positions` and `end_positions` of the first gold answer; both 0, the first token, where the window has none."""

    def add(encoded: BatchEncoding, batch: dict[str, list[Any]], owners: list[int]) -> dict[str, list[Any]]:
        spans = []
        for window, owner in enumerate(owners):
            answers = batch["answers"][owner]
            spans.append(_span(_offsets(encoded, window, batch["context"][owner]), answers) if answers["text"] else (0, 0))
        return {"start_positions": [start for start, _ in spans], "end_positions": [end for _, end in spans]}

    return _windows(questions, tokenizer, length, stride, "training", add)


def evaluation(questions: Dataset, tokenizer: PreTrainedTokenizerFast, length: int, stride: int = 128) -> Dataset:
    """Windows with `id`, and `offsets`: the characters of the context that each token stands for, without blanks around; (-1, -1) else."""

    def add(encoded: BatchEncoding, batch: dict[str, list[Any]], owners: list[int]) -> dict[str, list[Any]]:
        offsets = [_offsets(encoded, window, batch["context"][owner]) for window, owner in enumerate(owners)]
        return {"id": [batch["id"][owner] for owner in owners], "offsets": offsets}

    return _windows(questions, tokenizer, length, stride, "evaluation", add)


def by_id(windows: Dataset) -> dict[str, list[int]]:
    """For every question's id, which windows are its own."""
    found: dict[str, list[int]] = {}
    for window, name in enumerate(windows["id"]):
        found.setdefault(name, []).append(window)
    return found


def _windows(questions: Dataset, tokenizer: PreTrainedTokenizerFast, length: int, stride: int, use: str, add: Any) -> Dataset:
    fixed = tokenizer.num_special_tokens_to_add(pair=True)
    asked = min(QUESTION, max((length - fixed) // 2, 0))
    room = length - fixed - asked  # for the context, beside the longest question
    if asked < 1 or not 0 <= stride < room:
        raise MixlabError(
            f"length {length} leaves {max(room, 0)} tokens for the context; stride is {stride}, and must be at least 0 and below that"
        )
    segments = "token_type_ids" in tokenizer.model_input_names

    def encode(batch: dict[str, list[Any]]) -> dict[str, Any]:
        encoded = tokenizer(
            [_shortened(question, tokenizer, asked) for question in batch["question"]],
            batch["context"],
            truncation="only_second",
            max_length=length,
            stride=stride,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
            return_attention_mask=False,
            return_token_type_ids=segments,
        )
        owners = encoded["overflow_to_sample_mapping"]
        kept = ["input_ids", *(["token_type_ids"] if segments else [])]
        return {**{name: encoded[name] for name in kept}, **add(encoded, batch, owners)}

    content = [fingerprint.of_dataset(questions), fingerprint.of_tokenizer(tokenizer)]
    key = fingerprint.of_settings([LAYOUT, *content, length, stride, segments, use])
    return questions.map(
        encode, batched=True, batch_size=200, remove_columns=questions.column_names, new_fingerprint=key[:16], desc="cutting windows"
    )


def _shortened(question: str, tokenizer: PreTrainedTokenizerFast, most: int) -> str:
    """A question's first tokens, as text; nearly all are short enough."""
    if len(question) <= most:
        return question
    offsets = tokenizer(question, add_special_tokens=False, return_offsets_mapping=True, truncation=False, verbose=False)["offset_mapping"]
    return question if len(offsets) <= most else question[: offsets[most - 1][1]]


def _offsets(encoded: BatchEncoding, window: int, context: str) -> list[tuple[int, int]]:
    """Where in the context each token of a window lies; blanks that a token carries are not its own."""
    out = []
    for (start, end), part in zip(encoded["offset_mapping"][window], encoded.sequence_ids(window), strict=True):
        if part != 1:
            out.append(NOWHERE)
            continue
        text = context[start:end]
        if text.strip():
            start, end = start + len(text) - len(text.lstrip()), end - len(text) + len(text.rstrip())
        out.append((start, end))
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
