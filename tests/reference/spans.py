"""The best spans of a window, by looking at every pair of tokens."""

from __future__ import annotations

import math


def log_softmax(logits: list[float]) -> list[float]:
    total = math.log(sum(math.exp(logit) for logit in logits))
    return [logit - total for logit in logits]


def spans(start: list[float], end: list[float], offsets: list[tuple[int, int]], longest: int) -> list[tuple[float, int, int]]:
    """(score, first character, last character) of all allowed spans, best first."""
    start, end = log_softmax(start), log_softmax(end)
    pairs = [(i, j) for i in range(len(start)) for j in range(i, len(end)) if j - i < longest]
    allowed = [(i, j) for i, j in pairs if offsets[i][0] >= 0 and offsets[j][0] >= 0]
    found = [(start[i] + end[j], offsets[i][0], offsets[j][1]) for i, j in allowed]
    return sorted(found, key=lambda span: (-span[0], span[1], span[2]))
