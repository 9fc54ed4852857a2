"""Pretraining examples: they hold the documents, whole and in order; the cache is whole or absent; tokenising keeps pace."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets import Dataset
from transformers import PreTrainedTokenizerFast

from mixlab.data import fingerprint, pretraining, vocabulary
from mixlab.errors import MixlabError
from tests.data.conftest import REAL, TEXTS

DOCUMENTS = Dataset.from_dict({"text": [*TEXTS[:4], "", "A [SEP] in the text is text."]})


def stream(examples: Any, around: int) -> list[int]:
    return [int(i) for row in examples for i in (row["input_ids"][around : len(row["input_ids"]) - around])]


def split(ids: list[int], separator: int) -> list[list[int]]:
    parts: list[list[int]] = [[]]
    for i in ids:
        if i == separator:
            parts.append([])
        else:
            parts[-1].append(i)
    assert parts[-1] == []
    return parts[:-1]


@pytest.mark.parametrize("length", [3, 16, 64, 4096])
def test_examples_hold_the_documents(tokenizer: PreTrainedTokenizerFast, length: int, tmp_path: Path) -> None:
    examples = pretraining.chunks(DOCUMENTS, tokenizer, length, tmp_path)
    bare = vocabulary.literal(tokenizer)
    expected = [bare.encode(text, add_special_tokens=False).ids for text in DOCUMENTS["text"] if text]
    assert split(stream(examples, 1), 3) == expected
    rows = list(examples)
    assert all(len(row["input_ids"]) == length for row in rows[:-1])
    assert 3 <= len(rows[-1]["input_ids"]) <= length
    assert all(row["input_ids"][0] == 2 and row["input_ids"][-1] == 3 for row in rows)
    about = pretraining.about(examples)
    assert about["documents"] == 5
    assert about["characters"] == sum(map(len, DOCUMENTS["text"]))
    assert about["tokens"] == sum(map(len, expected))
    assert about["examples"] == len(rows)


def test_causal_examples_are_the_stream_itself(causal: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    examples = pretraining.chunks(DOCUMENTS, causal, 16, tmp_path, causal=True)
    texts = [causal.decode(part) for part in split(stream(examples, 0), 6)]
    assert texts == [text for text in DOCUMENTS["text"] if text]


def test_pieces_of_a_document_are_joined(causal: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    pieces = Dataset.from_dict({"text": ["one ", "two", "", "three"], "document_end": [False, False, True, True]})
    ids = stream(pretraining.chunks(pieces, causal, 16, tmp_path, causal=True), 0)
    assert [causal.decode(part) for part in split(ids, 6)] == ["one two", "three"]


def test_the_batch_size_does_not_show(causal: PreTrainedTokenizerFast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    many = Dataset.from_dict({"text": [TEXTS[i % 4][i % 7 :] for i in range(300)]})
    whole = stream(pretraining.chunks(many, causal, 16, tmp_path / "a", causal=True), 0)
    monkeypatch.setattr(pretraining, "BATCH", 1000)
    assert stream(pretraining.chunks(many, causal, 16, tmp_path / "b", causal=True), 0) == whole


def test_the_cache_is_found_again_and_only_then(
    wordpiece: PreTrainedTokenizerFast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = pretraining.chunks(DOCUMENTS, wordpiece, 16, tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(pretraining, "_build", None)
        assert stream(pretraining.chunks(DOCUMENTS, wordpiece, 16, tmp_path), 1) == stream(first, 1)
        others = [(DOCUMENTS.select([1, 0]), wordpiece, 16), (DOCUMENTS, wordpiece, 17)]
        for changed in others:
            with pytest.raises(TypeError):
                pretraining.chunks(*changed, tmp_path)


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(28, "No space left on device"), MemoryError])
def test_interrupted_tokenising_leaves_nothing(
    wordpiece: PreTrainedTokenizerFast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Any
) -> None:
    calls = []

    def failing(*args: Any) -> Any:
        calls.append(args)
        if len(calls) > 1:
            raise error
        return real(*args)

    real = pretraining._joined
    monkeypatch.setattr(pretraining, "_joined", failing)
    monkeypatch.setattr(pretraining, "BATCH", 10)
    many = Dataset.from_dict({"text": TEXTS * 20})
    with pytest.raises(MixlabError if isinstance(error, OSError) else error):
        pretraining.chunks(many, wordpiece, 16, tmp_path)
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == []
    monkeypatch.setattr(pretraining, "_joined", real)
    assert len(pretraining.chunks(many, wordpiece, 16, tmp_path)) > 0


def test_what_a_killed_process_left_is_cleared(wordpiece: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    """Killed at two points of the writing: the target is absent, and the next run makes it whole."""
    expected = stream(pretraining.chunks(DOCUMENTS, wordpiece, 16, tmp_path / "whole"), 1)
    for point in ("_joined", "_flush"):
        folder = tmp_path / point
        child = os.fork()
        if child == 0:
            setattr(pretraining, point, lambda *_: os._exit(9))
            try:
                pretraining.chunks(DOCUMENTS, wordpiece, 16, folder)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
        assert not [path for path in folder.iterdir() if path.name.startswith("examples-") and path.is_dir()]
        assert stream(pretraining.chunks(DOCUMENTS, wordpiece, 16, folder), 1) == expected
        assert not list(folder.glob(".*.partial"))


def test_what_cannot_be_cut_is_refused(wordpiece: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    with pytest.raises(MixlabError, match="at least 3"):
        pretraining.chunks(DOCUMENTS, wordpiece, 2, tmp_path)
    with pytest.raises(MixlabError, match="no eos token"):
        pretraining.chunks(DOCUMENTS, wordpiece, 16, tmp_path, causal=True)
    with pytest.raises(MixlabError, match="no column 'text'"):
        pretraining.chunks(DOCUMENTS.rename_column("text", "body"), wordpiece, 16, tmp_path)
    with pytest.raises(MixlabError, match="no tokens"):
        pretraining.chunks(Dataset.from_dict({"text": ["", ""]}), wordpiece, 16, tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(MixlabError, match="file"):
        pretraining.chunks(DOCUMENTS, wordpiece, 16, tmp_path / "file")


def test_fingerprints_know_content_not_storage(wordpiece: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    rows = Dataset.from_dict({"text": [str(i) for i in range(2500)], "n": list(range(2500))})
    key = fingerprint.of_dataset(rows)
    rows.save_to_disk(tmp_path / "saved", num_shards=3)
    assert fingerprint.of_dataset(Dataset.load_from_disk(str(tmp_path / "saved"))) == key
    reversed_ = rows.select(range(2499, -1, -1))
    assert fingerprint.of_dataset(reversed_) != key
    assert fingerprint.of_dataset(reversed_.select(range(2499, -1, -1)).with_format("numpy")) == key
    assert fingerprint.of_dataset(rows.rename_column("n", "m")) != key
    before = fingerprint.of_tokenizer(wordpiece)
    wordpiece("some text", truncation=True, max_length=4, padding="max_length")
    assert fingerprint.of_tokenizer(wordpiece) == before
    assert fingerprint.of_settings({"a": 1, "b": 2}) == fingerprint.of_settings(json.loads('{"b": 2, "a": 1}'))


def speed_ratio(texts: list[str], tokenizer: PreTrainedTokenizerFast, folder: Path, rounds: int = 12) -> float:
    """Texts to Arrow on disk against `encode_batch` alone: the same texts, threads and process, taking turns; best of each."""
    data = Dataset.from_dict({"text": texts})
    bare, raw, ours = vocabulary.literal(tokenizer), [], []
    for i in range(rounds):
        start = time.perf_counter()
        bare.encode_batch(texts, add_special_tokens=False)
        middle = time.perf_counter()
        pretraining.chunks(data, tokenizer, 128, folder / str(i))
        raw.append(middle - start)
        ours.append(time.perf_counter() - middle)
    return min(raw) / min(ours)


@pytest.mark.slow
@pytest.mark.parametrize("kind", vocabulary.KINDS)
def test_tokenising_keeps_pace_with_the_bare_tokenizer(kind: vocabulary.Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "true")
    from mixlab.data import pydocs

    texts = [row["text"] for row in pydocs.splits()["train"]] * 2
    tokenizer = vocabulary.train(texts[:200], kind, 8000, progress=False)
    ratio = speed_ratio(texts, tokenizer, tmp_path)
    print(f"{kind}: {ratio:.2f} of the raw speed")
    assert ratio >= 0.8


@pytest.mark.slow
@pytest.mark.skipif(not REAL.exists(), reason="needs the folder of real data")
def test_real_text_comes_back(tmp_path: Path) -> None:
    from mixlab.data.sources import read

    texts = read(REAL / "tinyshakespeare" / "input.txt", "texts").data
    tokenizer = vocabulary.train(texts["text"], "bpe", 4000, causal=True, progress=False)
    examples = pretraining.chunks(texts, tokenizer, 256, tmp_path, causal=True)
    ids = np.concatenate([row["input_ids"] for row in examples])
    assert tokenizer.decode(ids[:-1]) == (REAL / "tinyshakespeare" / "input.txt").read_text(encoding="utf-8")
