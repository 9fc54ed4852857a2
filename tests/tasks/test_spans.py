"""Spans of windows against a search through every pair of tokens, and what several windows of one question amount to."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mixlab.tasks.spans import Found, Span, in_window, over_windows
from tests.reference import spans as naive

LOGITS = st.floats(-8, 8, width=32)


@given(st.data(), st.integers(2, 12), st.integers(1, 14), st.integers(1, 6))
def test_the_best_spans_of_a_window(data: st.DataObject, n: int, longest: int, count: int) -> None:
    start, end = (data.draw(st.lists(LOGITS, min_size=n, max_size=n)) for _ in range(2))
    inside = data.draw(st.lists(st.booleans(), min_size=n, max_size=n))
    offsets = [(3 * i, 3 * i + 2) if one else (-1, -1) for i, one in enumerate(inside)]
    found, null = in_window(np.array(start), np.array(end), np.array(offsets), longest, count)
    expected = naive.spans(start, end, offsets, longest)
    assert null == pytest.approx(naive.log_softmax(start)[0] + naive.log_softmax(end)[0])
    assert [span.score for span in found] == pytest.approx([score for score, _, _ in expected[:count]])
    scores = {(first, last): score for score, first, last in expected}
    for span in found:
        assert span.score == pytest.approx(scores[span.start, span.end])
    assert len({(span.start, span.end) for span in found}) == len(found)


def test_a_shift_of_a_windows_logits_changes_nothing() -> None:
    draw = np.random.default_rng(0)
    start, end = draw.normal(size=(2, 9))
    offsets = np.array([(-1, -1)] * 3 + [(i, i + 1) for i in range(6)])
    spans, null = in_window(start, end, offsets, 4, 5)
    moved, still = in_window(start + 7, end - 3, offsets, 4, 5)
    assert still == pytest.approx(null)
    assert [(span.start, span.end) for span in moved] == [(span.start, span.end) for span in spans]


def test_windows_of_one_question_are_one() -> None:
    first = ([Span(5, 9, -0.5), Span(0, 3, -2.0)], -1.0)
    second = ([Span(20, 22, -1.5), Span(5, 9, -0.4)], -0.1)
    found = over_windows([first, second], 2)
    assert found == Found((Span(5, 9, -0.4), Span(20, 22, -1.5)), -1.0)
    assert found.margin == pytest.approx(-0.6)
    assert found.answer(None) == found.answer(-0.6) == Span(5, 9, -0.4)
    assert found.answer(-0.7) is None


def test_a_context_without_a_token_has_no_answer() -> None:
    found = over_windows([in_window(np.zeros(3), np.zeros(3), np.full((3, 2), -1), 5, 4)], 4)
    assert found.spans == ()
    assert found.margin == math.inf
    assert found.answer(None) is None
