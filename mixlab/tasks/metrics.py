"""Scores of classification and regression with 95% intervals from a bootstrap over items; scikit-learn and scipy count."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int

ROUNDS = 1000


def interval(score: Callable[[np.ndarray], float], items: int, seed: int = 0) -> list[float]:
    """The middle 95% of a score over resampled items."""
    generator = np.random.default_rng(seed)
    scores = [score(generator.integers(0, items, items)) for _ in range(ROUNDS)]
    return [float(value) for value in np.nanpercentile(scores, [2.5, 97.5])]


def class_metrics(found: np.ndarray, truth: np.ndarray, names: Sequence[str], groups: Sequence[str] | None = None) -> dict[str, Any]:
    """Of one label each (vectors) or several (matrices of 0 and 1: an item is right when all its labels are, MCC is over all decisions)."""
    from sklearn import metrics

    several = truth.ndim == 2
    right = (found == truth).all(-1) if several else found == truth
    labels = range(len(names))
    counted = metrics.multilabel_confusion_matrix(truth, found, labels=labels) if several else counts(truth, found, len(names))

    def f1(chosen: np.ndarray) -> float:
        return macro_f1(truth[chosen], found[chosen], len(names))

    def mcc(chosen: np.ndarray) -> float:
        return correlation(counts(truth[chosen].ravel(), found[chosen].ravel(), 2 if several else len(names)))

    result: dict[str, Any] = {"items": len(right), **_share(right)}
    for name, score in (("f1", f1), ("mcc", mcc)):
        result |= {name: score(np.arange(len(right))), f"{name}_95": interval(score, len(right))}
    result["confusion"] = {"labels": list(names), "rows": counted.tolist()}
    return result | _by_source(groups, lambda chosen: _share(right[chosen]))


def _share(right: np.ndarray) -> dict[str, Any]:
    return {"accuracy": float(right.mean()), "accuracy_95": interval(lambda chosen: float(right[chosen].mean()), len(right))}


def _by_source(groups: Sequence[str] | None, score: Callable[[np.ndarray], dict[str, Any]]) -> dict[str, Any]:
    if groups is None:
        return {}
    kinds = np.asarray(groups)
    members = {str(kind): np.flatnonzero(kinds == kind) for kind in sorted(set(groups))}
    return {"by_source": {kind: {"items": len(chosen), **score(chosen)} for kind, chosen in members.items()}}


def counts(truth: Int[np.ndarray, " n"], found: Int[np.ndarray, " n"], labels: int) -> Int[np.ndarray, "c c"]:
    """How often each label (rows) was found to be each (columns)."""
    return np.bincount(truth * labels + found, minlength=labels**2).reshape(labels, labels)


def macro_f1(truth: np.ndarray, found: np.ndarray, labels: int) -> float:
    """The mean F1 over labels; of one label each, over those that occur."""
    if truth.ndim == 2:
        hits, total = (truth & found).sum(0), truth.sum(0) + found.sum(0)
        return float(np.where(total > 0, 2 * hits / np.maximum(total, 1), 0.0).mean())
    table = counts(truth, found, labels)
    total = table.sum(0) + table.sum(1)
    return float((2 * np.diag(table)[total > 0] / total[total > 0]).mean())


def correlation(table: Int[np.ndarray, "c c"]) -> float:
    """Matthews' correlation of labels with what was found; 0 where either is constant."""
    n, hits, rows, columns = float(table.sum()), float(np.trace(table)), table.sum(1).astype(float), table.sum(0).astype(float)
    spread = (n**2 - rows @ rows) * (n**2 - columns @ columns)
    return float((hits * n - rows @ columns) / np.sqrt(spread)) if spread > 0 else 0.0


def number_metrics(found: Float[np.ndarray, " n"], truth: Float[np.ndarray, " n"], groups: Sequence[str] | None = None) -> dict[str, Any]:
    """Of numbers: correlations and the mean squared error."""
    from scipy import stats

    def pearson(a: np.ndarray, b: np.ndarray) -> float:
        return 0.0 if np.ptp(a) == 0 or np.ptp(b) == 0 else float(np.corrcoef(a, b)[0, 1])

    scores: dict[str, Callable[[np.ndarray], float]] = {
        "pearson": lambda chosen: pearson(found[chosen], truth[chosen]),
        "spearman": lambda chosen: pearson(stats.rankdata(found[chosen]), stats.rankdata(truth[chosen])),
        "mean_squared_error": lambda chosen: float(np.mean((found[chosen] - truth[chosen]) ** 2)),
    }
    result: dict[str, Any] = {"items": len(truth)}
    for name, score in scores.items():
        result |= {name: score(np.arange(len(truth))), f"{name}_95": interval(score, len(truth))}
    return result | _by_source(groups, lambda chosen: {name: score(chosen) for name, score in scores.items()})
