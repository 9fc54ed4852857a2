"""Pretraining examples: documents tokenised in parallel, joined with a separator between them, cut to n tokens, kept as Arrow.

The joined stream is  doc1 [SEP] doc2 [SEP] ...  and an example is  [CLS] (n - 2 tokens of it) [SEP],  as finetuning will show the model.
Causal examples are n tokens of  doc1 [EOS] doc2 [EOS] ...  as they come. An example may hold the end of one document and the start of the
next; only the last example may be shorter than n.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from mixlab.data import fingerprint
from mixlab.data.vocabulary import literal
from mixlab.errors import MixlabError, one_line

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedTokenizerFast

LAYOUT = 1  # raised when the same input would give other examples
ROWS = 64  # read at a time
BATCH = 2**20  # characters tokenised at a time: enough for all cores, little memory
COUNTS = ["documents", "characters", "bytes", "tokens", "examples"]
DATA, ABOUT = "examples.arrow", "about.json"


@dataclass(frozen=True)
class Cut:
    """How the stream becomes examples: `separator` after each document, `head` and `tail` around each example."""

    length: int
    separator: int
    head: tuple[int, ...] = ()
    tail: tuple[int, ...] = ()

    @property
    def content(self) -> int:
        return self.length - len(self.head) - len(self.tail)


def chunks(
    texts: Dataset, tokenizer: PreTrainedTokenizerFast, length: int, folder: str | Path, causal: bool = False, progress: bool = False
) -> Dataset:
    """Examples of `length` tokens in the column `input_ids`; made once, then read from `folder`.

    `texts` has a column `text`, and may have `document_end`, false where a text goes on in the next row. The tokenizer's threads do the
    work: all cores, or as many as the environment's RAYON_NUM_THREADS says. `progress` shows a bar on a terminal.
    """
    from filelock import FileLock

    cut = _cut(tokenizer, length, causal)
    key = fingerprint.of_settings([LAYOUT, fingerprint.of_dataset(texts), fingerprint.of_tokenizer(tokenizer), asdict(cut)])
    target = Path(folder) / f"examples-{key[:24]}"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists():
            with FileLock(f"{target}.lock"):  # one process works, the others wait for its result
                if not target.exists():
                    _build(texts, literal(tokenizer), cut, target, progress)
        return cast("Dataset", _open(target / DATA))
    except OSError as error:
        raise MixlabError(f"{target}: {one_line(error)}; nothing half-written was kept") from error


def about(examples: Dataset) -> dict[str, int]:
    """Counts written beside the examples: documents, characters, UTF-8 bytes, tokens, examples."""
    return json.loads((Path(examples.cache_files[0]["filename"]).parent / ABOUT).read_text(encoding="utf-8"))


def _cut(tokenizer: PreTrainedTokenizerFast, length: int, causal: bool) -> Cut:
    names = ("eos",) if causal else ("cls", "sep")
    ids = [getattr(tokenizer, f"{name}_token_id") for name in names]
    for name, value in zip(names, ids, strict=True):
        if value is None:
            raise MixlabError(
                f"the tokenizer has no {name} token, which {'causal' if causal else 'masked'} examples need; train one that has"
            )
    cut = Cut(length, ids[0]) if causal else Cut(length, ids[1], (ids[0],), (ids[1],))
    if cut.content < 1:
        raise MixlabError(f"length is {length}; examples need at least {length - cut.content + 1}")
    return cut


def _open(path: Path) -> Any:
    from datasets import Dataset

    return Dataset.from_file(str(path)).with_format("numpy")


def _build(texts: Dataset, bare: Any, cut: Cut, target: Path, progress: bool) -> None:
    """Write into a folder of another name, flush it, and rename: the target exists whole or not at all."""
    stage = target.with_name(f".{target.name}.partial")
    shutil.rmtree(stage, ignore_errors=True)  # of a process that was killed; whoever holds the lock owns the name
    stage.mkdir()
    try:
        counts = _write(texts, bare, cut, stage / DATA, progress)
        if not counts["tokens"]:
            raise MixlabError("the texts hold no tokens; every document is empty")
        (stage / ABOUT).write_text(json.dumps(counts, indent=2), encoding="utf-8")
        for path in (stage / DATA, stage / ABOUT, stage):
            _flush(path)
        os.rename(stage, target)
        _flush(target.parent)
    except BaseException:
        shutil.rmtree(stage, ignore_errors=True)
        raise


def _write(texts: Dataset, bare: Any, cut: Cut, path: Path, progress: bool) -> dict[str, int]:
    from datasets import Features, List, Value
    from datasets.arrow_writer import ArrowWriter

    counts: dict[str, int] = dict.fromkeys(COUNTS, 0)
    rest = np.empty(0, np.int32)
    with ArrowWriter(features=Features({"input_ids": List(Value("int32"))}), path=str(path)) as writer:
        for ids in encoded(texts, bare, cut.separator, counts, progress):
            stream = np.concatenate([rest, ids])
            whole = len(stream) // cut.content * cut.content
            if whole:
                writer.write_table(_table(stream[:whole].reshape(-1, cut.content), cut))
            rest = stream[whole:]
            counts["examples"] += whole // cut.content
        if len(rest):
            writer.write_table(_table(rest[None], cut))
            counts["examples"] += 1
        writer.finalize()
    return counts


def encoded(texts: Dataset, bare: Any, separator: int, counts: dict[str, int], progress: bool = False) -> Iterator[np.ndarray]:
    """Ids of all texts in their order, a batch at a time, `separator` after each document; `counts` is brought up to date.

    The tokenizer encodes one batch on all cores while the one before is turned into an array.
    """
    with ThreadPoolExecutor(1) as pool:
        waiting = None
        for batch, ends in _batches(texts, progress):
            ahead = pool.submit(_encode, bare, batch), ends
            counts["documents"] += sum(ends)
            counts["characters"] += sum(map(len, batch))
            counts["bytes"] += sum(len(text.encode("utf-8", "replace")) for text in batch)
            if waiting:
                yield _joined(waiting[0].result(), waiting[1], separator, counts)
            waiting = ahead
        if waiting:
            yield _joined(waiting[0].result(), waiting[1], separator, counts)


def _encode(bare: Any, batch: list[str]) -> Any:
    return bare.encode_batch_fast(batch, add_special_tokens=False)


def _joined(encodings: Any, ends: list[bool], separator: int, counts: dict[str, int]) -> np.ndarray:
    parts = []
    for encoding, end in zip(encodings, ends, strict=True):
        ids = encoding.ids
        counts["tokens"] += len(ids)
        if end:
            ids.append(separator)
        parts.append(np.array(ids, np.int32))
    return np.concatenate(parts)


def _batches(texts: Dataset, progress: bool) -> Iterator[tuple[list[str], list[bool]]]:
    """Texts until they hold BATCH characters, with whether each ends its document. Empty documents are passed over."""
    if "text" not in texts.column_names:
        raise MixlabError(f"the texts have no column 'text'; columns: {', '.join(texts.column_names)}")
    marked = "document_end" in texts.column_names
    batch, ends, size = [], [], 0
    plain = texts.with_format(None).select_columns(["text", "document_end"] if marked else ["text"])
    for rows in _shown(plain.iter(batch_size=ROWS), -(-len(texts) // ROWS), progress):
        found = cast("dict[str, list[Any]]", rows)
        for text, end in zip(found["text"], found["document_end"] if marked else [True] * len(found["text"]), strict=True):
            if text or (end and marked):
                batch.append(text or "")
                ends.append(end)
                size += len(text or "")
        if size >= BATCH:
            yield batch, ends
            batch, ends, size = [], [], 0
    if batch:
        yield batch, ends


def _shown(steps: Iterator[Any], total: int, progress: bool) -> Iterator[Any]:
    """With a bar, on a terminal."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    yield from track(steps, "tokenising", total, console=console, transient=True, disable=not (progress and console.is_terminal))


def _table(content: np.ndarray, cut: Cut) -> Any:
    """Rows of stream between head and tail, as an Arrow table without a copy per row."""
    import pyarrow as pa

    head = np.broadcast_to(np.array(cut.head, np.int32), (len(content), len(cut.head)))
    tail = np.broadcast_to(np.array(cut.tail, np.int32), (len(content), len(cut.tail)))
    rows = np.concatenate([head, content, tail], axis=1)
    offsets = np.arange(len(rows) + 1, dtype=np.int32) * rows.shape[1]
    return pa.table({"input_ids": pa.ListArray.from_arrays(pa.array(offsets), pa.array(rows.reshape(-1)))})


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
