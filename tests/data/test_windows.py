"""Windows over long contexts: every question and every character has one, and answers come back as they were written."""

from __future__ import annotations

from typing import Any

import pytest
from datasets import Dataset
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from mixlab.data import vocabulary, windows
from mixlab.errors import MixlabError
from tests.data.conftest import TEXTS

WORDS = " ".join(TEXTS[:4]).split()
TOKENIZERS = {kind: vocabulary.train(TEXTS, kind, 400, 64, progress=False) for kind in ("wordpiece", "bpe")}


def asked(*rows: tuple[str, str, str | None]) -> Dataset:
    """Rows of (question, context, answer)."""
    answers = [{"text": [a] if a else [], "answer_start": [c.index(a)] if a else []} for _, c, a in rows]
    return Dataset.from_dict(
        {"id": [f"q{i}" for i in range(len(rows))], "question": [r[0] for r in rows], "context": [r[1] for r in rows], "answers": answers}
    )


def answers_found(rows: Dataset, tokenizer: PreTrainedTokenizerFast, length: int, stride: int) -> dict[str, set[str]]:
    """What the targets of training say, read back through the offsets of evaluation."""
    train, evaluate = windows.training(rows, tokenizer, length, stride), windows.evaluation(rows, tokenizer, length, stride)
    contexts = dict(zip(rows["id"], rows["context"], strict=True))
    assert list(train["input_ids"]) == list(evaluate["input_ids"])
    found: dict[str, set[str]] = {name: set() for name in rows["id"]}
    for target, window in zip(train, evaluate, strict=True):
        assert len(window["offsets"]) == len(window["input_ids"]) <= length
        start, end = target["start_positions"], target["end_positions"]
        if start:
            found[window["id"]].add(contexts[window["id"]][window["offsets"][start][0] : window["offsets"][end][1]])
        else:
            assert end == 0
    return found


@settings(max_examples=50, derandomize=True, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 30), st.integers(1, 200), st.floats(0, 1), st.integers(1, 4)), min_size=1, max_size=4),
    st.sampled_from(sorted(TOKENIZERS)),
    st.integers(40, 90),
)
def test_answers_come_back(shapes: list[tuple[int, int, float, int]], kind: str, length: int) -> None:
    rows, tokenizer = [], TOKENIZERS[kind]
    for question, context, place, size in shapes:
        body = [f"{WORDS[(i * 7) % len(WORDS)]} {i}" for i in range(context)]
        start = int(place * (context - 1))
        rows.append((" ".join(WORDS[:question]) + "?", " ".join(body), " ".join(body[start : start + size])))
    data = asked(*rows)
    stride = 18
    found = answers_found(data, tokenizer, length, stride)
    for name, (_, _, answer) in zip(data["id"], rows, strict=True):
        tokens = len(tokenizer.tokenize(answer))
        assert found[name] <= {answer}
        assert found[name] or tokens > stride


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("context", ["short", " ".join(WORDS * 9), "   blanks   around   ", "漢字 é 😀 " * 40])
def test_every_id_and_every_character_has_a_window(kind: str, context: str) -> None:
    data = asked(("who?", context, None), ("why? " * 200, context, None))
    made = windows.evaluation(data, TOKENIZERS[kind], 48, 8)
    owners = windows.by_id(made)
    assert list(owners) == ["q0", "q1"]
    assert sorted(i for own in owners.values() for i in own) == list(range(len(made)))
    for own in owners.values():
        covered = set()
        for i in own:
            for start, end in made[i]["offsets"]:
                covered |= set(range(start, end))
        assert {i for i, character in enumerate(context) if not character.isspace()} <= covered


def test_questions_without_an_answer_point_to_the_first_token() -> None:
    data = asked(("who?", " ".join(WORDS), None))
    made = windows.training(data, TOKENIZERS["bpe"], 40, 8)
    assert set(made["start_positions"]) == set(made["end_positions"]) == {0}


def test_an_answer_in_another_window_is_not_here() -> None:
    data = asked(("who?", " ".join(WORDS * 6) + " Zanzibar", "Zanzibar"))
    made = windows.training(data, TOKENIZERS["bpe"], 40, 4)
    assert [bool(start) for start in made["start_positions"]] == [False] * (len(made) - 1) + [True]


@pytest.mark.parametrize(("length", "stride"), [(4, 0), (40, 40), (40, 20), (40, -1)])
def test_windows_without_room_are_refused(length: int, stride: int) -> None:
    with pytest.raises(MixlabError, match="stride"):
        windows.evaluation(asked(("who?", "a", None)), TOKENIZERS["bpe"], length, stride)


def test_segments_when_the_tokenizer_has_them() -> None:
    tokenizer = vocabulary.train(TEXTS, "wordpiece", 200, 64, segments=True, progress=False)
    made: Any = windows.evaluation(asked(("who?", "a b", None)), tokenizer, 32, 4)[0]
    assert made["token_type_ids"][0] == 0
    assert made["token_type_ids"][-1] == 1
