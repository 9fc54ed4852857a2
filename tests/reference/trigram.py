"""Interpolated Kneser-Ney of order 3, by counting in dictionaries; for every context of one order it can be summed over all tokens.

p3(c | a b) = (N(abc) - D3) / N(ab*) + D3 |{c: abc}| / N(ab*) p2(c | b)
p2(c | b)   = (|{a: abc}| - D2) / |{(a, c): abc}| + ...  p1(c),   p1(c) alike from pairs,   D = n1 / (n1 + 2 n2)
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any


def discount(counts: Counter[Any]) -> float:
    once = sum(1 for count in counts.values() if count == 1)
    twice = sum(1 for count in counts.values() if count == 2)
    return once / (once + 2 * twice) if once and twice else 0.5


def kneser_ney(seen: Sequence[int], vocabulary: int) -> Any:
    """p(c, a, b): the probability of c after a b."""
    triples = Counter((seen[i], seen[i + 1], seen[i + 2]) for i in range(len(seen) - 2))
    pairs: Counter[Any] = Counter()
    for _, b, c in triples:
        pairs[b, c] += 1
    singles: Counter[Any] = Counter()
    for _, c in pairs:
        singles[(c,)] += 1
    orders = [(counts, discount(counts), followers(counts)) for counts in (singles, pairs, triples)]

    def probability(c: int, *context: int) -> float:
        p = 1.0 / vocabulary
        for length, (counts, d, after) in enumerate(orders):
            before = context[len(context) - length :]
            if before not in after:
                continue  # never seen: the shorter context decides
            total = sum(counts[(*before, token)] for token in after[before])
            p = max(counts[(*before, c)] - d, 0) / total + d * len(after[before]) / total * p
        return p

    return probability


def followers(counts: Counter[Any]) -> dict[Any, set[int]]:
    after: dict[Any, set[int]] = defaultdict(set)
    for *before, token in counts:
        after[tuple(before)].add(token)
    return after
