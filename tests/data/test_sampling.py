"""Orders and keys are pure functions: of workers, of what was skipped and of the number of processes they know nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader
from transformers import PreTrainedTokenizerFast

from mixlab.data import draws
from mixlab.data.masking import MaskingCollator
from mixlab.data.sampling import BucketSampler, Keyed, StatelessSampler
from mixlab.errors import MixlabError

BATCH = 4
ROWS = [{"input_ids": [2, *range(10, 15 + i % 9), 3]} for i in range(22)]


def batches(tokenizer: PreTrainedTokenizerFast, epoch: int, workers: int = 0, bucketed: bool = False) -> list[dict[str, Any]]:
    sampler = BucketSampler([len(row["input_ids"]) for row in ROWS], BATCH, 7) if bucketed else StatelessSampler(len(ROWS), 7)
    sampler.set_epoch(epoch)
    loader = DataLoader(
        Keyed(ROWS),
        BATCH,
        sampler=sampler,
        num_workers=workers,
        collate_fn=MaskingCollator(tokenizer, 3),
        multiprocessing_context="fork" if workers else None,
    )
    return list(loader)


def same(a: list[dict[str, Any]], b: list[dict[str, Any]]) -> bool:
    return len(a) == len(b) and all(x.keys() == y.keys() and all(torch.equal(x[k], y[k]) for k in x) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("bucketed", [False, True])
@pytest.mark.parametrize("workers", [1, 2, pytest.param(4, marks=pytest.mark.slow)])
def test_workers_do_not_matter(wordpiece: PreTrainedTokenizerFast, workers: int, bucketed: bool) -> None:
    for epoch in (0, 1):
        assert same(batches(wordpiece, epoch, 0, bucketed), batches(wordpiece, epoch, workers, bucketed))
    assert not same(batches(wordpiece, 0, 0, bucketed), batches(wordpiece, 1, 0, bucketed))


@pytest.mark.parametrize("skipped", [1, 3, 5])
def test_a_resumed_epoch_goes_on_with_the_same_batches(wordpiece: PreTrainedTokenizerFast, skipped: int) -> None:
    from accelerate import skip_first_batches

    sampler = StatelessSampler(len(ROWS), 7)
    sampler.set_epoch(2)
    loader = DataLoader(Keyed(ROWS), BATCH, sampler=sampler, collate_fn=MaskingCollator(wordpiece, 3))
    torch.rand(5)  # whatever state the process is in
    assert same(list(skip_first_batches(loader, skipped)), batches(wordpiece, 2)[skipped:])


def test_two_processes_share_one_global_batch(wordpiece: PreTrainedTokenizerFast) -> None:
    from accelerate.data_loader import BatchSamplerShard

    whole = [[int(key) for key in batch] for batch in BatchSampler(StatelessSampler(24, 1), 4, False)]
    shards = [list(BatchSamplerShard(BatchSampler(StatelessSampler(24, 1), 2, False), 2, rank)) for rank in (0, 1)]
    assert [left + right for left, right in zip(*shards, strict=True)] == whole
    rows, collate = Keyed(ROWS[:1] * 24), MaskingCollator(wordpiece, 3)
    for left, right, both in zip(*shards, whole, strict=True):
        halves = [collate([rows[key] for key in part])["input_ids"] for part in (left, right)]
        assert torch.equal(torch.cat(halves), collate([rows[key] for key in both])["input_ids"])


@pytest.mark.parametrize("length", [1, 2, 257])
def test_an_epoch_holds_every_index_once(length: int) -> None:
    for sampler in (StatelessSampler(length, 5), BucketSampler(list(range(length)), 3, 5)):
        for epoch in (0, 3):
            sampler.set_epoch(epoch)
            assert sorted(sampler) == list(range(epoch * length, (epoch + 1) * length))
            assert len(sampler) == length


def test_seeds_and_epochs_give_other_orders() -> None:
    orders = set()
    for seed in range(5):
        sampler = StatelessSampler(50, seed)
        for epoch in range(5):
            sampler.set_epoch(epoch)
            orders.add(tuple(sampler.order()))
    assert len(orders) == 25


def test_positions_are_uniform() -> None:
    counts = np.zeros((6, 6))
    sampler = StatelessSampler(6, 0)
    for epoch in range(3000):
        sampler.set_epoch(epoch)
        counts[np.arange(6), sampler.order()] += 1
    assert np.abs(counts - 500).max() < 5 * np.sqrt(500 * 5 / 6)


def test_buckets_hold_similar_lengths_and_only_the_last_batch_is_short() -> None:
    lengths = np.random.default_rng(0).integers(5, 400, 1003)
    order = BucketSampler(lengths.tolist(), 8, 0).order()
    padded = sum(lengths[order[i : i + 8]].max() * len(order[i : i + 8]) for i in range(0, 1003, 8))
    shuffled = StatelessSampler(1003, 0).order()
    naive = sum(lengths[shuffled[i : i + 8]].max() * len(shuffled[i : i + 8]) for i in range(0, 1003, 8))
    assert padded < 1.03 * lengths.sum() < naive / 1.5
    assert list(lengths[order[:8]]) != sorted(lengths)[:8]


def test_keys_carry_index_and_epoch() -> None:
    keyed = Keyed([{"x": i} for i in range(5)])
    assert keyed[13] == {"x": 3, "index": 3, "epoch": 2}
    assert keyed.__getitems__([13, 0]) == [keyed[13], keyed[0]]
    assert len(list(keyed)) == 5
    with pytest.raises(IndexError):
        keyed[-1]


def test_keys_read_arrow_rows() -> None:
    from datasets import Dataset

    keyed = Keyed(Dataset.from_dict({"x": [1, 2, 3]}))
    assert keyed.__getitems__([5, 1]) == [{"x": 3, "index": 2, "epoch": 1}, {"x": 2, "index": 1, "epoch": 0}]


def test_bits_are_philox() -> None:
    """Written down once: if these change, resumed runs of older versions change."""
    assert draws.permutation(0, draws.ORDER, 0, 0, 8).tolist() == draws.permutation(0, draws.ORDER, 0, 0, 8).tolist()
    bits = np.random.Philox(key=np.array([9, 1], np.uint64), counter=np.array([0, 0, 4, 5], np.uint64)).random_raw(3)
    assert draws.uniform(9, 1, 4, 5, 3).tolist() == [(int(b) >> 11) / 2**53 for b in bits]
    assert list(StatelessSampler(10, 0)) == [5, 3, 7, 8, 2, 4, 1, 0, 6, 9]


def test_what_cannot_be_sampled_is_refused() -> None:
    for wrong in (
        lambda: StatelessSampler(0, 0),
        lambda: Keyed([]),
        lambda: BucketSampler([1], 0, 0),
        lambda: list(StatelessSampler(3, -1)),
    ):
        with pytest.raises(MixlabError):
            wrong()
