"""The whole story in minutes: pretrain two rivals, fill masks, finetune, and write a report to open."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FOLDER = Path("demo-out")
MASKS = ["Return the [MASK] of the list.", "If the argument is [MASK], return True.", "Raise an [MASK] if the file does not exist."]


def main(run_dir: Path = FOLDER, steps: int = 1000) -> None:
    """Everything is kept in one folder; run again, it continues where it was.

    Args:
        run_dir: The folder for both runs of both models, and the report.
        steps: Training steps of each model; fewer are quicker and learn less.
    """
    from mixlab.recipes.demo import RIVALS
    from mixlab.report.demo import page

    print("mixlab demo: gMLP and BERT at the same budget, on the documentation that Python carries\n")
    contenders = [contend(arch, run_dir, steps) for arch in RIVALS]
    report = run_dir / "report.html"
    command = shlex.join(["mixlab", "demo", "--run-dir", str(run_dir), "--steps", str(steps)])
    page(contenders, learned_gates(contenders[0].pretraining), command).write(report)
    print(f"\nopen {report.resolve()}")


def contend(arch: str, folder: Path, steps: int) -> Any:
    """Pretrain and finetune one architecture, and measure both."""
    from mixlab.data import builtin
    from mixlab.modeling.account import account
    from mixlab.modeling.architecture import load
    from mixlab.recipes.demo import demo_finetune, demo_pretrain
    from mixlab.report.demo import Contender
    from mixlab.tasks.runs import opened

    pretraining, finetuning = folder / f"{arch}-pretrained", folder / f"{arch}-finetuned"
    warmup = min(50, steps)
    run(demo_pretrain(arch).with_settings((f"steps={steps}", f"warmup={warmup}")), pretraining, f"{arch}: pretraining")
    task, model, tokenizer = opened(pretraining)
    masked = task.evaluate(model, tokenizer, None, None)
    print(f"  masked-token perplexity {masked['perplexity']:.1f} on held-out documents")
    filled = list(task.predict(model, tokenizer, MASKS))
    for record in filled:
        print(f"  {record['text']}  ->  {', '.join(guess['token'] for guess in record['masked'][0])}")
    fewer = min(steps, 300)
    job = demo_finetune(arch).with_settings((f"start={pretraining}", f"steps={fewer}", f"warmup={min(20, fewer)}"))
    run(job, finetuning, f"{arch}: finetuning on generated reviews")
    classified = measured(finetuning)
    print(f"  accuracy {classified['accuracy']:.3f}\n")
    counted = account(load(arch), model.config, "masked-lm", task.job.length)
    return Contender(arch, counted, pretraining, steps, masked, classified, filled, builtin.load(job.data).description.best)


def run(job: Any, folder: Path, title: str) -> None:
    from mixlab.tasks.runs import train

    print(title)
    train(job, folder, say=lambda note: print(f"  {note}"))


def measured(folder: Path) -> Mapping[str, Any]:
    from mixlab.tasks.runs import opened

    task, model, tokenizer = opened(folder)
    return task.evaluate(model, tokenizer, None, None)


def learned_gates(folder: Path) -> list[Any]:
    """The learned W of every block."""
    from mixlab.tasks.runs import opened

    _, model, _ = opened(folder)
    return [block.gate.spatial.weight[0].detach() for block in model.model.body.blocks]
