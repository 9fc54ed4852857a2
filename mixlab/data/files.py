"""Files as rows with their place (file and line), looked at before anything is built from them; a defect is one line that says where.

A plain text file gives pieces of text, cut at line ends, so that no row is too long to handle; `document_end` marks the last of a document.
"""

from __future__ import annotations

import codecs
import csv
import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Literal

from mixlab.errors import MixlabError, one_line, unknown

Unit = Literal["file", "paragraph", "line"]
Rows = Iterator[tuple[str, dict[str, Any]]]  # where, and the values by column

FORMATS = {
    ".txt": "text",
    ".text": "text",
    ".md": "text",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
}
BLOCK = 2**20
PIECE = 2**15  # characters of one row of text
SPLITS = {"validation": ("validation", "valid", "val", "dev"), "test": ("test",), "train": ("train", "training")}


def find(place: Path, split: str | None) -> list[Path]:
    """The files that a place stands for: itself, a folder's texts, or the file of a folder that is named after the split."""
    if place.is_file():
        if split not in (None, "train"):
            raise MixlabError(f"{place} is one file and has no split {split!r}; {_elsewhere(split)}")
        return [_known(place)]
    if not place.is_dir():
        raise MixlabError(f"{place} does not exist; correct the path")
    inside = [path for path in sorted(place.rglob("*")) if path.is_file() and not _hidden(path.relative_to(place))]
    readable = [path for path in inside if path.suffix.lower() in FORMATS]
    if not readable:
        raise MixlabError(f"{place} holds no file that can be read; known endings: {', '.join(FORMATS)}")
    if split is not None:
        named = [path for path in readable if path.stem.lower() in SPLITS.get(split, (split,))]
        if len(named) == 1:
            return named
        if named or split != "train":
            found = ", ".join(path.name for path in (named or readable)[:10])
            raise MixlabError(f"{place}: {len(named)} files for split {split!r}, one is needed ({found}); {_elsewhere(split)}")
    if split == "train":  # what is named after another split is kept apart from it
        held_out = {name for other, names in SPLITS.items() if other != split for name in names}
        readable = [path for path in readable if path.stem.lower() not in held_out]
        if not readable:
            raise MixlabError(f"{place} holds rows to measure on alone; give a folder that holds a file called train as well")
    kinds = {FORMATS[path.suffix.lower()] for path in readable}
    texts = [path for path in readable if FORMATS[path.suffix.lower()] == "text" and path.suffix.lower() != ".md"]
    if texts:
        return texts
    if len(readable) > 1 and kinds != {"text"}:
        raise MixlabError(f"{place} holds several tables ({', '.join(p.name for p in readable[:5])}); give one, or a split that names one")
    return readable


def inspect(path: Path) -> str:
    """The sha256 of a file that is plausible: not empty, and text without NUL (Parquet: with its marks)."""
    if path.suffix.lower() == ".parquet":
        return _inspect_parquet(path)
    digest, decoder, line, blank = hashlib.sha256(), codecs.getincrementaldecoder("utf-8")(), 1, True
    with _opened(path, "rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
            if (nul := block.find(b"\0")) >= 0:
                at = line + block.count(b"\n", 0, nul)
                raise MixlabError(f"{path}, line {at}: a NUL byte; this is a binary file, or text in UTF-16: save it as UTF-8")
            _decode(decoder, block, False, path, line)
            line += block.count(b"\n")
            blank = blank and not block.strip()
    _decode(decoder, b"", True, path, line)
    if blank:
        raise MixlabError(f"{path} is empty; there is nothing to read")
    return digest.hexdigest()


def rows(path: Path, unit: Unit = "file") -> Rows:
    """The rows of any file but Parquet."""
    read = {"text": lambda: _text(path, unit), "jsonl": lambda: _jsonl(path), "json": lambda: _json(path)}
    kind = FORMATS[path.suffix.lower()]
    return read[kind]() if kind in read else _table(path, "\t" if kind == "tsv" else ",")


def pieces(text: str) -> Iterator[tuple[str, bool]]:
    """A text in pieces of at most PIECE characters, cut after a line or before a blank if there is one, and whether it is the last."""
    start = 0
    while len(text) - start > PIECE:
        end = start + PIECE
        cut = text.rfind("\n", start, end) + 1
        if cut <= start:
            cut = text.rfind(" ", start + 1, end)
        cut = cut if cut > start else end
        yield text[start:cut], False
        start = cut
    yield text[start:], True


def _text(path: Path, unit: Unit) -> Rows:
    if unit not in ("file", "paragraph", "line"):
        raise unknown("unit of documents", unit, ("file", "paragraph", "line"))
    with _opened(path, "r") as file:
        if unit == "file":
            rest = ""
            while block := file.read(BLOCK):
                *whole, (rest, _) = pieces(rest + block)
                for piece, _ in whole:
                    yield str(path), {"text": piece, "document_end": False}
            yield str(path), {"text": rest, "document_end": True}
            return
        lines: list[str] = []
        for line in file:
            if line.strip():
                lines.append(line)
            if lines and (unit == "line" or not line.strip()):
                yield from _document(path, "".join(lines))
                lines = []
        if lines:
            yield from _document(path, "".join(lines))


def _document(path: Path, text: str) -> Rows:
    for piece, end in pieces(text.rstrip("\n")):
        yield str(path), {"text": piece, "document_end": end}


def _jsonl(path: Path) -> Rows:
    with _opened(path, "r") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                where = f"{path}, line {number}"
                yield where, _object(_parsed(line, where), where)


def _json(path: Path) -> Rows:
    """A list of rows, SQuAD's nesting of articles, paragraphs and questions, or a row per line after all."""
    with _opened(path, "r") as file:
        text = file.read()
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        if text.lstrip().startswith("{") and "\n" in text.strip() and _is_object(text.strip().partition("\n")[0]):
            yield from _jsonl(path)
            return
        line = f", line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise MixlabError(f"{path}{line}: not JSON: {one_line(error)[:120]}") from error
    if isinstance(data, dict) and "data" in data:
        yield from _squad(data["data"], str(path))
        return
    for number, row in enumerate(data if isinstance(data, list) else [data], 1):
        yield f"{path}, row {number}", _object(row, f"{path}, row {number}")


def _squad(articles: Any, path: str) -> Rows:
    for a, article in enumerate(_list(articles, path), 1):
        for p, paragraph in enumerate(_list(_member(article, "paragraphs", f"{path}, article {a}"), f"{path}, article {a}"), 1):
            where = f"{path}, article {a}, paragraph {p}"
            context = _member(paragraph, "context", where)
            for q, question in enumerate(_list(_member(paragraph, "qas", where), where), 1):
                yield f"{where}, question {q}", {**_object(question, f"{where}, question {q}"), "context": context}


def _table(path: Path, separator: str) -> Rows:
    """CSV with quotes as in RFC 4180; in TSV a quote is a character like any other."""
    csv.field_size_limit(sys.maxsize)
    quoting = csv.QUOTE_NONE if separator == "\t" else csv.QUOTE_MINIMAL
    with _opened(path, "r", newline="") as file:
        reader = csv.reader(file, delimiter=separator, quoting=quoting, strict=True)
        header: list[str] = []
        try:
            for fields in reader:
                where = f"{path}, line {reader.line_num}"
                if not fields:
                    continue
                if not header:
                    header = _header(fields, where)
                elif len(fields) != len(header):
                    raise MixlabError(f"{where}: {len(fields)} fields, but the header has {len(header)} ({', '.join(header)[:80]})")
                else:
                    yield where, dict(zip(header, fields, strict=True))
        except csv.Error as error:
            raise MixlabError(f"{path}, line {reader.line_num}: {one_line(error)}; check the quotes") from error


def _header(fields: list[str], where: str) -> list[str]:
    header = [field.strip() for field in fields]
    twice = [name for name in header if header.count(name) > 1]
    if twice:
        raise MixlabError(f"{where}: two columns are called {twice[0]!r}; the first line must name the columns")
    return header


def _opened(path: Path, mode: str, newline: str | None = None) -> IO[Any]:
    try:
        return path.open(mode) if "b" in mode else path.open(mode, encoding="utf-8-sig", newline=newline)
    except OSError as error:
        raise MixlabError(f"{path}: {error.strerror or one_line(error)}") from error


def _decode(decoder: codecs.IncrementalDecoder, block: bytes, final: bool, path: Path, line: int) -> None:
    before = len(decoder.getstate()[0])
    try:
        decoder.decode(block, final)
    except UnicodeDecodeError as error:
        at = line + block.count(b"\n", 0, max(error.start - before, 0))
        raise MixlabError(f"{path}, line {at}: not UTF-8 text ({error.reason}); save the file as UTF-8") from error


def _inspect_parquet(path: Path) -> str:
    with _opened(path, "rb") as file:
        digest, first, last, size = hashlib.sha256(), b"", b"", 0
        while block := file.read(BLOCK):
            digest.update(block)
            first, last, size = first or block[:4], (last + block)[-4:], size + len(block)
    if size == 0:
        raise MixlabError(f"{path} is empty; there is nothing to read")
    if (first, last) != (b"PAR1", b"PAR1"):
        raise MixlabError(f"{path} is not a whole Parquet file: its first or last bytes are not PAR1")
    return digest.hexdigest()


def _elsewhere(split: str) -> str:
    if split == "validation":
        return "say which rows to measure on with validation=PLACE, or give a folder that holds one file called validation"
    return f"give a folder that holds one file called {split}, or that file itself"


def _known(path: Path) -> Path:
    if path.suffix.lower() not in FORMATS:
        raise MixlabError(f"{path}: files ending in {path.suffix or 'nothing'!r} are not read; known endings: {', '.join(FORMATS)}")
    return path


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MixlabError(f"{where}: not JSON: {one_line(error)[:120]}") from error


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise MixlabError(f"{where}: a row must be an object with named columns, not {str(value)[:40]!r}")
    return value


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise MixlabError(f"{where}: a list is expected, not {str(value)[:40]!r}")
    return value


def _member(value: Any, name: str, where: str) -> Any:
    if name not in _object(value, where):
        raise MixlabError(f"{where}: {name!r} is missing")
    return value[name]
