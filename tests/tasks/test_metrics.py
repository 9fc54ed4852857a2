"""Scores against scikit-learn's own functions and against cases with known answers."""

import numpy as np
import pytest
from scipy import stats
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
    assert scores["confusion"]["rows"] == metrics.confusion_matrix(truth, found).tolist()
    assert scores["by_source"]["x"] == {"items": 100, "accuracy": 1.0, "accuracy_95": [1.0, 1.0]}
    assert scores["by_source"]["y"]["accuracy"] == pytest.approx(metrics.accuracy_score(truth[100:], found[100:]))
    for name in ("accuracy", "f1", "mcc"):
        low, high = scores[f"{name}_95"]
        assert low < scores[name] < high
        assert high - low < 0.15


def test_labels_that_do_not_occur_count_as_in_scikit_learn() -> None:
    truth, found = np.array([0, 0, 1, 1]), np.array([0, 1, 1, 1])
    scores = class_metrics(found, truth, ["a", "b", "c", "d"])
    assert scores["f1"] == pytest.approx(metrics.f1_score(truth, found, average="macro"))
    assert class_metrics(np.zeros(4, int), truth, ["a", "b"])["mcc"] == metrics.matthews_corrcoef(truth, np.zeros(4)) == 0.0


def test_an_item_with_several_labels_is_right_when_all_are() -> None:
    truth = np.array([[1, 0], [1, 1], [0, 0], [0, 1]])
    found = np.array([[1, 0], [1, 0], [0, 0], [0, 1]])
    scores = class_metrics(found, truth, ["a", "b"])
    assert scores["accuracy"] == 0.75
    assert scores["f1"] == pytest.approx(metrics.f1_score(truth, found, average="macro"))
    assert scores["mcc"] == pytest.approx(metrics.matthews_corrcoef(truth.ravel(), found.ravel()))
    assert scores["confusion"]["rows"][1] == [[2, 0], [1, 1]]
    never = class_metrics(np.zeros_like(found), np.zeros_like(truth), ["a", "b"])
    assert never["f1"] == metrics.f1_score(np.zeros((4, 2)), np.zeros((4, 2)), average="macro", zero_division=0.0)


def test_the_interval_of_a_share_is_that_of_the_binomial() -> None:
    right = np.array([1.0] * 80 + [0.0] * 20)
    low, high = interval(lambda chosen: float(right[chosen].mean()), 100)
    assert (low, high) == pytest.approx((0.72, 0.88), abs=0.02)


def test_scores_of_numbers() -> None:
    truth = np.array([1.0, 2.0, 3.0, 4.0])
    found = number_metrics(2 * truth + 1, truth, ["x", "x", "y", "y"])
    assert (found["pearson"], found["spearman"]) == (pytest.approx(1.0), pytest.approx(1.0))
    assert (found["mean_squared_error"], found["items"]) == (13.5, 4)
    assert found["by_source"]["y"]["mean_squared_error"] == 20.5
    assert number_metrics(np.ones(4), truth)["pearson"] == 0.0


def test_intervals_of_numbers_are_those_of_fisher() -> None:
    """Normal pairs with a correlation of 0.6; Fisher's interval for it holds for them."""
    a, b = np.random.default_rng(0).normal(size=(2, 500))
    truth = 0.6 * a + 0.8 * b
    scores = number_metrics(a, truth)
    expected = stats.pearsonr(a, truth).confidence_interval(0.95)
    assert scores["pearson_95"] == pytest.approx([expected.low, expected.high], abs=0.02)
    assert scores["spearman"] == pytest.approx(stats.spearmanr(a, truth).statistic)
    low, high = scores["spearman_95"]
    assert low < scores["spearman"] < high
