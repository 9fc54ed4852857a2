"""How examples reach the trainer: keyed, in a stateless order, in whole batches, from processes that leave signals alone."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import Sampler

from mixlab.data.sampling import Keyed, StatelessSampler
from mixlab.errors import MixlabError
from mixlab.training.interrupt import calm_worker

KEYS = ("index", "epoch")  # for the collator; the model has no use for them


class WholeBatches(Sampler[int]):
    """The keys of another sampler without those that fill no whole batch, so that every step has the same size at any world size."""

    def __init__(self, sampler: StatelessSampler, batch_size: int) -> None:
        self.sampler, self.batch_size = sampler, batch_size
        if len(sampler) < batch_size:
            raise MixlabError(f"the dataset holds {len(sampler)} examples, fewer than one batch of {batch_size}; make batch_size smaller")

    def set_epoch(self, epoch: int) -> None:
        self.sampler.set_epoch(epoch)

    def __len__(self) -> int:
        return len(self.sampler) // self.batch_size * self.batch_size

    def __iter__(self) -> Iterator[int]:
        return itertools.islice(iter(self.sampler), len(self))


class WithoutKeys:
    """A collator whose batches hold what the model takes, and not the keys that the examples came with."""

    def __init__(self, collator: Callable[[Sequence[Any]], dict[str, Any]]) -> None:
        self.collator = collator

    def __call__(self, examples: Sequence[Any]) -> dict[str, Any]:
        batch = self.collator(examples)
        return {name: value for name, value in batch.items() if name not in KEYS}


class WorkerStart:
    """What a process that loads data does first."""

    def __init__(self, seed_worker: Callable[[int], None] | None) -> None:
        self.seed_worker = seed_worker

    def __call__(self, worker: int) -> None:
        calm_worker()
        torch.set_num_threads(1)
        if self.seed_worker is not None:
            self.seed_worker(worker)


def keyed(dataset: Any) -> Any:
    """With keys, where a dataset has a length; a stream is taken as it comes."""
    if dataset is None or isinstance(dataset, Keyed) or not hasattr(dataset, "__len__"):
        return dataset
    if isinstance(dataset, dict):
        return {name: keyed(part) for name, part in dataset.items()}
    return Keyed(dataset)


def prepare(loader: Any, generator: torch.Generator) -> Any:
    """A loader of Trainer that draws from its own generator: by itself it takes a number from the one that dropout draws from."""
    base = getattr(loader, "base_dataloader", loader)
    base.generator = generator
    base.worker_init_fn = WorkerStart(base.worker_init_fn)
    return loader
