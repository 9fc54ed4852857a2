"""From logits to answers: the likeliest spans over all windows of a question, and how likely it is that there is none.

A window's score of tokens i to j is log p(start = i) + log p(end = j), over its real tokens; "not in this window" is i = j = 0, as in
training. That is what makes windows comparable: one without the answer has little left for its spans. A question has no answer when no
window has one, so its score is that of the window which is surest to hold something.

Axes: n tokens of a window, l spans that start at a token.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

Array = np.ndarray


@dataclass(frozen=True)
class Span:
    """Characters of the context, and the log probability of both ends."""

    start: int
    end: int
    score: float


@dataclass(frozen=True)
class Found:
    """What the windows of one question say: the best different spans, best first, and the score of having none."""

    spans: tuple[Span, ...]
    null: float

    @property
    def margin(self) -> float:
        """By how much having no answer is likelier than the best span."""
        return self.null - self.spans[0].score if self.spans else math.inf

    def answer(self, threshold: float | None) -> Span | None:
        """The best span; none where there is none, or having none is likelier by more than the threshold."""
        if not self.spans or (threshold is not None and self.margin > threshold):
            return None
        return self.spans[0]


def in_window(
    start: Float[Array, " n"], end: Float[Array, " n"], offsets: Int[Array, "n 2"], longest: int, count: int
) -> tuple[list[Span], float]:
    """The `count` best spans of at most `longest` tokens of the context, from its logits without padding; and the score of having none."""
    start, end = _log_softmax(start), _log_softmax(end)
    scores = _of_spans(start, end, offsets[:, 1] > offsets[:, 0], min(longest, len(start)))
    flat = scores.ravel()
    best = np.argpartition(-flat, min(count, len(flat) - 1))[: count + 1]
    best = best[np.lexsort((best, -flat[best]))][:count]
    first, more = np.divmod(best[np.isfinite(flat[best])], scores.shape[1])
    spans = [Span(int(offsets[i, 0]), int(offsets[i + k, 1]), float(scores[i, k])) for i, k in zip(first, more, strict=True)]
    return spans, float(start[0] + end[0])


def over_windows(windows: Iterable[tuple[Sequence[Span], float]], count: int) -> Found:
    """All windows of a question as one; what two of them share is kept once, with its better score."""
    best: dict[tuple[int, int], float] = {}
    null = math.inf
    for spans, none in windows:
        null = min(null, none)
        for span in spans:
            place = (span.start, span.end)
            best[place] = max(span.score, best.get(place, -math.inf))
    ranked = sorted(best.items(), key=lambda item: (-item[1], item[0]))
    return Found(tuple(Span(*place, score) for place, score in ranked[:count]), null)


def _of_spans(start: Float[Array, " n"], end: Float[Array, " n"], inside: Bool[Array, " n"], longest: int) -> Float[Array, "n l"]:
    """Scores of (i, i + k) for k below `longest`; minus infinity where an end is not of the context."""
    start, end = np.where(inside, start, -np.inf), np.where(inside, end, -np.inf)
    ends = np.append(end, np.full(longest - 1, -np.inf))
    return start[:, None] + np.lib.stride_tricks.sliding_window_view(ends, longest)


def _log_softmax(logits: Float[Array, " n"]) -> Float[Array, " n"]:
    logits = logits.astype(np.float64)
    shifted = logits - logits.max()
    return shifted - np.log(np.exp(shifted).sum())
