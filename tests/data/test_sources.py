"""Every kind of file is read as it stands; every defect is one line that names the file and the place."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from datasets import ClassLabel, Dataset, Features, Value
from hypothesis import given, settings
from hypothesis import strategies as st

from mixlab.data import files, sources
from mixlab.data.columns import Columns
from mixlab.data.labels import Labels
from mixlab.data.sources import read
from mixlab.errors import MixlabError
from tests.data.conftest import REAL

Write = Callable[[str, str | bytes], Path]


def lines(*rows: dict[str, Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


PAIRS = lines(
    {"premise": "a", "hypothesis": "b", "label": 0, "source": "x"}, {"premise": "c", "hypothesis": "d", "label": 1, "source": "y"}
)
QUESTION: dict[str, Any] = {"id": "1", "question": "who?", "context": "Ada wrote it.", "answers": {"text": ["Ada"], "answer_start": [0]}}


def squad(*questions: dict[str, Any], context: str = "Ada wrote it.") -> str:
    return json.dumps({"version": "v2.0", "data": [{"title": "t", "paragraphs": [{"context": context, "qas": list(questions)}]}]})


# reading


def test_texts_from_a_file_are_its_characters(write: Write) -> None:
    text = "First line.\n\n  Second, ünïcode 漢字.\nlast without end"
    data = read(write("a.txt", "\ufeff" + text), "texts").data
    assert data["text"] == [text]
    assert data["document_end"] == [True]


@pytest.mark.parametrize(("documents", "expected"), [("line", ["a", "b", "c"]), ("paragraph", ["a\nb", "c"]), ("file", ["a\nb\n\n\nc\n"])])
def test_what_a_text_file_holds(write: Write, documents: files.Unit, expected: list[str]) -> None:
    assert read(write("a.txt", "a\r\nb\r\n\r\n\n" + "c\n"), "texts", documents=documents).data["text"] == expected


def test_long_texts_come_in_pieces_that_join(write: Write) -> None:
    text = "".join(f"line {i} of a long text\n" for i in range(60_000)) + "x" * 100_000 + " end"
    for source in (read(write("a.txt", text), "texts"), read(write("a.jsonl", lines({"text": text})), "texts")):
        rows = source.data
        assert "".join(rows["text"]) == text
        assert list(rows["document_end"]) == [False] * (len(rows) - 1) + [True]
        assert max(map(len, rows["text"])) <= files.PIECE


def test_a_line_of_ten_megabytes_is_only_long(write: Write) -> None:
    word = "y" * 10_000_000
    assert sum(map(len, read(write("a.txt", word), "texts").data["text"])) == 10_000_000
    assert sum(map(len, read(write("a.csv", f"text,label\n{word},1\nb,0\n"), "sentences").data["text"])) == 10_000_001
    assert len(read(write("b.jsonl", lines({"text": word})), "texts").data) > 1


def test_a_folder_of_texts(write: Write, tmp_path: Path) -> None:
    write("corpus/b.txt", "second")
    write("corpus/a/a.txt", "first")
    write("corpus/.hidden.txt", "no")
    write("corpus/README.md", "no")
    assert read(tmp_path / "corpus", "texts").data["text"] == ["first", "second"]


def test_pairs_from_every_format(write: Write, tmp_path: Path) -> None:
    rows = [json.loads(line) for line in PAIRS.splitlines()]
    Dataset.from_list(rows).to_parquet(tmp_path / "a.parquet")
    table = [list(rows[0]), *[[str(value) for value in row.values()] for row in rows]]
    places = [
        write("a.jsonl", PAIRS),
        write("b.json", json.dumps(rows, indent=1)),
        write("c.json", PAIRS),
        write("a.csv", "\n".join(",".join(f'"{field}"' for field in row) for row in table)),
        write("a.tsv", "\n".join("\t".join(row) for row in table)),
        tmp_path / "a.parquet",
    ]
    for place in places:
        source = read(place, "pairs")
        assert list(source.data) == [
            {"text": "a", "text_pair": "b", "label": 0, "group": "x"},
            {"text": "c", "text_pair": "d", "label": 1, "group": "y"},
        ]
        assert source.labels == Labels("single", ("0", "1"))
        assert "text = 'premise', text_pair = 'hypothesis', label = 'label', group = 'source' (guessed)" in source.note


def test_columns_by_name(write: Write) -> None:
    place = write("a.csv", "one,two,three\nx,y,z\nu,v,w\n")
    source = read(place, "sentences", Columns(text="two", label="one"))
    assert source.note == ""
    assert list(source.data) == [{"text": "y", "label": 1}, {"text": "v", "label": 0}]


def test_words_that_look_like_nothing_stay_words(write: Write) -> None:
    place = write("a.csv", "text,label\nNA,no\nnull,yes\nNone,nan\n")
    source = read(place, "sentences")
    assert source.data["text"] == ["NA", "null", "None"]
    assert source.labels == Labels("single", ("nan", "no", "yes"))


def test_quotes(write: Write) -> None:
    assert read(write("a.csv", 'text,label\n"one, ""two""\nthree",a\nx,b\n'), "sentences").data[0]["text"] == 'one, "two"\nthree'
    assert read(write("a.tsv", 'text\tlabel\n"one, ""two""\ta\nx\tb\n'), "sentences").data[0]["text"] == '"one, ""two""'


@pytest.mark.parametrize(
    ("values", "expected", "encoded"),
    [
        (["b", "a", "b"], Labels("single", ("a", "b")), [1, 0, 1]),
        ([3, 2, 4], Labels("single", ("2", "3", "4")), [1, 0, 2]),
        (["10", "9", "11"], Labels("single", ("9", "10", "11")), [1, 0, 2]),
        ([-1, 1, 0], Labels("single", ("-1", "0", "1")), [0, 2, 1]),
        ([True, False, True], Labels("single", ("false", "true")), [1, 0, 1]),
        ([0.5, 2, -1.25], Labels("regression"), [0.5, 2.0, -1.25]),
        (["0.5", "2", "1e1"], Labels("regression"), [0.5, 2.0, 10.0]),
        ([["x", "y"], [], ["y"]], Labels("multi", ("x", "y")), [[1.0, 1.0], [0.0, 0.0], [0.0, 1.0]]),
    ],
)
def test_kinds_of_labels(write: Write, values: list[Any], expected: Labels, encoded: list[Any]) -> None:
    source = read(write("a.jsonl", lines(*[{"text": "t", "label": value} for value in values])), "sentences")
    assert source.labels == expected
    assert list(source.data["label"]) == encoded
    assert source.labels.config_fields()["problem_type"].startswith(expected.kind)


def test_numbers_can_be_told_to_be_regression(write: Write) -> None:
    place = write("a.jsonl", lines({"text": "t", "label": 1}, {"text": "t", "label": 7}))
    assert read(place, "sentences", label_kind="regression").data["label"] == [1.0, 7.0]


def test_squad_nested_and_flat(write: Write) -> None:
    old = {"id": "1", "question": "who?", "answers": [{"text": "Ada", "answer_start": 0}]}
    new = {"id": "2", "question": "when?", "answers": [], "is_impossible": True}
    nested = read(write("a.json", squad(old, new)), "questions").data
    assert list(nested) == [
        QUESTION,
        {"id": "2", "question": "when?", "context": "Ada wrote it.", "answers": {"text": [], "answer_start": []}},
    ]
    assert list(read(write("b.json", squad(old)), "questions").data) == [QUESTION]
    assert list(read(write("a.jsonl", lines(QUESTION)), "questions").data) == [QUESTION]
    flat = read(write("a.csv", "question,context,answer\nwho?,Ada wrote it.,wrote\nwhen?,Ada wrote it.,\n"), "questions").data
    assert [row["answers"] for row in flat] == [{"text": ["wrote"], "answer_start": [4]}, {"text": [], "answer_start": []}]
    assert flat["id"] == ["0", "1"]


def test_streaming_reads_the_same(write: Write) -> None:
    place = write("a.jsonl", lines(*[{"text": f"text {i}"} for i in range(20)]))
    streamed = read(place, "texts", streaming=True).data
    assert list(streamed) == list(read(place, "texts").data)
    with pytest.raises(MixlabError, match="streaming is for texts"):
        read(place, "sentences", streaming=True)


def test_a_changed_file_is_read_again(write: Write) -> None:
    import os

    place = write("a.txt", "one")
    stat = place.stat()
    assert read(place, "texts").data["text"] == ["one"]
    place.write_text("two")
    os.utime(place, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert read(place, "texts").data["text"] == ["two"]


def test_a_dataset_of_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    features = Features({"sentence": Value("string"), "label": ClassLabel(names=["neg", "pos"]), "idx": Value("int32")})
    hub = Dataset.from_dict({"sentence": ["a", "b"], "label": [1, 0], "idx": [0, 1]}, features=features)

    def load_dataset(*args: Any, **options: Any) -> Any:
        calls.append((args, options))
        return hub.to_iterable_dataset() if options["streaming"] else hub

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    source = read("owner/name:config", "sentences", split="validation")
    assert calls == [(("owner/name", "config"), {"split": "validation", "streaming": False})]
    assert list(source.data) == [{"text": "a", "label": 1}, {"text": "b", "label": 0}]
    assert source.labels == Labels("single", ("neg", "pos"))
    streamed = read("owner/name", "texts", split="train", streaming=True)
    assert [row["text"] for row in streamed.data] == ["a", "b"]
    with pytest.raises(MixlabError, match="which split"):
        read("owner/name", "texts")
    hub = Dataset.from_dict({"sentence": ["a"], "label": [-1], "idx": [0]}, features=features)
    with pytest.raises(MixlabError, match="row 0: the label is missing"):
        read("owner/name", "sentences", split="test")


def test_the_hub_out_of_reach_is_one_line() -> None:
    with pytest.raises(MixlabError, match=r"none of .*pydocs.*could not be had from the Hub: .*not cached") as caught:
        read("nobody/nothing-of-this-name", "texts", split="train")
    assert "\n" not in str(caught.value)


def test_built_in_sources_by_name() -> None:
    assert read("sentences", "sentences", split="validation").labels == Labels("single", ("negative", "positive"))
    assert len(read("pairs", "pairs", split="test").data) == 1000
    with pytest.raises(MixlabError, match="say which"):
        read("pairs", "pairs")


def test_training_texts_leave_out_what_is_held_out(write: Write, tmp_path: Path) -> None:
    for name in ("a", "b", "valid", "test"):
        write(f"d/{name}.txt", name)
    assert read(tmp_path / "d", "texts", split="train").data["text"] == ["a", "b"]
    assert read(tmp_path / "d", "texts", split="validation").data["text"] == ["valid"]
    assert len(read(tmp_path / "d", "texts").data) == 4
    write("e/valid.txt", "x")
    with pytest.raises(MixlabError, match="to measure on alone"):
        read(tmp_path / "e", "texts", split="train")


def test_splits_of_a_folder(write: Write, tmp_path: Path) -> None:
    write("d/train.jsonl", PAIRS)
    write("d/dev.jsonl", lines({"premise": "e", "hypothesis": "f", "label": 1, "source": "z"}))
    train = read(tmp_path / "d", "pairs", split="train")
    assert len(train.data) == 2
    assert len(read(tmp_path / "d", "pairs", split="validation", labels=train.labels).data) == 1
    with pytest.raises(MixlabError, match="0 files for split 'test'"):
        read(tmp_path / "d", "pairs", split="test", labels=train.labels)
    with pytest.raises(MixlabError, match="several tables"):
        read(tmp_path / "d", "pairs")


# bad input: what is written, how it is read, what the message must hold besides the file

BAD: dict[str, tuple[str, str | bytes, str, str]] = {
    "empty": ("a.txt", "", "texts", "is empty"),
    "blank": ("a.jsonl", " \n\n", "texts", "is empty"),
    "bom-only": ("a.txt", b"\xef\xbb\xbf", "texts", "holds no"),
    "nul": ("a.txt", b"one\ntwo\nth\0ree", "texts", "line 3: a NUL byte"),
    "utf-16": ("a.csv", "text,label\n".encode("utf-16"), "sentences", "line 1: a NUL byte"),
    "latin-1": ("a.txt", b"one\ncaf\xe9\n", "texts", "line 2: not UTF-8"),
    "cut-utf-8": ("a.txt", b"one\ncaf\xc3", "texts", "line 2: not UTF-8"),
    "late-latin-1": ("a.txt", b"x\n" * 600_000 + b"caf\xe9\n", "texts", "line 600001: not UTF-8"),
    "binary": ("a.csv", bytes(range(128, 256)), "sentences", "line 1: not UTF-8"),
    "unknown-ending": ("a.docx", "text", "texts", "files ending in '.docx' are not read"),
    "not-json": ("a.jsonl", '{"text": "a"}\n{"text": \n', "texts", "line 2: not JSON"),
    "deep-json": ("a.jsonl", "[" * 100_000, "texts", "line 1: not JSON"),
    "list-row": ("a.jsonl", "[1, 2]\n", "texts", "line 1: a row must be an object"),
    "broken-json": ("a.json", '{"data": [\n{]}', "questions", "line 2: not JSON"),
    "surrogate": ("a.jsonl", '{"text": "\\ud800"}', "texts", "line 1: column 'text' holds a character that is not text"),
    "nul-in-json": ("a.jsonl", '{"text": "\\u0000"}', "texts", "line 1: column 'text' holds a character"),
    "number-as-text": ("a.jsonl", lines({"text": "a"}, {"text": 5}), "texts", "line 2: column 'text' holds '5' (int), not text"),
    "row-without-text": ("a.jsonl", lines({"text": "a"}, {"body": "b"}), "texts", "line 2: column 'text' is missing"),
    "all-empty": ("a.jsonl", lines({"text": ""}, {"text": "  "}), "texts", "holds no texts"),
    "empty-sentence": (
        "a.jsonl",
        lines({"text": "a", "label": 0}, {"text": " ", "label": 1}),
        "sentences",
        "line 2: column 'text' is empty",
    ),
    "one-column": ("a.csv", "text\na\nb\n", "sentences", "no column for label among: 'text'"),
    "no-pair": ("a.csv", "text,label\na,0\n", "pairs", "no column for text and text_pair"),
    "header-only": ("a.csv", "text,label\n", "sentences", "holds no rows"),
    "short-row": ("a.csv", "text,label\na,0\nb\n", "sentences", "line 3: 1 fields, but the header has 2"),
    "long-row": ("a.csv", "text,label\na,0\nb,1,2\n", "sentences", "line 3: 3 fields"),
    "open-quote": ("a.csv", 'text,label\n"a,0\nb,1\n', "sentences", "unexpected end of data"),
    "two-names": ("a.csv", "text,text\na,b\n", "sentences", "line 1: two columns are called 'text'"),
    "label-gap": ("a.csv", "text,label\na,0\nb,1\nc,3\n", "sentences", "labels 1 and 3 occur, but 2 does not"),
    "one-label": ("a.csv", "text,label\na,0\nb,0\n", "sentences", "the only label is '0'"),
    "no-label": ("a.csv", "text,label\na,0\nb,\n", "sentences", "line 3: the label is missing"),
    "null-label": ("a.jsonl", lines({"text": "a", "label": 0}, {"text": "b", "label": None}), "sentences", "line 2: the label is missing"),
    "mixed-labels": (
        "a.jsonl",
        lines({"text": "a", "label": 0}, {"text": "b", "label": "1"}),
        "sentences",
        "line 2: label '1' is text, but",
    ),
    "list-and-not": (
        "a.jsonl",
        lines({"text": "a", "label": ["x"]}, {"text": "b", "label": "x"}),
        "sentences",
        "line 2: label 'x' is text",
    ),
    "nan-label": ("a.jsonl", '{"text": "a", "label": 0.5}\n{"text": "b", "label": NaN}\n', "sentences", "line 2: the label is nan"),
    "object-label": ("a.jsonl", lines({"text": "a", "label": {"x": 1}}), "sentences", "line 1: label \"{'x': 1}\" is neither"),
    "float-list": ("a.jsonl", lines({"text": "a", "label": [0.5]}), "sentences", "line 1: 0.5 in a list of labels"),
    "same-id": ("a.jsonl", lines(QUESTION, QUESTION), "questions", "line 2: id '1' was already used in"),
    "wrong-place": (
        "a.jsonl",
        lines({**QUESTION, "answers": {"text": ["Ada"], "answer_start": [1]}}),
        "questions",
        "line 1: answer 'Ada' is not in the context at 1",
    ),
    "not-there": (
        "a.json",
        squad({"id": "1", "question": "who?", "answers": [{"text": "Bob", "answer_start": 0}]}),
        "questions",
        "article 1, paragraph 1, question 1: answer 'Bob' is not in the context",
    ),
    "not-found": ("a.csv", "question,context,answer\nwho?,Ada.,Bob\n", "questions", "line 2: answer 'Bob' is not in the context"),
    "no-context": ("a.json", '{"data": [{"paragraphs": [{"qas": []}]}]}', "questions", "article 1, paragraph 1: 'context' is missing"),
    "no-articles": ("a.json", '{"data": 5}', "questions", "a list is expected"),
    "no-questions": ("a.json", '{"data": []}', "questions", "holds no rows"),
    "uneven-answers": ("a.jsonl", lines({**QUESTION, "answers": {"text": ["Ada"], "answer_start": []}}), "questions", "1 answers with 0"),
    "answer-number": ("a.jsonl", lines({**QUESTION, "answers": [5]}), "questions", "line 1: answer '5' is not a text"),
    "not-parquet": ("a.parquet", "text", "texts", "not a whole Parquet file"),
    "damaged-parquet": ("a.parquet", b"PAR1" + b"x" * 50 + b"PAR1", "texts", "could not be read"),
    "empty-parquet": ("a.parquet", b"", "texts", "is empty"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_with_its_place(write: Write, case: str) -> None:
    name, content, kind, message = BAD[case]
    place = write(name, content)
    with pytest.raises(MixlabError) as caught:
        read(place, kind)  # pyright: ignore[reportArgumentType]
    assert message in str(caught.value)
    assert str(place) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_labels_that_training_never_saw(write: Write) -> None:
    train = read(write("a.csv", "text,label\na,x\nb,y\n"), "sentences")
    with pytest.raises(MixlabError, match="line 3: label 'z' is not among those of the training rows"):
        read(write("b.csv", "text,label\na,x\nb,z\n"), "sentences", labels=train.labels)
    with pytest.raises(MixlabError, match="line 2: label 'high' is not a number"):
        read(write("c.csv", "text,label\na,high\n"), "sentences", labels=Labels("regression"))


def test_wrong_requests(write: Write, tmp_path: Path) -> None:
    place = write("a.csv", "text,label\na,x\nb,y\n")
    for request, message in [
        (lambda: read(tmp_path / "none.txt", "texts"), "does not exist"),
        (lambda: read("./none", "texts"), "does not exist"),
        (lambda: read(place, "poems"), "unknown kind of data"),
        (lambda: read(place, "sentences", Columns(text="txt")), "did you mean 'text'"),
        (lambda: read(place, "texts", Columns(label="label")), "texts have none"),
        (lambda: read(place, "sentences", Columns(text="label", label="label")), "cannot be two things"),
        (lambda: read(place, "sentences", split="test"), "is one file"),
        (lambda: read(place, "sentences", label_kind="multi"), "does not suit 'multi'"),
        (lambda: read(place, "sentences", label_kind="regression"), "is not a number"),
        (lambda: read(place, "sentences", label_kind="ordinal"), "unknown kind of labels"),
        (lambda: read(write("empty/x.bin", "").parent, "texts"), "holds no file that can be read"),
        (lambda: read(write("b.txt", "x"), "texts", documents="chapter"), "unknown unit"),
    ]:
        with pytest.raises(MixlabError, match=message):
            request()


def test_an_unreadable_file(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    place = write("a.txt", "x")

    def refused(*_: Any, **__: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refused)
    with pytest.raises(MixlabError, match=r"a\.txt: Permission denied"):
        read(place, "texts")


def test_a_full_disk_is_one_line(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("datasets.arrow_writer.ArrowWriter.write", full)
    with pytest.raises(MixlabError, match="No space left on device"):
        read(write("a.txt", "some text that is in no cache"), "texts")


PARTS = [b"text", b"label", b",", b"\n", b"\t", b'"', b"{", b"}", b"[", b"]", b":", b'{"text": "a", "label": 1}', b"\0", b"\xff", b"\xc3"]
PARTS += [b"\r", b"1", b"-0.5", b"null", b"context", b"question", b'{"data": [{"paragraphs": []}]}', b"\xef\xbb\xbf", b"\\ud800", b" "]
CHUNKS = st.lists(st.sampled_from(PARTS), max_size=25).map(b"".join)


@settings(max_examples=50, derandomize=True, deadline=None)
@given(
    CHUNKS, st.sampled_from([".txt", ".jsonl", ".json", ".csv", ".tsv", ".parquet"]), st.sampled_from(["texts", "sentences", "questions"])
)
def test_malformed_files_raise_our_error_alone(tmp_path_factory: pytest.TempPathFactory, content: bytes, ending: str, kind: Any) -> None:
    place = tmp_path_factory.mktemp("malformed") / f"a{ending}"
    place.write_bytes(content)
    try:
        source = read(place, kind)
    except MixlabError as error:
        message = str(error)
    else:
        message = str(place)
        assert len(source.data) > 0
    assert str(place) in message
    assert "\n" not in message


@pytest.mark.slow
@pytest.mark.skipif(not REAL.exists(), reason="needs the folder of real data")
@pytest.mark.parametrize(
    ("place", "kind", "rows"),
    [
        ("sick/train.jsonl", "pairs", 4500),
        ("nli3_merged/train.jsonl", "pairs", 12711),
        ("rte/train.jsonl", "pairs", 2490),
        ("mrpc/validation.jsonl", "pairs", 500),
        ("sst2/train_phrases.jsonl", "sentences", 77184),
        ("vader_snippets/tweets.jsonl", "sentences", 4200),
        ("squad_v1/dev-v1.1.json", "questions", 5169),
        ("squad_v1/train_4k.jsonl", "questions", 4330),
        ("squad_v2_style/dev-v2style.json", "questions", 5169),
    ],
)
def test_real_files(place: str, kind: Any, rows: int) -> None:
    assert len(sources.read(REAL / place, kind).data) == rows
