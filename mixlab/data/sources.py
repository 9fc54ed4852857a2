"""Reading data from files, the Hub or a built-in source: one function, rows of one shape, every defect told in one line with its place.

read("reviews.csv", "sentences")                          a file: .txt .md .jsonl .json .csv .tsv .parquet
read("corpus/", "texts")                                  a folder of text files
read("nli/", "pairs", split="validation", labels=...)     a folder of tables named after their splits
read("owner/name", "texts", split="train", streaming=True)    the Hub; "owner/name:config#split" says both of them
read("pydocs", "texts", split="train")                    a built-in source
read("a.jsonl + books/", "texts")                         several, one after the other, each of any kind above
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from mixlab.data import builtin, files, rows
from mixlab.data.columns import KINDS, Columns, Kind, resolve
from mixlab.data.labels import LabelKind, Labels, learn
from mixlab.errors import MixlabError, one_line, unknown

if TYPE_CHECKING:
    from datasets import Dataset, IterableDataset

LAYOUT = 1  # raised when the same file would give other rows
AND = " + "  # between several places of texts
HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?(:[\w.-]+)?(#[\w.-]+)?")


@dataclass(frozen=True)
class Source:
    """What was read: the rows, what their labels mean, and what was guessed on the way (to be shown to the user)."""

    data: Any  # datasets.Dataset, or IterableDataset when streaming
    note: str
    labels: Labels | None = None


@dataclass(frozen=True)
class _Table:
    """Rows with their places, before any column is interpreted. `key` stands for their content."""

    name: str
    rows: Callable[[], files.Rows]
    columns: list[str]
    key: str
    classes: dict[str, tuple[str, ...]] = field(default_factory=dict)


def read(
    place: str | Path,
    kind: Kind,
    columns: Columns | None = None,
    split: str | None = None,
    streaming: bool = False,
    labels: Labels | None = None,
    label_kind: LabelKind | None = None,
    documents: files.Unit = "file",
) -> Source:
    """Rows of a kind. `labels` are those of the training rows, when other rows are read; `documents` is what a plain text file holds."""
    if kind not in KINDS:
        raise unknown("kind of data", kind, KINDS)
    if streaming and kind != "texts":
        raise MixlabError(f"streaming is for texts; {kind} are checked as a whole, so read them without it")
    if AND in str(place) and not Path(place).exists():
        return _together(str(place).split(AND), kind, columns, split, streaming, documents)
    table = _open(place, split, streaming, documents)
    names, note = resolve(kind, columns or Columns(), table.columns, table.name)
    if kind in ("sentences", "pairs") and labels is None:
        labels = learn(rows.labels_of(table.rows(), names["label"]), label_kind, table.classes.get(names["label"], ()))
    if kind in ("texts", "questions"):
        labels = None

    def converted() -> Iterator[dict[str, Any]]:
        return rows.convert(kind, table.rows(), names, labels)

    if not any(row.get("text", row.get("question", "")).strip() for row in itertools.islice(converted(), 1000)):
        raise MixlabError(f"{table.name} holds no {kind}; there is nothing to read")
    settings = [LAYOUT, table.key, kind, names, asdict(labels) if labels else None]
    return Source(_built(converted, _features(kind, names, labels), settings, streaming, table.name), note, labels)


def _together(places: list[str], kind: Kind, columns: Columns | None, split: str | None, streaming: bool, documents: files.Unit) -> Source:
    """Several sources of texts as one; labels would have to be learned from all of them, so tables of rows stay apart."""
    from datasets import concatenate_datasets

    if kind != "texts":
        raise MixlabError(f"{AND.join(places)}: only texts can be read from several places; join the tables of {kind} into one file")
    parts = [read(place.strip(), kind, columns, split, streaming, documents=documents) for place in places]
    return Source(concatenate_datasets([part.data for part in parts]), "; ".join(part.note for part in parts if part.note))


def _open(place: str | Path, split: str | None, streaming: bool, documents: files.Unit) -> _Table:
    name = str(place)
    if name in builtin.names():
        return _from_dataset(builtin.load(name).split(split), name)
    path = Path(place)
    looks_like_file = isinstance(place, Path) or name.startswith((".", "/", "~")) or path.suffix.lower() in files.FORMATS
    if looks_like_file or path.exists() or not HUB_NAME.fullmatch(name):
        return _from_files(files.find(path.expanduser(), split), name, documents)
    return _from_hub(name, split, streaming)


def _from_files(paths: list[Path], name: str, documents: files.Unit) -> _Table:
    hashes = [files.inspect(path) for path in paths]
    if paths[0].suffix.lower() == ".parquet":
        loaded = _guarded(lambda: _load("parquet", split="train", data_files=[str(path) for path in paths]), name)
        return _from_dataset(loaded, name)

    def all_rows() -> files.Rows:
        return itertools.chain.from_iterable(files.rows(path, documents) for path in paths)

    _, first = next(all_rows(), ("", {}))
    if not first:
        raise MixlabError(f"{name} holds no rows; there is nothing to read")
    found = [column for column in first if column != "document_end"]
    return _Table(name, all_rows, found, json.dumps([hashes, documents]))


def _from_hub(name: str, split: str | None, streaming: bool) -> _Table:
    name, _, named = name.partition("#")
    repository, _, config = name.partition(":")
    split = split or named or None
    if split is None:
        raise MixlabError(f"{name}: say which split of the dataset to read, for example split='train'")
    try:
        loaded = _guarded(lambda: _load(repository, config or None, split=split, streaming=streaming), name)
    except MixlabError as error:
        known = f"not a file or folder here, none of {', '.join(builtin.names())}, and could not be had from the Hub"
        raise MixlabError(f"{name} is {known}: {str(error).partition('could not be read: ')[2] or error}") from error
    return _from_dataset(loaded, f"{name} ({split})")


def _load(*args: Any, **options: Any) -> Any:
    from datasets import load_dataset

    return load_dataset(*args, **options)


def _from_dataset(loaded: Dataset | IterableDataset, name: str) -> _Table:
    """A dataset's rows; classes by their names, when it lists them."""
    from datasets import ClassLabel

    features = loaded.features or {}
    classes = {column: tuple(cast(ClassLabel, kind).names) for column, kind in features.items() if isinstance(kind, ClassLabel)}
    simple = [column for column, kind in features.items() if getattr(kind, "_type", "") not in ("Image", "Audio", "Video", "Pdf")]

    def all_rows() -> files.Rows:
        plain = loaded.select_columns(simple) if simple else loaded
        for number, row in enumerate(cast("Iterator[dict[str, Any]]", iter(plain))):
            for column, names in classes.items():
                if isinstance(row[column], int):
                    row[column] = names[row[column]] if 0 <= row[column] < len(names) else None
            yield f"{name}, row {number}", row

    columns = simple or list(next(iter(loaded), {}))
    return _Table(name, all_rows, columns, getattr(loaded, "_fingerprint", name), classes)


def _features(kind: Kind, names: dict[str, str], labels: Labels | None) -> Any:
    from datasets import ClassLabel, Features, List, Value

    text = Value("string")
    if kind == "texts":
        return Features({"text": text, "document_end": Value("bool")})
    if kind == "questions":
        answers = {"text": List(text), "answer_start": List(Value("int32"))}
        return Features({"id": text, "question": text, "context": text, "answers": answers})
    assert labels is not None
    label = {"multi": List(Value("float32")), "regression": Value("float32")}.get(labels.kind) or ClassLabel(names=list(labels.names))
    columns = {"text": text, **({"text_pair": text} if kind == "pairs" else {}), "label": label}
    return Features({**columns, **({"group": text} if "group" in names else {})})


def _built(converted: Callable[[], Iterator[dict[str, Any]]], features: Any, settings: list[Any], streaming: bool, name: str) -> Any:
    """Rows as Arrow on disk, kept under the hash of what they were made from; or as a stream."""
    from datasets import Dataset, IterableDataset

    if streaming:
        return IterableDataset.from_generator(converted, features=features)
    key = hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:16]
    return _guarded(lambda: Dataset.from_generator(converted, features=features, fingerprint=key), name)


def _guarded(action: Callable[[], Any], name: str) -> Any:
    """What goes wrong inside `datasets`, as one line; our own errors keep their words."""
    try:
        return action()
    except Exception as error:  # builders raise whatever their readers do
        causes: list[BaseException] = [error]
        while (inner := causes[-1].__cause__ or causes[-1].__context__) is not None and inner not in causes:
            causes.append(inner)
        ours = next((cause for cause in causes if isinstance(cause, MixlabError)), None)
        if ours is not None:
            raise ours from None
        raise MixlabError(f"{name} could not be read: {type(causes[-1]).__name__}: {one_line(causes[-1])[:200]}") from error
