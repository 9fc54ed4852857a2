"""The scorer against a naive one and against cases whose scores the official rules fix."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mixlab.tasks.squad import best_threshold, exact, f1, measured
from tests.reference import squad as naive

CASES = json.loads((Path(__file__).parent / "squad_cases.json").read_text(encoding="utf-8"))
TEXTS = st.one_of(
    st.lists(
        st.sampled_from(["a", "An", "THE", "cat", "Cat,", "the-cat", "é", "…", "3.5", "'s", "", " ", "\u00a0", "a\u200bb", "İ", "_"]),
        max_size=6,
    ).map(" ".join),
    st.text(max_size=12),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["why"])
def test_cases_with_known_scores(case: dict[str, object]) -> None:
    found, golds = str(case["found"]), list(map(str, case["golds"]))  # pyright: ignore[reportArgumentType]
    assert exact(found, golds) == naive.exact(found, golds) == case["exact"]
    assert f1(found, golds) == pytest.approx(naive.f1(found, golds)) == pytest.approx(case["f1"], abs=1e-6)


@given(TEXTS, st.lists(TEXTS, max_size=4))
def test_any_texts(found: str, golds: list[str]) -> None:
    assert exact(found, golds) == naive.exact(found, golds)
    assert f1(found, golds) == pytest.approx(naive.f1(found, golds))


@given(
    st.lists(
        st.tuples(st.sampled_from([-2.0, -0.5, 0.0, 0.5, 3.0, np.inf]), st.sampled_from([0.0, 0.4, 1.0]), st.booleans()),
        min_size=1,
        max_size=9,
    )
)
def test_no_threshold_is_better_than_the_best(questions: list[tuple[float, float, bool]]) -> None:
    margins, answered, silent = (list(map(float, values)) for values in zip(*questions, strict=True))
    answered = [s if margin == np.inf else a for margin, a, s in zip(margins, answered, silent, strict=True)]  # such a question has no span
    threshold, reached = best_threshold(np.array(margins), np.array(answered), np.array(silent))
    assert np.isfinite(threshold)
    assert reached == pytest.approx(naive.best_score(margins, answered, silent))
    applied = [s if margin > threshold else a for margin, a, s in zip(margins, answered, silent, strict=True)]
    assert np.mean(applied) == pytest.approx(reached)


def test_questions_without_an_answer_are_told_apart() -> None:
    found = ["the cat", "", "dog", ""]
    golds = [["Cat"], [], [], ["bird"]]
    scores = measured(found, golds)
    assert (scores["exact"], scores["f1"], scores["questions"]) == (0.5, 0.5, 4)
    assert scores["with_answer"] == {"exact": 0.5, "f1": 0.5, "questions": 2}
    assert scores["without_answer"] == {"exact": 0.5, "f1": 0.5, "questions": 2}
    assert "with_answer" not in measured(found[:1], golds[:1])


def test_the_interval_holds_the_score() -> None:
    golds = [["yes"]] * 400
    scores = measured(["yes"] * 300 + ["no"] * 100, golds)
    low, high = scores["exact_95"]
    assert (low, high) == pytest.approx((0.7075, 0.7925), abs=0.01)
    assert scores["f1_95"] == scores["exact_95"]
