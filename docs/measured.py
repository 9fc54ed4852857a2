"""What the recipes reached, from the results of benchmarks/recipes.py: a table for the documents, and a paragraph for each recipe."""

from __future__ import annotations

import ast
import json
import statistics
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mixlab.accounting import LABELLED
from mixlab.modeling.account import account
from mixlab.modeling.architecture import find_preset
from mixlab.recipes.find import job_of, recipes
from mixlab.training.meter import TRAINING

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "recipes.json"
# The score that is told of a result: the first that it has.
SCORES = {
    "exact": "exact match {:.3f}",
    "accuracy": "accuracy {:.3f}",
    "bits_per_character": "{:.3f} bits per character",
    "perplexity": "perplexity {:.1f}",
}
WIDTH = 130


def results() -> dict[str, Any]:
    return json.loads(RESULTS.read_text(encoding="utf-8"))


def told(scores: Mapping[str, Any]) -> str:
    score = next(name for name in SCORES if name in scores)
    return SCORES[score].format(scores[score])


def reached(result: Mapping[str, Any]) -> str:
    """The score with its interval: over items of one seed, or median and range of several seeds."""
    first = result["scores"][0]
    score = next(name for name in SCORES if name in first)
    each = [scores[score] for scores in result["scores"]]
    if len(each) > 1:
        return SCORES[score].format(statistics.median(each)) + f" (median of {len(each)} seeds, {min(each):.3f} to {max(each):.3f})"
    interval = first.get(f"{score}_95")
    return told(first) + (f" ({interval[0]:.3f} to {interval[1]:.3f})" if interval else "")


def rows() -> list[list[str]]:
    """Data, recipe, architecture, steps, score, baselines."""
    found = []
    for result in results().values():
        simple = "; ".join(f"{name}: {told(scores)}" for name, scores in result["baselines"].items())
        found.append([result["data"], f"`{result['recipe']}`", f"`{result['arch']}`", f"{result['steps']:,}", reached(result), simple])
    return found


def paragraph(recipe: str) -> str:
    """What is said of a recipe: its results by data, or what it would cost."""
    by_data: dict[str, list[dict[str, Any]]] = {}
    for result in results().values():
        if result["recipe"] == recipe:
            by_data.setdefault(result["data"], []).append(result)
    if not by_data:
        return f"Not run: {cost(recipe)}."
    parts = []
    for data, group in by_data.items():
        reached_by = ", ".join(f"{result['arch']} {reached(result)}" for result in group)
        simple = ", ".join(f"{name} {told(scores)}" for name, scores in group[-1]["baselines"].items())
        parts.append(f"{data}: {reached_by}; {simple}.")
    return "Measured on " + " ".join(parts)


def cost(recipe: str) -> str:
    """Arithmetic of a recipe on its first architecture."""
    job = job_of(recipe)
    architecture, preset = find_preset(job.preset)
    config = preset.config(architecture, {"max_position_embeddings": job.length, **job.model})
    step = TRAINING * account(architecture, config, job.task, convention=LABELLED).flops * job.training.batch_size
    if job.epochs:
        return f"with {job.preset}, {step:.2g} FLOPs a step, {job.epochs:g} passes over the data"
    return f"with {job.preset}, {step:.2g} FLOPs a step, {step * job.training.steps:.2g} for all {job.training.steps:,}"


def with_paragraphs(path: Path) -> str:
    """A module of recipes, the last paragraph of every recipe's description made anew."""
    text = path.read_text(encoding="utf-8")
    lines = text.split("\n")
    known = {name for name, (module, _) in recipes().items() if module == path.stem}
    for node in reversed(ast.parse(text).body):
        if not isinstance(node, ast.FunctionDef) or node.name.replace("_", "-") not in known:
            continue
        described, docstring = node.body[0], ast.get_docstring(node)
        assert docstring is not None
        kept = [part for part in docstring.split("\n\n") if not part.startswith(("Not run", "Measured on"))]
        fresh = textwrap.wrap(paragraph(node.name.replace("_", "-")), WIDTH, break_on_hyphens=False)
        body = "\n\n".join([*kept, "\n".join(fresh)])
        lines[described.lineno - 1 : described.end_lineno] = textwrap.indent(
            f'"""{body}\n"""', "    ", lambda line: bool(line.strip())
        ).split("\n")
    return "\n".join(lines)
