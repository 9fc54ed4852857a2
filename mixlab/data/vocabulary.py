"""Tokenizers: train WordPiece, BPE or Unigram on any texts, or load one in the format of the Hub.

BPE and Unigram work on bytes: every text can be encoded, and decoding gives it back to the character. WordPiece works on characters as in
BERT: a word with a character that training never saw becomes [UNK], and white space is normalised. All are cased. Training WordPiece or BPE
twice gives the same file; Unigram adds up probabilities in an order that varies, so its file may differ in near ties: keep the file.
"""

from __future__ import annotations

import json
import re
import string
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mixlab.errors import MixlabError, one_line, unknown

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

Kind = Literal["wordpiece", "bpe", "unigram"]
KINDS = ("wordpiece", "bpe", "unigram")
# The ids are the positions: [PAD] is 0, [MASK] is 4. A causal tokenizer has all seven.
SPECIAL = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
CAUSAL = {"bos_token": "[BOS]", "eos_token": "[EOS]"}
SMALLEST = {"wordpiece": 32, "bpe": 256 + 7, "unigram": 256 + 7}  # bytes, and special tokens
ALPHABET = 1000  # characters that WordPiece keeps; rarer ones are [UNK]
NO_TEXT = "there is no text to train a tokenizer on; every document is empty or blank"
LONG_WORD = 100  # training takes time quadratic in a word's length; longer runs without a blank are cut, in training only


def train(
    texts: Iterable[str],
    kind: Kind = "wordpiece",
    vocab_size: int = 32000,
    length: int = 512,
    causal: bool = False,
    segments: bool = False,
    progress: bool = True,
) -> PreTrainedTokenizerFast:
    """A tokenizer for models that read up to `length` tokens; `segments` makes it return token_type_ids too."""
    from transformers import PreTrainedTokenizerFast

    if kind not in KINDS:
        raise unknown("kind of tokenizer", kind, KINDS)
    if vocab_size < SMALLEST[kind]:
        raise MixlabError(f"vocab_size is {vocab_size}; {kind} needs at least {SMALLEST[kind]}")
    if length < 3:
        raise MixlabError(f"length is {length}; a tokenizer needs at least 3, two for special tokens and one for text")
    special = {**SPECIAL, **(CAUSAL if causal else {})}
    words = _Words(texts)
    characters = words.frequent_characters(min(ALPHABET, vocab_size // 4)) if kind == "wordpiece" else []
    if kind == "wordpiece" and not characters:
        raise MixlabError(NO_TEXT)
    tokenizer, trainer = _untrained(kind, vocab_size, list(special.values()), characters, progress)
    tokenizer.train_from_iterator(words, trainer)
    if not words.seen:
        raise MixlabError(NO_TEXT)
    tokenizer = _without_extra(tokenizer, list(special.values()))
    tokenizer.post_processor = _template(tokenizer, causal)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=length,
        model_input_names=["input_ids", "attention_mask", *(["token_type_ids"] if segments else [])],
        padding_side="right",
        clean_up_tokenization_spaces=False,
        **special,
    )


def load(place: str | Path, length: int | None = None) -> PreTrainedTokenizerFast:
    """A tokenizer from a folder or the Hub; `length` lowers how much it says its model can read."""
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    folder = Path(place)
    if folder.is_dir() and not (folder / "tokenizer.json").exists():
        raise MixlabError(f"{place} holds no tokenizer.json; train a tokenizer, or give the folder of one")
    if folder.is_file():
        raise MixlabError(f"{place} is a file; give the folder that holds tokenizer.json")
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(place))
        tokenizer("a")
    except Exception as error:  # a damaged file fails in as many ways as there are fields
        raise MixlabError(f"{place}: no tokenizer could be read: {type(error).__name__}: {one_line(error)[:200]}") from error
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise MixlabError(f"{place}: the tokenizer is written in Python; only those with a tokenizer.json are read")
    if length is not None:
        tokenizer.model_max_length = min(length, tokenizer.model_max_length)
    return tokenizer


def config_fields(tokenizer: PreTrainedTokenizerFast) -> dict[str, int | None]:
    """What a model's configuration must agree on with its tokenizer."""
    names = ("pad_token_id", "bos_token_id", "eos_token_id")
    return {"vocab_size": len(tokenizer), **{name: getattr(tokenizer, name) for name in names}}


def literal(tokenizer: PreTrainedTokenizerFast) -> Tokenizer:
    """The bare tokenizer that neither cuts nor pads, and reads "[SEP]" in a text as five characters."""
    from tokenizers import Tokenizer

    bare = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    bare.no_truncation()
    bare.no_padding()
    bare.encode_special_tokens = True
    return bare


class _Words:
    """Texts as training reads them, counting those that hold something."""

    def __init__(self, texts: Iterable[str]) -> None:
        self.texts = list(texts) if isinstance(texts, Iterator) else texts
        self.seen = 0
        self.long = re.compile(rf"(\S{{{LONG_WORD}}})(?=\S)")

    def __iter__(self) -> Iterator[str]:
        for text in self.texts:
            if text and not text.isspace():
                self.seen += 1
                yield self.long.sub(r"\1 ", text)

    def frequent_characters(self, limit: int) -> list[str]:
        counts: Counter[str] = Counter()
        for text in self.texts:
            counts.update(text)
        found = [character for character in counts if character.isprintable() and not character.isspace()]
        return sorted(sorted(found, key=lambda character: (-counts[character], character))[:limit])


def _untrained(kind: Kind, vocab_size: int, special: list[str], characters: list[str], progress: bool) -> tuple[Tokenizer, Any]:
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    if kind == "wordpiece":
        tokenizer = Tokenizer(models.WordPiece(vocab={"[UNK]": 0}, unk_token="[UNK]"))
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=False, strip_accents=False)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = decoders.WordPiece()
        # Given as special tokens, the inner characters get ids in this order; else hashing orders them, and with them the ties of training.
        inner = [f"##{character}" for character in characters if not _stands_alone(character)]
        trainer = trainers.WordPieceTrainer(
            vocab_size=vocab_size,
            special_tokens=special + inner,
            initial_alphabet=characters,
            limit_alphabet=len(characters),
            show_progress=progress,
        )
        return tokenizer, trainer
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    if kind == "bpe":
        tokenizer = Tokenizer(models.BPE())
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size, special_tokens=special, initial_alphabet=alphabet, min_frequency=2, show_progress=progress
        )
    else:
        tokenizer = Tokenizer(models.Unigram())
        trainer = trainers.UnigramTrainer(
            vocab_size=vocab_size, special_tokens=special, initial_alphabet=alphabet, unk_token="[UNK]", show_progress=progress
        )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, trainer


def _stands_alone(character: str) -> bool:
    """Whether BERT's rules make the character a word of its own: punctuation and ideographs."""
    return character in string.punctuation or unicodedata.category(character).startswith("P") or "\u4e00" <= character <= "\u9fff"


def _without_extra(tokenizer: Tokenizer, special: list[str]) -> Tokenizer:
    """Inner characters were special for the trainer alone."""
    from tokenizers import Tokenizer

    data = json.loads(tokenizer.to_str())
    data["added_tokens"] = [token for token in data["added_tokens"] if token["content"] in special]
    return Tokenizer.from_str(json.dumps(data))


def _template(tokenizer: Tokenizer, causal: bool) -> Any:
    """`[CLS] A [SEP] B [SEP]`; a causal text gets no end, because it is to be continued: `[BOS] A [SEP] B`."""
    from tokenizers.processors import TemplateProcessing

    single, pair = ("[BOS] $A", "[BOS] $A [SEP] $B:1") if causal else ("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1")
    used = [(token, tokenizer.token_to_id(token)) for token in (("[BOS]", "[SEP]") if causal else ("[CLS]", "[SEP]"))]
    return TemplateProcessing(single=single, pair=pair, special_tokens=used)
