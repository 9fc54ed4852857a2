"""The order of examples, as a pure function of (seed, epoch): a run that resumes, or uses more workers, sees the same batches.

A key is `epoch * len + index`. The sampler yields keys, `Keyed` turns a key into its example with `index` and `epoch` added, and a collator
that draws from those two alone gives the same batch in any worker. (Trainer needs `remove_unused_columns=False`, or the two are dropped.)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from torch.utils.data import Dataset, Sampler

from mixlab.data import draws
from mixlab.errors import MixlabError

WINDOW = 64  # batches whose examples are sorted together: enough to cut padding, few enough to stay random


class Keyed(Dataset[dict[str, Any]]):
    """A dataset whose keys know their epoch: `keyed[epoch * len + index]` is `dataset[index]` with `index` and `epoch` added."""

    def __init__(self, dataset: Any) -> None:
        if len(dataset) == 0:
            raise MixlabError("the dataset holds no examples; there is nothing to train on")
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, key: int) -> dict[str, Any]:
        epoch, index = self._split(key)
        return {**self.dataset[index], "index": index, "epoch": epoch}

    def __getitems__(self, keys: Sequence[int]) -> list[dict[str, Any]]:
        """Several at once, which Arrow reads faster than one by one."""
        if not hasattr(self.dataset, "__getitems__"):
            return [self[key] for key in keys]
        split = [self._split(key) for key in keys]
        rows = self.dataset.__getitems__([index for _, index in split])
        return [{**row, "index": index, "epoch": epoch} for row, (epoch, index) in zip(rows, split, strict=True)]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[key] for key in range(len(self)))  # one epoch; keys themselves never end

    def _split(self, key: int) -> tuple[int, int]:
        if key < 0:
            raise IndexError(f"key {key}; keys start at 0")
        return divmod(int(key), len(self))


class StatelessSampler(Sampler[int]):
    """The keys of one epoch in random order."""

    def __init__(self, length: int, seed: int) -> None:
        if length < 1:
            raise MixlabError(f"the dataset holds {length} examples; there is nothing to train on")
        self.length, self.seed, self.epoch = length, seed, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def order(self) -> np.ndarray:
        """Indices in the order of this epoch."""
        return draws.permutation(self.seed, draws.ORDER, self.epoch, 0, self.length)

    def __iter__(self) -> Iterator[int]:
        return iter((self.order() + self.epoch * self.length).tolist())

    def __len__(self) -> int:
        return self.length


class BucketSampler(StatelessSampler):
    """The keys of one epoch so that every `batch_size` in a row have similar lengths; the batches come in random order.

    `batch_size` is the global one. The only batch that may be smaller is the last.
    """

    def __init__(self, lengths: Sequence[int], batch_size: int, seed: int) -> None:
        super().__init__(len(lengths), seed)
        if batch_size < 1:
            raise MixlabError(f"batch_size is {batch_size}; it must be at least 1")
        self.lengths, self.batch_size = np.asarray(lengths), batch_size

    def order(self) -> np.ndarray:
        shuffled = super().order()
        window = WINDOW * self.batch_size
        parts = [shuffled[start : start + window] for start in range(0, self.length, window)]
        in_buckets = np.concatenate([part[np.argsort(self.lengths[part], kind="stable")] for part in parts])
        full = self.length // self.batch_size
        batches = in_buckets[: full * self.batch_size].reshape(full, self.batch_size)
        mixed = batches[draws.permutation(self.seed, draws.ORDER, self.epoch, 1, full)]
        return np.concatenate([mixed.reshape(-1), in_buckets[full * self.batch_size :]])
