"""Run the whole judge and write its verdict to docs/judge.md: `python -m tests.judge.table`."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import re
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.judge.fetch import NoJudgeError, fetch

TARGET = Path(__file__).parents[2] / "docs" / "judge.md"
OUTCOMES = ("passed", "failed", "skipped")

TEXT = """# Judged by transformers

Written by `python -m tests.judge.table`; do not edit.

transformers tests its own models with a common suite. Here the suite of transformers {version}, taken unchanged from its source
distribution, runs against every model class of every architecture: `pytest tests/judge`. Models are very small and random, on a CPU.

A causal model and an image model have another configuration than an encoder, and so tests of their own. One test covers all heads of
a variant.

| architecture | variant | model classes | passed | failed | skipped |
|---|---|--:|--:|--:|--:|
{rows}

## What was skipped, and why

Reasons that begin with "mixlab" are ours (the table in `tests/judge/suite.py`); the others are said by transformers' tests.

| tests | reason |
|--:|---|
{reasons}

## What was changed

These tests ran with one thing changed:

| test | change |
|---|---|
{adapted}

Not judged here: generation and export, whose tests the source distribution lacks; pipelines, whose tests need files from the network;
training on several devices, whose tests need a file that is not there.
"""


class Verdict:
    """Counts the outcomes of a pytest run, by test class."""

    def __init__(self) -> None:
        self.outcomes: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self.reasons: Counter[str] = Counter()
        self.failed_parts: set[str] = set()

    def pytest_runtest_logreport(self, report: Any) -> None:
        _, _, rest = report.nodeid.partition("::")
        name = rest.partition("::")[0]
        if hasattr(report, "context"):  # a part of a test; the test as a whole reports after it
            if report.failed:
                self.failed_parts.add(report.nodeid)
            return
        if report.when == "call" or report.outcome != "passed":
            outcome = "failed" if report.nodeid in self.failed_parts else report.outcome
            self.outcomes[name][outcome] += 1
            if outcome == "skipped":
                self.reasons[plain(report.longrepr[2])] += 1


def plain(reason: str) -> str:
    """A skip reason on one line, without pytest's prefix, and about any model instead of the one that it was given for."""
    reason = " ".join(reason.removeprefix("Skipped: ").split()).replace("|", "\\|")
    return re.sub(r"<class 'mixlab\.archs\.[\w.]+'>|\b(?:" + "|".join(_class_names()) + r")\b", "The model", reason)


@functools.cache
def _class_names() -> list[str]:
    from mixlab.modeling.auto import model_classes
    from mixlab.registry import archs

    return [cls.__name__ for arch in archs() for cls in model_classes(arch).values()]


def write(verdict: Verdict, target: Path) -> None:
    from tests.judge.suite import ADAPTED, variants

    rows = []
    for variant in variants():
        counts = verdict.outcomes[variant.name]
        numbers = [len(variant.tasks), *(counts[outcome] for outcome in OUTCOMES)]
        rows.append(f"| {variant.arch} | {variant.preset}, {variant.kind} | {' | '.join(map(str, numbers))} |")
    totals = [sum(counts[outcome] for counts in verdict.outcomes.values()) for outcome in OUTCOMES]
    rows.append(f"| all | | | {' | '.join(map(str, totals))} |")
    reasons = [f"| {count} | {reason} |" for reason, count in sorted(verdict.reasons.items(), key=lambda item: (-item[1], item[0]))]
    adapted = [f"| `{test}` | {change} |" for test, change in ADAPTED.items()]
    version = importlib.metadata.version("transformers")
    text = TEXT.format(version=version, rows="\n".join(rows), reasons="\n".join(reasons), adapted="\n".join(adapted))
    target.parent.mkdir(exist_ok=True)
    target.write_text(text, encoding="utf-8")


def main() -> int:
    os.environ["RUN_SLOW"] = "1"  # what transformers itself runs only now and then
    try:
        sys.path.insert(0, str(fetch()))
    except NoJudgeError as error:
        print(error, file=sys.stderr)
        return 1
    verdict = Verdict()
    code = pytest.main(["-q", "--tb=short", "-p", "no:xdist", str(Path(__file__).with_name("test_judge.py"))], plugins=[verdict])
    verdict.outcomes.pop("test_the_judge_is_here", None)
    write(verdict, TARGET)
    print(f"wrote {TARGET.relative_to(Path.cwd()) if TARGET.is_relative_to(Path.cwd()) else TARGET}")
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
