"""The report of the demonstration: who won, the curves, what the gates learned, and the arithmetic of both models."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mixlab.accounting import Account
from mixlab.analysis.toeplitz import ToeplitzFit, best_toeplitz, shuffled, toeplitz_fit
from mixlab.report.charts import Series, bar_chart, heatmap, line_chart
from mixlab.report.page import Page, Section, Table
from mixlab.training.run_directory import RunDirectory

GUESSES = 3  # words shown for a mask


@dataclass(frozen=True)
class Contender:
    """One architecture of the demonstration, with what was measured."""

    name: str
    account: Account
    pretraining: Path
    steps: int
    masked: Mapping[str, Any]
    classified: Mapping[str, Any]
    filled: Sequence[Mapping[str, Any]]  # texts with masks, and the likeliest words
    best: float | None  # accuracy that no model can beat


def curve(run: Path, name: str) -> list[tuple[float, float]]:
    """A quantity of the training log over the steps."""
    lines = RunDirectory(run).metrics.read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    return [(record["step"], record[name]) for record in records if record.get("kind") == "train" and name in record]


def page(contenders: Sequence[Contender], gates: Sequence[Any], command: str) -> Page:
    """`gates` are the learned W of the gMLP, one n x n matrix per block."""
    fits = [toeplitz_fit(gate) for gate in gates]
    sections = [
        _models(contenders),
        Section(
            "Learning to fill in masks",
            ["Both saw the same masked examples in the same order. Lower is better; a model that knew nothing would start at the top."],
            figures=[
                line_chart("Masked-token loss", "step", "loss", [Series(c.name, curve(c.pretraining, "loss")) for c in contenders]),
            ],
            notes=["Each point is the mean over the steps since the point before it."],
        ),
        _masks(contenders),
        _learned(gates, fits),
        *[_arithmetic(contender) for contender in contenders],
        Section("Run it again", code=command, notes=[_ground(contenders[0].pretraining)]),
    ]
    return Page("A gate against attention, in minutes", answer(contenders, fits), sections)


def answer(contenders: Sequence[Contender], fits: Sequence[ToeplitzFit]) -> str:
    """The result in words that say no more than one seed can."""
    first, second = sorted(contenders, key=lambda c: c.masked["perplexity"])[:2]
    best = max(range(len(fits)), key=lambda block: fits[block].r2)
    return (
        f"With the same {first.steps:,} steps, {first.name} reaches a masked-token perplexity of "
        f"{first.masked['perplexity']:.0f} and {second.name} {second.masked['perplexity']:.0f}; after finetuning, "
        f"{first.classified['accuracy']:.0%} and {second.classified['accuracy']:.0%} of the reviews are told right. One seed each, so how "
        f"much of the difference is chance is not known. The gate's W began as noise; diagonals now explain {fits[best].r2:.0%} of the "
        f"variance of its most regular "
        f"block, block {best}, against {fits[best].permuted:.0%} when rows and columns are shuffled."
    )


def _models(contenders: Sequence[Contender]) -> Section:
    rows = []
    for c in contenders:
        low, high = c.classified["accuracy_95"]
        counts = [f"{c.account.params:,}", f"{c.account.group('body').params:,}", f"{c.account.macs / 1e6:.1f}"]
        scores = [f"{c.masked['perplexity']:.1f}", f"{c.classified['accuracy']:.3f}", f"{low:.3f} to {high:.3f}"]
        speeds = [value for _, value in curve(c.pretraining, "tokens_per_second")]  # none in a run shorter than a line of the log
        rows.append([c.name, *counts, *scores, f"{statistics.median(speeds):,.0f}" if speeds else "not logged"])
    header = ["model", "parameters", "in its body", "M MACs", "perplexity", "accuracy", "95% interval", "tokens/s"]
    best = contenders[0].best
    notes = [
        "Perplexity: of masked tokens in held-out documents, lower is better. Accuracy: on generated reviews, after finetuning"
        + (f"; no model can pass {best:.2f}, because labels were turned on purpose." if best is not None else ".")
        + " The interval is over reviews, not over seeds.",
        "M MACs: million multiply-adds of one example. Tokens/s: the median while pretraining, whatever else the machine did.",
    ]
    paragraph = "Two models of about the same size, with the same data, batches and number of steps, each at a learning rate that suits it."
    return Section("The two models", [paragraph], Table(header, rows), notes=notes)


def _masks(contenders: Sequence[Contender]) -> Section:
    rows = []
    for place, record in enumerate(contenders[0].filled):
        said = ["; ".join(_guesses(mask) for mask in c.filled[place]["masked"]) for c in contenders]
        rows.append([record["text"], *said])
    table = Table(["text", *(f"{c.name} says" for c in contenders)], rows)
    return Section("Masks filled in", ["The likeliest words for [MASK], with their probabilities, after pretraining."], table)


def _guesses(mask: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(f"{guess['token']} {guess['score']:.0%}" for guess in mask[:GUESSES])


def _learned(gates: Sequence[Any], fits: Sequence[ToeplitzFit]) -> Section:
    best = max(range(len(fits)), key=lambda block: fits[block].r2)
    compared = [
        heatmap(best_toeplitz(gates[best].double()), f"block {best}: the nearest matrix that depends on the offset alone"),
        heatmap(shuffled(gates[best], torch.Generator().manual_seed(0)), f"block {best} with rows and columns shuffled"),
    ]
    bars = bar_chart(
        "Share of W explained by its diagonals",
        [f"block {block}" for block in range(len(fits))],
        [("W as learned", [fit.r2 for fit in fits]), ("the same, shuffled", [fit.permuted for fit in fits])],
        lambda share: f"{share:.0%}",
    )
    return Section(
        "What the gates learned",
        [
            "A gate mixes tokens by one matrix W. It was free to become anything; stripes along the diagonals mean that it came to depend "
            "on the offset between two tokens alone, like a convolution. Shuffling keeps the numbers and destroys the stripes, so it shows "
            "what chance would explain.",
        ],
        figures=[bars, *(heatmap(gate, f"W of block {block}") for block, gate in enumerate(gates)), *compared],
        notes=["Rows: the token that is written. Columns: the token that is read. Blue is below zero, red above, white is zero."],
    )


def _arithmetic(contender: Contender) -> Section:
    rows = [
        [line.name, str(line.times), line.explain("params").partition(": ")[2], f"{line.param_count:,}", f"{line.mac_count:,}"]
        for line in contender.account.lines
    ]
    header = ["part", "times", "parameters of one", "parameters", "MACs"]
    total = ["total", "", "", f"{contender.account.params:,}", f"{contender.account.macs:,}"]
    return Section(f"The arithmetic of {contender.name}", table=Table(header, rows, total), notes=[f"{contender.account.convention}."])


def _ground(run: Path) -> str:
    """What the numbers were measured with."""
    found = json.loads((RunDirectory(run).path / "versions.json").read_text(encoding="utf-8"))
    return (
        "Measured with "
        + ", ".join(f"{name} {found[name]}" for name in ("mixlab", "torch", "transformers", "python"))
        + (f" on {found['machine']}, {found['threads']} threads.")
    )
