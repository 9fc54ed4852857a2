"""A 3-gram language model of token ids, interpolated Kneser-Ney: what counting alone reaches, for language models to be compared with.

    p(c | a b) = (N(abc) - D)/N(ab.) + D K(ab.)/N(ab.) p(c | b)      N counts, K different followers, D the discount of the order

p(c | b) and p(c) look alike, with numbers of different contexts in place of counts; below them every token is equally likely.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

Array = np.ndarray


@dataclass(frozen=True)
class Order:
    """Grams of one order as sorted numbers (their tokens as digits), with counts, and the sums over grams of a common context."""

    grams: Int[Array, " g"]
    counts: Int[Array, " g"]
    contexts: Int[Array, " k"]
    totals: Int[Array, " k"]
    kinds: Int[Array, " k"]
    discount: float

    @classmethod
    def of(cls, grams: Int[Array, " g"], counts: Int[Array, " g"], vocabulary: int) -> Order:
        """From different grams in ascending order."""
        contexts, first = np.unique(grams // vocabulary, return_index=True)
        once, twice = int((counts == 1).sum()), int((counts == 2).sum())
        discount = once / (once + 2 * twice) if once and twice else 0.5
        return cls(grams, counts, contexts, np.add.reduceat(counts, first), np.diff(first, append=len(grams)), discount)

    def interpolate(self, grams: Int[Array, " n"], vocabulary: int, lower: Float[Array, " n"]) -> Float[Array, " n"]:
        """Probabilities of the last tokens of `grams`, given those that forget the first token of the context."""
        found, known = _find(self.grams, grams), _find(self.contexts, grams // vocabulary)
        count = np.where(found >= 0, self.counts[found], 0)
        total = np.where(known >= 0, self.totals[known], 1)
        kinds = np.where(known >= 0, self.kinds[known], 1)
        mixed = np.maximum(count - self.discount, 0) / total + self.discount * kinds / total * lower
        return np.where(known >= 0, mixed, lower)


class Trigram:
    """Counts of a stream of ids below `vocabulary`."""

    def __init__(self, ids: Int[Array, " n"], vocabulary: int) -> None:
        self.vocabulary = vocabulary
        ids = ids.astype(np.int64)
        grams, counts = np.unique((ids[:-2] * vocabulary + ids[1:-1]) * vocabulary + ids[2:], return_counts=True)
        pairs, after = np.unique(grams % vocabulary**2, return_counts=True)  # in how many contexts a pair stands
        single, before = np.unique(pairs % vocabulary, return_counts=True)
        self.orders = [Order.of(single, before, vocabulary), Order.of(pairs, after, vocabulary), Order.of(grams, counts, vocabulary)]

    def log_probabilities(self, ids: Int[Array, " n"]) -> Float[Array, " n"]:
        """Of every token of a stream, in nats; before its first token stand two of id 0."""
        v = self.vocabulary
        c = ids.astype(np.int64)
        b, a = np.concatenate([[0], c[:-1]]), np.concatenate([[0, 0], c[:-2]])[: len(c)]
        p = np.full(len(c), 1.0 / v)
        for order, grams in zip(self.orders, (c, b * v + c, (a * v + b) * v + c), strict=True):
            p = order.interpolate(grams, v, p)
        return np.log(p)


def _find(sorted_: Int[Array, " g"], wanted: Int[Array, " n"]) -> Int[Array, " n"]:
    """Where each value stands, or -1."""
    place = np.minimum(np.searchsorted(sorted_, wanted), len(sorted_) - 1)
    return np.where(sorted_[place] == wanted, place, -1)
