"""The verdict in docs/judge.md is about the models that there are. It takes long to write, so no test writes it anew."""

from __future__ import annotations

import re
from importlib.metadata import version

import pytest

from tests.judge.fetch import fetch
from tests.judge.table import TARGET

ROW = re.compile(r"^\| (\S+) \| (\S+), (\w+) \| (\d+) \| (\d+) \| (\d+) \| \d+ \|$", flags=re.M)


def test_the_verdict_leaves_out_no_model_and_hides_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(fetch()))
    from tests.judge.suite import variants

    page = TARGET.read_text(encoding="utf-8")
    rows = ROW.findall(page)
    assert [row[:4] for row in rows] == [(v.arch, v.preset, v.kind, str(len(v.tasks))) for v in variants()], "run `make docs`"
    assert all(int(passed) > 0 and failed == "0" for *_, passed, failed in rows)
    assert f"the suite of transformers {version('transformers')}," in page
