"""What logits of the labelled tokens alone save: masked language model steps with and without the rest, in turn, in one process.

python benchmarks/labelled_logits.py            about four minutes on two idle cores; `make bench` runs it
The step is forward, backward and AdamW. Targets are those of tokens per second against the same step with full logits.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

import mixlab
from mixlab.data.collating import IGNORED

RESULTS = Path(__file__).parent / "results"
VOCABULARY, RATE = 32_000, 0.15


@dataclass(frozen=True)
class Shape:
    """A model and a batch, and how many times as fast the step should be."""

    layers: int
    hidden_size: int
    intermediate_size: int
    length: int
    batch: int
    target: float


SHAPES = (Shape(4, 512, 3072, 128, 8, 1.8), Shape(36, 512, 3072, 128, 4, 1.12))


def step_of(shape: Shape, labelled_only: bool, batch: dict[str, torch.Tensor]) -> Any:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": shape.hidden_size, "intermediate_size": shape.intermediate_size}
    sizes |= {"num_hidden_layers": shape.layers, "max_position_embeddings": shape.length, "vocab_size": VOCABULARY}
    model = mixlab.create("gmlp-base", task="masked-lm", labelled_logits_only=labelled_only, **sizes).train()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)

    def step() -> float:
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return float(loss.detach())

    return step


def batch_of(shape: Shape) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(5, VOCABULARY, (shape.batch, shape.length), generator=draw)
    chosen = torch.rand(ids.shape, generator=draw) < RATE
    return {"input_ids": ids.masked_fill(chosen, 4), "labels": ids.masked_fill(~chosen, IGNORED)}


def measure(shape: Shape, rounds: int) -> dict[str, Any]:
    """Both steps in turn, the first round not counted; medians of their seconds, and of the ratio within a round."""
    batch = batch_of(shape)
    steps = {name: step_of(shape, name == "labelled", batch) for name in ("full", "labelled")}
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(rounds + 1):
        losses = {}
        for name in sorted(steps, reverse=bool(turn % 2)):
            start = time.perf_counter()
            losses[name] = steps[name]()
            seconds[name].append(time.perf_counter() - start)
        if turn == 0 and abs(losses["full"] - losses["labelled"]) > 1e-3:
            raise SystemExit(f"the two steps have other losses: {losses}")
    kept = {name: times[1:] for name, times in seconds.items()}
    ratios = [full / labelled for full, labelled in zip(kept["full"], kept["labelled"], strict=True)]
    tokens = shape.batch * shape.length
    speeds = {f"{name}_tokens_per_second": round(tokens / statistics.median(times), 1) for name, times in kept.items()}
    found = {"ratio": round(statistics.median(ratios), 3), "lowest": round(min(ratios), 3), "highest": round(max(ratios), 3)}
    return {**asdict(shape), "rounds": rounds, **speeds, **found, "met": statistics.median(ratios) >= shape.target}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    rows = []
    for shape in SHAPES:
        rows.append(row := measure(shape, given.rounds))
        speeds = f"{row['full_tokens_per_second']:.0f} -> {row['labelled_tokens_per_second']:.0f} tokens/s"
        verdict = f"target {shape.target}x {'met' if row['met'] else 'NOT MET'}"
        print(
            f"L{shape.layers} d {shape.hidden_size} n {shape.length} V {VOCABULARY}: {speeds}, {row['ratio']:.2f}x, {verdict}", flush=True
        )
    where = {"torch": torch.__version__, "machine": f"{platform.system()} {platform.machine()}", "cpu": _cpu(), "threads": given.threads}
    (RESULTS / "labelled_logits.json").write_text(json.dumps({**where, "rows": rows}, indent=1) + "\n", encoding="utf-8")


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.processor())


if __name__ == "__main__":
    main()
