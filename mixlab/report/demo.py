"""The report of the demonstration: who won, the curves, what the gates learned, and the arithmetic of both models."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mixlab.accounting import Account
from mixlab.analysis.toeplitz import ToeplitzFit, toeplitz_fit
from mixlab.report.charts import Series, heatmap, line_chart
from mixlab.report.page import Page, Section, Table
from mixlab.training.run_directory import RunDirectory


@dataclass(frozen=True)
class Contender:
    """One architecture of the demonstration, with what was measured."""

    name: str
    account: Account
    pretraining: Path
    steps: int
    seconds: float
    masked: Mapping[str, Any]
    classified: Mapping[str, Any]
    best: float | None  # accuracy that no model can beat


def curve(run: Path, name: str) -> list[tuple[float, float]]:
    """A quantity of the training log over the steps."""
    lines = RunDirectory(run).metrics.read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    return [(record["step"], record[name]) for record in records if record.get("kind") == "train" and name in record]


def page(contenders: Sequence[Contender], gates: Sequence[Any], filled: Sequence[Mapping[str, Any]], command: str) -> Page:
    """`gates` are the learned W of the gMLP, one n x n matrix per block."""
    fits = [toeplitz_fit(gate) for gate in gates]
    sections = [
        Section("The two models", table=_table(contenders)),
        Section(
            "Learning",
            ["Both saw the same examples in the same order; each loss is the mean over the steps since the last point."],
            figures=[
                line_chart("Masked-token loss", "step", "loss", [Series(c.name, curve(c.pretraining, "loss")) for c in contenders]),
            ],
        ),
        _learned(gates, fits),
        Section("Masks filled in", [_filled(record) for record in filled]),
        *[_arithmetic(contender) for contender in contenders],
        Section("Run it again", code=command),
    ]
    return Page("mixlab: a gate against attention, in minutes", answer(contenders, fits), sections)


def answer(contenders: Sequence[Contender], fits: Sequence[ToeplitzFit]) -> str:
    """The result in words that say no more than one seed can."""
    ranked = sorted(contenders, key=lambda c: c.masked["perplexity"])
    first, second = ranked[0], ranked[-1]
    best = max(fits, key=lambda fit: fit.r2)
    return (
        f"With the same {first.steps} steps, {first.name} reaches a masked-token perplexity of "
        f"{first.masked['perplexity']:.0f} and {second.name} {second.masked['perplexity']:.0f}. One seed each: a difference this "
        f"size may be chance. The gate's W began as noise; diagonals now explain {best.r2:.0%} of the variance of its most regular "
        f"layer, against {best.permuted:.0%} when rows and columns are shuffled."
    )


def _table(contenders: Sequence[Contender]) -> Table:
    rows = []
    for c in contenders:
        low, high = c.classified["accuracy_95"]
        best = "" if c.best is None else f"{c.best:.2f}"
        counts = [f"{c.account.params:,}", f"{c.account.group('body').params:,}", f"{c.account.macs / 1e6:.1f}"]
        scores = [f"{c.masked['perplexity']:.1f}", f"{c.classified['accuracy']:.3f} ({low:.3f} to {high:.3f})", best]
        rows.append([c.name, *counts, *scores, f"{c.seconds:.0f}"])
    counted = ["parameters", "of its body", "M MACs per example"]
    return Table(["model", *counted, "masked perplexity", "accuracy on reviews (95%)", "best possible", "seconds"], rows)


def _learned(gates: Sequence[Any], fits: Sequence[ToeplitzFit]) -> Section:
    rows = [[str(layer), f"{fit.r2:.3f}", f"{fit.permuted:.3f}"] for layer, fit in enumerate(fits)]
    return Section(
        "What the gates learned",
        [
            "W of every block: row = the token that is written, column = the token that is read. It was free to become anything; "
            "stripes along the diagonals mean that it came to depend on the offset alone, like a convolution.",
        ],
        Table(["block", "share explained by diagonals", "the same, shuffled"], rows),
        [heatmap(gate, f"W of block {layer}") for layer, gate in enumerate(gates)],
    )


def _filled(record: Mapping[str, Any]) -> str:
    guesses = "; ".join(", ".join(f"{g['token']} {g['score']:.0%}" for g in place[:3]) for place in record["masked"])
    return f"{record['text']}  →  {guesses}"


def _arithmetic(contender: Contender) -> Section:
    rows = [
        [line.name, str(line.times), line.explain("params").partition(": ")[2], f"{line.param_count:,}", f"{line.mac_count:,}"]
        for line in contender.account.lines
    ]
    header = ["part", "times", "parameters of one", "parameters", "MACs"]
    return Section(f"The arithmetic of {contender.name}", [contender.account.convention], Table(header, rows))
