"""What simple methods reach on labelled texts: the commonest label, and words counted by TF-IDF under a linear model."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from mixlab.data.labels import Labels

WORD = re.compile(r"\w+|[^\w\s]")


def features(text: str, second: str | None = None) -> list[str]:
    """Words and pairs of neighbours. In a pair of texts, words tell whose they are, and those of the second whether the first has them."""
    words = WORD.findall(text.lower())
    grams = words + [f"{a} {b}" for a, b in pairwise(words)]
    if second is None:
        return grams
    own, words = set(words), WORD.findall(second.lower())
    marked = [f"{'both' if word in own else 'second'}:{word}" for word in words]
    missing = [f"first:{word}" for word in own - set(words)]
    return [*marked, *missing, *(f"{a} {b}" for a, b in pairwise(marked))]


def linear_on_words(train: Any, rows: Any, labels: Labels) -> np.ndarray:
    """What a linear model of TF-IDF features says: classes (or, of several labels, a matrix of 0 and 1), or numbers."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.multiclass import OneVsRestClassifier

    analyzer: Any = lambda pair: features(*pair)  # noqa: E731 (scikit-learn's stubs know only names of analyzers)
    words = TfidfVectorizer(analyzer=analyzer, min_df=2, sublinear_tf=True)
    seen, asked = words.fit_transform(_pairs(train)), words.transform(_pairs(rows))
    truth = np.asarray(train["label"])
    if labels.kind == "regression":
        return Ridge().fit(seen, truth).predict(asked)
    model: Any = LogisticRegression(max_iter=1000, C=4.0)
    if labels.kind == "multi":
        model = OneVsRestClassifier(model)
    return model.fit(seen, truth).predict(asked)


def commonest(train: Any, rows: Any, labels: Labels) -> np.ndarray:
    """The commonest label of the training rows for every row; of numbers, their mean."""
    truth = np.asarray(train["label"])
    if labels.kind == "regression":
        return np.full(len(rows), truth.mean())
    if labels.kind == "multi":
        return np.tile((truth.mean(0) > 0.5).astype(int), (len(rows), 1))
    return np.full(len(rows), np.bincount(truth).argmax())


def _pairs(rows: Any) -> Sequence[tuple[str, ...]]:
    names = [name for name in ("text", "text_pair") if name in rows.column_names]
    return list(zip(*(rows[name] for name in names), strict=True))
