"""Predict with a finished run: labels, words for [MASK], or answers from a document; one JSON line per text."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

import tyro

from mixlab.data import files
from mixlab.errors import MixlabError


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
    asked: Iterable[str] = texts or lines(input)
    if document is not None:
        if task.job.task != "question-answering":
            raise MixlabError(f"{run} does {task.job.task}; --document is for question-answering, so leave it out")
        asked = questions_about(document, asked)
    for record in task.predict(model, tokenizer, asked):
        print(json.dumps(record, ensure_ascii=False), flush=True)


def questions_about(document: Path, questions: Iterable[str]) -> Iterator[str]:
    """Each with the document, as one object."""
    files.inspect(document)
    context = document.read_text(encoding="utf-8-sig")
    return (json.dumps({"question": question, "context": context}) for question in questions)


def lines(path: Path | None) -> Iterator[str]:
    """Texts of a file or of standard input; blank lines are passed over."""
    name = "standard input" if path is None else str(path)
    stream = sys.stdin.buffer if path is None else path.open("rb")
    with stream:
        for number, raw in enumerate(stream, 1):
            try:
                text = raw.decode("utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                raise MixlabError(f"{name}:{number}: not UTF-8 (byte {error.start}); convert the file") from error
            if text.strip():
                yield text
