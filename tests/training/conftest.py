"""What the tests of training share."""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    """Print a measured number where whoever runs the tests sees it."""

    def line(text: str) -> None:
        with capsys.disabled():
            print(f"\n{text}", flush=True)

    return line
