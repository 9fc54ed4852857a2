"""What the data tests share: a cache of their own, quiet bars, and small tokenizers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from mixlab.data import vocabulary

# Real files to try, if there are any; none of them belongs to the project.
REAL = Path(os.environ.get("MIXLAB_DATA") or Path(__file__).parents[2].parent / "shared" / "data")
TEXTS = [
    "The gate decides how much of each token passes, and its bias starts at one.",
    "Attention reads all tokens; a static gate reads them with fixed weights.",
    "Ünïcode, numbers 12,345.67 and punctuation (even this) are ordinary text.",
    "Reading, re-reading and unreadable readers read the readable readings again.",
] * 5


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    import datasets

    before, datasets.config.HF_DATASETS_CACHE = datasets.config.HF_DATASETS_CACHE, tmp_path_factory.mktemp("cache")
    datasets.disable_progress_bars()
    yield
    datasets.config.HF_DATASETS_CACHE = before
    datasets.enable_progress_bars()


@pytest.fixture(params=vocabulary.KINDS, scope="session")
def tokenizer(request: pytest.FixtureRequest) -> PreTrainedTokenizerFast:
    return vocabulary.train(TEXTS, request.param, 400, 64, progress=False)


@pytest.fixture(scope="session")
def wordpiece() -> PreTrainedTokenizerFast:
    return vocabulary.train(TEXTS, "wordpiece", 200, 64, progress=False)


@pytest.fixture(scope="session")
def causal() -> PreTrainedTokenizerFast:
    return vocabulary.train(TEXTS, "bpe", 400, 64, causal=True, progress=False)


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str | bytes], Path]:
    def written(name: str, content: str | bytes) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return written
