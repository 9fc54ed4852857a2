"""Scores of classification and regression with 95% intervals from a bootstrap over items; scikit-learn and scipy count."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

ROUNDS = 1000


def interval(score: Callable[[np.ndarray], float], items: int, seed: int = 0) -> list[float]:
    """The middle 95% of a score over resampled items."""
    generator = np.random.default_rng(seed)
    scores = [score(generator.integers(0, items, items)) for _ in range(ROUNDS)]
    return [float(value) for value in np.nanpercentile(scores, [2.5, 97.5])]


def class_metrics(found: np.ndarray, truth: np.ndarray, names: Sequence[str], groups: Sequence[str] | None = None) -> dict[str, Any]:
    """Of one label each (vectors) or several (matrices of 0 and 1, where an item is right when all its labels are)."""
    from sklearn import metrics

    several = truth.ndim == 2
    right = (found == truth).all(-1) if several else found == truth
    result: dict[str, Any] = {
        "accuracy": float(right.mean()),
        "accuracy_95": interval(lambda chosen: float(right[chosen].mean()), len(right)),
        "f1": float(metrics.f1_score(truth, found, average="macro", zero_division=0.0)),  # pyright: ignore[reportArgumentType] (a stub knows text alone)
        "items": len(right),
    }
    if not several:
        result["mcc"] = float(metrics.matthews_corrcoef(truth, found))
        result["confusion"] = {"labels": list(names), "rows": metrics.confusion_matrix(truth, found, labels=range(len(names))).tolist()}
    if groups is not None:
        kinds = np.asarray(groups)
        result["by_source"] = {str(kind): float(right[kinds == kind].mean()) for kind in sorted(set(groups))}
    return result


def number_metrics(found: np.ndarray, truth: np.ndarray) -> dict[str, Any]:
    """Of numbers: correlations and the mean squared error."""
    from scipy import stats

    constant = np.ptp(found) == 0 or np.ptp(truth) == 0
    return {
        "pearson": 0.0 if constant else float(np.corrcoef(found, truth)[0, 1]),
        "spearman": 0.0 if constant else float(np.corrcoef(stats.rankdata(found), stats.rankdata(truth))[0, 1]),
        "mean_squared_error": float(np.mean((found - truth) ** 2)),
        "items": len(truth),
    }
