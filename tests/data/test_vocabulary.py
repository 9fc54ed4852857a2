"""Tokenizers: nothing is lost, ids are where they belong, files come back, bad ones are refused in a line."""

from __future__ import annotations

import contextlib
import json
import random
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from mixlab.data import vocabulary
from mixlab.errors import MixlabError
from tests.data.conftest import TEXTS

LOSSLESS = {kind: vocabulary.train(TEXTS, kind, 400, 64, progress=False) for kind in ("bpe", "unigram")}
NASTY = [
    "a\r\n\tb  c   ",
    "  leading",
    "e\u0301 \u00e9",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467 flags \U0001f1e9\U0001f1ea",
    "\u202eright to left\u202c \ufeff\u2028\u2029\u00a0",
    "▁ Ġ ## <0x41> [UNK] [MASK]x[SEP] \ufffd",
    "\x00\x01\x7f",
    "漢字かな 한국어 \u0627\u0644\u0639\u0631\u0628\u064a\u0629",
]


@pytest.mark.parametrize("kind", LOSSLESS)
@pytest.mark.parametrize("text", NASTY)
def test_nasty_texts_come_back(kind: str, text: str) -> None:
    tokenizer = LOSSLESS[kind]
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text
    literal = vocabulary.literal(tokenizer)
    assert tokenizer.decode(literal.encode(text, add_special_tokens=False).ids) == text


@settings(max_examples=50, derandomize=True, deadline=None)
@given(st.text(st.characters(exclude_categories=("Cs",)), max_size=60), st.sampled_from(sorted(LOSSLESS)))
def test_any_text_comes_back(text: str, kind: str) -> None:
    tokenizer = LOSSLESS[kind]
    literal = vocabulary.literal(tokenizer).encode(text, add_special_tokens=False).ids
    assert tokenizer.decode(literal) == text
    assert tokenizer.unk_token_id not in literal


def test_wordpiece_says_what_it_does_not_know(wordpiece: PreTrainedTokenizerFast) -> None:
    assert wordpiece.tokenize("gate 漢") == ["gate", "[UNK]"]
    assert wordpiece.tokenize("Gate") != wordpiece.tokenize("gate")


def test_special_ids_are_where_the_config_says(tokenizer: PreTrainedTokenizerFast, causal: PreTrainedTokenizerFast) -> None:
    assert tokenizer.convert_tokens_to_ids(list(vocabulary.SPECIAL.values())) == [0, 1, 2, 3, 4]
    assert tokenizer.convert_ids_to_tokens(tokenizer("a", "b")["input_ids"])[::2] == ["[CLS]", "[SEP]", "[SEP]"]
    assert "token_type_ids" not in tokenizer("a")
    fields = vocabulary.config_fields(causal)
    assert fields == {"vocab_size": len(causal), "pad_token_id": 0, "bos_token_id": 5, "eos_token_id": 6}
    assert causal("a")["input_ids"][0] == 5
    assert 6 not in causal("a")["input_ids"]


def test_segments_when_asked() -> None:
    tokenizer = vocabulary.train(TEXTS, "wordpiece", 200, 64, segments=True, progress=False)
    assert tokenizer("a", "b")["token_type_ids"] == [0, 0, 0, 1, 1]


def test_the_vocabulary_has_the_asked_size() -> None:
    tokenizer = vocabulary.train(
        [" ".join(random.Random(0).choices("abcdefgh", k=5000)).replace(" ", "", 3000)], "bpe", 350, progress=False
    )
    assert len(tokenizer) == 350


@pytest.mark.parametrize("kind", ["wordpiece", "bpe"])
def test_training_repeats(kind: vocabulary.Kind) -> None:
    files = {vocabulary.train(iter(TEXTS), kind, 400, progress=False).backend_tokenizer.to_str() for _ in range(4)}
    assert len(files) == 1


def test_saving_and_loading(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    tokenizer.save_pretrained(tmp_path)
    assert (tmp_path / "tokenizer.json").exists()
    loaded = vocabulary.load(tmp_path, length=32)
    assert loaded.model_max_length == 32
    assert loaded.model_input_names == ["input_ids", "attention_mask"]
    for text in TEXTS:
        assert loaded(text)["input_ids"] == tokenizer(text)["input_ids"]
    assert vocabulary.config_fields(loaded) == vocabulary.config_fields(tokenizer)


@settings(max_examples=50, derandomize=True, deadline=None)
@given(st.floats(0, 1), st.sampled_from(["", "{", "null", "\x00", '"a": 1', "99999999999"]), st.integers(1, 40))
def test_damaged_tokenizers_are_refused_or_read(place: float, junk: str, removed: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        LOSSLESS["bpe"].save_pretrained(folder)
        path = Path(folder) / "tokenizer.json"
        text = path.read_text(encoding="utf-8")
        start = int(place * len(text))
        path.write_text(text[:start] + junk + text[start + removed :], encoding="utf-8")
        with contextlib.suppress(MixlabError):
            vocabulary.load(folder)


def test_what_is_no_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MixlabError, match=r"holds no tokenizer\.json"):
        vocabulary.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(MixlabError, match="no tokenizer could be read"):
        vocabulary.load(tmp_path)
    with pytest.raises(MixlabError, match="is a file"):
        vocabulary.load(tmp_path / "tokenizer.json")
    with pytest.raises(MixlabError, match="no tokenizer could be read"):
        vocabulary.load("nobody/nothing-of-this-name")


def test_what_cannot_be_trained_is_refused() -> None:
    for options in ({"kind": "morse"}, {"vocab_size": 10}, {"kind": "bpe", "vocab_size": 200}, {"length": 2}):
        with pytest.raises(MixlabError):
            vocabulary.train(TEXTS, progress=False, **options)
    for kind in vocabulary.KINDS:
        for texts in ([], ["", "  \n"]):
            with pytest.raises(MixlabError, match="no text"):
                vocabulary.train(texts, kind, 300, progress=False)


@pytest.mark.parametrize("kind", vocabulary.KINDS)
def test_one_endless_word_does_not_stop_training(kind: vocabulary.Kind) -> None:
    rng = random.Random(0)
    text = "".join(rng.choices("abcdefghij", k=60_000))
    tokenizer = vocabulary.train([text], kind, 400, progress=False)
    assert len(json.loads(tokenizer.backend_tokenizer.to_str())["model"]["vocab"]) > 32
