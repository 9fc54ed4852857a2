"""Scores of answers by the official rules of SQuAD v2.0, which hold for v1.1 too, and the threshold below which no answer is given.

Two texts are equal when they are after `normalise`; F1 is that of their words as bags. Of several gold answers the best match counts, and
those that normalise to nothing do not; a question without one is answered rightly by nothing.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from mixlab.tasks.metrics import interval

Array = np.ndarray
ARTICLES = re.compile(r"\b(a|an|the)\b")
WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise(text: str) -> str:
    """Lower case, without ASCII punctuation, articles and superfluous blanks."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(WITHOUT_PUNCTUATION)).split())


def exact(found: str, golds: Sequence[str]) -> float:
    """1 when the answer equals one of the gold answers, else 0."""
    return _best(found, golds, lambda a, b: float(a == b))


def f1(found: str, golds: Sequence[str]) -> float:
    """The best overlap of words with one of the gold answers."""
    return _best(found, golds, _overlap)


def _best(found: str, golds: Sequence[str], score: Callable[[str, str], float]) -> float:
    told = [gold for gold in map(normalise, golds) if gold] or [""]
    return max(score(normalise(found), gold) for gold in told)


def _overlap(found: str, gold: str) -> float:
    """F1 of two normalised texts; an empty one matches only an empty one."""
    ours, theirs = found.split(), gold.split()
    if not ours or not theirs:
        return float(ours == theirs)
    common = sum((Counter(ours) & Counter(theirs)).values())
    return 2 * common / (len(ours) + len(theirs))


def measured(found: Sequence[str], golds: Sequence[Sequence[str]]) -> dict[str, Any]:
    """EM and F1 with 95% intervals over questions; apart, where some questions have no answer."""
    matches = np.array([exact(*pair) for pair in zip(found, golds, strict=True)])
    overlaps = np.array([f1(*pair) for pair in zip(found, golds, strict=True)])
    answerable = np.array([bool(gold) for gold in golds])
    result: dict[str, Any] = {}
    for name, scores in (("exact", matches), ("f1", overlaps)):
        result[name] = float(scores.mean())
        result[f"{name}_95"] = interval(lambda chosen, scores=scores: float(scores[chosen].mean()), len(scores))
    result["questions"] = len(matches)
    if not answerable.all():
        for name, some in (("with_answer", answerable), ("without_answer", ~answerable)):
            if some.any():
                result[name] = {"exact": float(matches[some].mean()), "f1": float(overlaps[some].mean()), "questions": int(some.sum())}
    return result


def best_threshold(margins: Float[Array, " q"], answered: Float[Array, " q"], silent: Float[Array, " q"]) -> tuple[float, float]:
    """(threshold, mean score) where the mean is highest, when questions with a margin above the threshold are left without an answer.

    `answered` and `silent` are each question's scores with its answer and with none.
    """
    order = np.argsort(margins, kind="stable")
    ascending = margins[order]
    totals = silent.sum() + np.concatenate([[0.0], np.cumsum((answered - silent)[order])])  # the k least margins are answered
    possible = np.append(True, np.append(ascending[1:] > ascending[:-1], True))  # equal margins share their fate
    possible &= np.append(True, np.isfinite(ascending))
    most = int(np.argmax(np.where(possible, totals, -np.inf)))
    threshold = ascending[most - 1] if most else np.nan_to_num(ascending[0], posinf=1.0) - 1.0
    return float(threshold), float(totals[most] / len(margins))
