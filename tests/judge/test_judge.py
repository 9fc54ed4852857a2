"""transformers judges every model of every architecture by the common tests of its own models (see `fetch.py`, `suite.py`)."""

from __future__ import annotations

import sys

import pytest

from tests.judge.fetch import NoJudgeError, fetch

MISSING = ""
try:
    sys.path.insert(0, str(fetch()))
except NoJudgeError as error:
    MISSING = str(error)
else:
    from tests.judge.suite import judge, variants

    for variant in variants():
        globals()[variant.name] = judge(variant)
    del variant


def test_the_judge_is_here() -> None:
    if MISSING:
        pytest.fail(MISSING, pytrace=False)
