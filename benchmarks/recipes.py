"""Run the recipes on real data, and write what they reach into the documents and the recipes' own descriptions.

python benchmarks/recipes.py DATA --work runs/recipes            everything: hours on two cores; interrupted, it continues
python benchmarks/recipes.py DATA --work runs/recipes --only sst2-gmlp

DATA holds the folders that EXPERIMENTS names. Results go to benchmarks/results/recipes.json; `make docs` writes them where they are read.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mixlab.recipes.find import job_of
from mixlab.tasks.repeats import measured, runs_in, train_several
from mixlab.tasks.runs import train

RESULTS = Path(__file__).parent / "results" / "recipes.json"
RATES = {"gmlp": 3e-3, "amlp": 3e-3, "bert": 2e-3}  # of pretraining; attention is unstable above


@dataclass(frozen=True)
class Experiment:
    """A recipe on some data. `{data}` stands for the folder of the data, `{runs}` for that of the runs."""

    name: str
    recipe: str
    arch: str
    data: str  # in words, for the tables
    settings: tuple[str, ...]
    seeds: int = 1
    measured_on: str | None = None  # by default, the validation rows of the settings

    def filled(self, data: Path, runs: Path) -> list[str]:
        return [setting.replace("{data}", str(data)).replace("{runs}", str(runs)) for setting in (f"arch={self.arch}", *self.settings)]


def experiments() -> Iterator[Experiment]:
    """In the order in which they build on each other."""
    for arch, rate in RATES.items():
        texts = "{data}/sotu/train.jsonl + {data}/enwiki_sample/train.jsonl + {data}/prose"
        settings = (f"data={texts}", "validation={data}/sotu/validation.jsonl", f"learning_rate={rate}")
        yield Experiment(f"{arch}-pre", "pretrain-small", arch, "State of the Union, Wikipedia, prose", settings)
    for arch in RATES:
        start = f"start={{runs}}/{arch}-pre"
        for name, data, train_file, valid_file, seeds in TABLES:
            recipe = "classify" if name == "sst2" else "classify-pairs"
            settings = (f"data={{data}}/{train_file}", f"validation={{data}}/{valid_file}", start, *MORE.get(name, ()))
            yield Experiment(f"{name}-{arch}", recipe, arch, data, settings, seeds)
        places = ("data={data}/squad_v1/train_4k.jsonl", "validation={data}/squad_v1/dev.jsonl")
        yield Experiment(f"squad-{arch}", "answer", arch, "SQuAD v1.1, 4,330 questions", (*places, start))
        yield Experiment(f"questions-{arch}", "answer", arch, "generated questions", ("learning_rate=1e-3", "epochs=4"))
        more = (f"start={{runs}}/questions-{arch}", "learning_rate=1e-3", "epochs=3")
        yield Experiment(f"questions-more-{arch}", "answer", arch, "generated questions, after the run above", more)
    for arch in RATES:
        places = ("data={data}/tinyshakespeare/train.txt", "validation={data}/tinyshakespeare/valid.txt")
        yield Experiment(f"shakespeare-{arch}", "causal-small", arch, "tiny Shakespeare", places)
    for arch in ("gmlp", "bert"):
        yield Experiment(f"demo-{arch}", "demo-pretrain", arch, "Python's documentation", ())
        yield Experiment(f"reviews-{arch}", "demo-finetune", arch, "generated reviews", (f"start={{runs}}/demo-{arch}",))


TABLES = (
    ("sst2", "SST-2", "sst2/train_phrases.jsonl", "sst2/validation.jsonl", 1),
    ("sick", "SICK", "sick/train.jsonl", "sick/validation.jsonl", 3),
    ("nli3", "three NLI sets", "nli3_merged/train.jsonl", "nli3_merged/validation_matched.jsonl", 1),
    ("rte", "RTE", "rte/train.jsonl", "rte/validation.jsonl", 1),
    ("mrpc", "MRPC", "mrpc/train.jsonl", "mrpc/validation.jsonl", 1),
)
MORE = {"sst2": ("epochs=2",), "nli3": ("epochs=6",)}


def run(experiment: Experiment, data: Path, runs: Path) -> dict[str, Any]:
    job = job_of(experiment.recipe, tuple(experiment.filled(data, runs)))
    folder, begin = runs / experiment.name, time.monotonic()
    if experiment.seeds > 1:
        train_several(job, folder, experiment.seeds)
    else:
        train(job, folder)
    told = measured(folder, experiment.measured_on, baselines=True)
    several = told.get("runs", [told])
    first = folder if experiment.seeds == 1 else runs_in(folder)[0]
    last = json.loads((first / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[-1])
    print(f"{experiment.name}: {time.monotonic() - begin:.0f} s")
    return {
        "recipe": experiment.recipe,
        "arch": experiment.arch,
        "data": experiment.data,
        "settings": list(experiment.settings),
        "steps": last["step"],
        "scores": [{k: v for k, v in result.items() if isinstance(v, float | int | list)} for result in several],
        "baselines": {name: {k: v for k, v in found.items() if isinstance(v, float)} for name, found in several[-1]["baselines"].items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--work", type=Path, default=Path("runs/recipes"))
    parser.add_argument("--only", default=".*", help="a pattern that the experiments' names match")
    given = parser.parse_args()
    chosen = [experiment for experiment in experiments() if re.fullmatch(given.only, experiment.name)]
    if not chosen:
        parser.error(f"no experiment matches {given.only!r}; there are {', '.join(e.name for e in experiments())}")
    for experiment in chosen:
        result = run(experiment, given.data, given.work)
        known = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.is_file() else {}
        known[experiment.name] = result
        ordered = {e.name: known[e.name] for e in experiments() if e.name in known}
        RESULTS.write_text(json.dumps(ordered, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
