"""Scores against scikit-learn's own functions and against cases with known answers."""

import numpy as np
import pytest
from sklearn import metrics

from mixlab.tasks.metrics import class_metrics, interval, number_metrics


def test_scores_of_classes() -> None:
    generator = np.random.default_rng(0)
    truth, found = generator.integers(0, 3, 400), generator.integers(0, 3, 400)
    found[:250] = truth[:250]
    scores = class_metrics(found, truth, ["a", "b", "c"], ["x"] * 100 + ["y"] * 300)
    assert scores["accuracy"] == pytest.approx(metrics.accuracy_score(truth, found))
    assert scores["mcc"] == pytest.approx(metrics.matthews_corrcoef(truth, found))
    assert scores["f1"] == pytest.approx(metrics.f1_score(truth, found, average="macro"))
    assert sum(map(sum, scores["confusion"]["rows"])) == 400
    assert scores["by_source"]["x"] == 1.0
    low, high = scores["accuracy_95"]
    assert low < scores["accuracy"] < high


def test_an_item_with_several_labels_is_right_when_all_are() -> None:
    truth = np.array([[1, 0], [1, 1], [0, 0], [0, 1]])
    found = np.array([[1, 0], [1, 0], [0, 0], [0, 1]])
    assert class_metrics(found, truth, ["a", "b"])["accuracy"] == 0.75


def test_the_interval_of_a_share_is_that_of_the_binomial() -> None:
    right = np.array([1.0] * 80 + [0.0] * 20)
    low, high = interval(lambda chosen: float(right[chosen].mean()), 100)
    assert (low, high) == pytest.approx((0.72, 0.88), abs=0.02)


def test_scores_of_numbers() -> None:
    truth = np.array([1.0, 2.0, 3.0, 4.0])
    found = number_metrics(2 * truth + 1, truth)
    assert found == {"pearson": pytest.approx(1.0), "spearman": pytest.approx(1.0), "mean_squared_error": 13.5, "items": 4}
    assert number_metrics(np.ones(4), truth)["pearson"] == 0.0
