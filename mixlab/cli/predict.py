"""Predict with a finished run: labels, words for [MASK], or answers from a document; one JSON line per text."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, BinaryIO

import tyro

from mixlab.data import files
from mixlab.errors import MixlabError, one_line


def main(
    run: Annotated[Path, tyro.conf.Positional],
    texts: Annotated[tuple[str, ...], tyro.conf.Positional] = (),
    input: Path | None = None,
    document: Path | None = None,
) -> None:
    """Print a JSON line per text. Without texts and without --input, lines of standard input are read.

    Args:
        run: The folder of a run.
        texts: The texts; the two of a pair, or a question and its document, with a tab between them.
        input: A file with one text per line.
        document: A text file of any length that the texts are questions about.
    """
    from mixlab.tasks.runs import opened

    if texts and input is not None:
        raise MixlabError("give texts or --input, not both")
    task, model, tokenizer = opened(run)
    source = Lines(texts, input)
    asked: Iterable[str] = source
    if document is not None:
        if task.job.task != "question-answering":
            raise MixlabError(f"{run} does {task.job.task}; --document is for question-answering, so leave it out")
        asked = questions_about(document, asked)
    try:
        for record in task.predict(model, tokenizer, asked):
            print(json.dumps(record, ensure_ascii=False), flush=True)
    except MixlabError as error:
        raise source.placed(error) from error


def questions_about(document: Path, questions: Iterable[str]) -> Iterator[str]:
    """Each with the document, as one object."""
    files.inspect(document)
    context = document.read_text(encoding="utf-8-sig")
    return (json.dumps({"question": question, "context": context}) for question in questions)


class Lines:
    """Texts of the command line, of a file or of standard input, remembering which came last; blank lines are passed over."""

    def __init__(self, texts: tuple[str, ...], path: Path | None) -> None:
        self.texts, self.path, self.where = texts, path, ""

    def __iter__(self) -> Iterator[str]:
        if self.texts:
            yield from self.texts
            return
        name = "standard input" if self.path is None else str(self.path)
        with sys.stdin.buffer if self.path is None else opened_file(self.path) as stream:
            for number, raw in enumerate(stream, 1):
                self.where = f"{name}, line {number}"
                text = self._text(raw, first=number == 1)
                if text.strip():
                    yield text

    def _text(self, raw: bytes, first: bool) -> str:
        if b"\0" in raw:
            raise MixlabError(f"{self.where}: a NUL byte; this is a binary file, or text in UTF-16: save it as UTF-8")
        try:
            return raw.decode("utf-8-sig" if first else "utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise MixlabError(f"{self.where}: not UTF-8 (byte {error.start}); convert the file") from error

    def placed(self, error: MixlabError) -> MixlabError:
        """The error with the line that was read last, unless it says so itself. Tasks that refuse a text read one at a time."""
        return error if str(error).startswith(self.where) else MixlabError(f"{self.where}: {error}")


def opened_file(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise MixlabError(f"{path}: {error.strerror or one_line(error)}; give a file of texts") from error
