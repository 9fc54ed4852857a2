"""One call for a whole run: the directory, its lock, the trainer, and at the end the model as an ordinary Hugging Face folder."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import TrainerCallback

from mixlab.data.sampling import StatelessSampler
from mixlab.errors import MixlabError, one_line
from mixlab.training import checkpoints, ranks
from mixlab.training.metrics import MetricsFile
from mixlab.training.progress import Progress
from mixlab.training.run_directory import RunDirectory
from mixlab.training.settings import TrainingSettings
from mixlab.training.trainer import MixTrainer

# What training and saving write into a configuration, which makes it no other model.
INCIDENTAL = frozenset(["architectures", "dtype", "problem_type", "transformers_version", "use_cache"])


def fit(
    model: nn.Module,
    settings: TrainingSettings,
    run: RunDirectory | Path | str,
    train_dataset: Any,
    *,
    eval_dataset: Any = None,
    collator: Callable[[Sequence[Any]], dict[str, Any]] | None = None,
    tokenizer: Any = None,
    sampler: StatelessSampler | None = None,
    compute_metrics: Callable[[Any], dict[str, float]] | None = None,
    conclude: Callable[[Any], None] | None = None,
    recipe: Mapping[str, Any] | None = None,
    fingerprints: Mapping[str, str] | None = None,
    allow_changes: bool = False,
    callbacks: Sequence[TrainerCallback] = (),
    progress: bool = True,
) -> MixTrainer:
    """Train in a run directory, or continue the run that it holds; returns the trainer with the finished model.

    `conclude` is given the trained model before it is written, to settle what is chosen on validation rows.
    """
    run = run if isinstance(run, RunDirectory) else RunDirectory(run)
    main = ranks.launched_rank() == 0
    with run.writing() if main else contextlib.nullcontext():
        if main:
            described = dict(recipe or {}) | {"settings": settings.as_dict(), "model": _described(model)}
            run.begin(described, fingerprints or {}, allow_changes=allow_changes)
            if tokenizer is not None:
                with checkpoints.writing_to(run.tokenizer):
                    _replace(run.tokenizer, tokenizer.save_pretrained)
        metrics = MetricsFile(run.metrics)
        trainer = MixTrainer(
            model,
            settings,
            run.checkpoints,
            train_dataset,
            eval_dataset=eval_dataset,
            collator=collator,
            tokenizer=tokenizer,
            sampler=sampler,
            metrics=metrics,
            compute_metrics=compute_metrics,
            callbacks=callbacks,
        )
        shown = Progress(trainer.meter, run.checkpoints)
        if progress:
            trainer.add_callback(shown)
        try:
            trainer.train()
            ranks.on_main(lambda: _finish(trainer, run, tokenizer, conclude))
        finally:
            shown.stop()
            metrics.close()
    return trainer


def _finish(trainer: MixTrainer, run: RunDirectory, tokenizer: Any, conclude: Callable[[Any], None] | None) -> None:
    if conclude is not None:
        conclude(trainer.accelerator.unwrap_model(trainer.model, keep_torch_compile=False))

    def fill(folder: Path) -> None:
        trainer._save(str(folder))
        if tokenizer is not None:
            tokenizer.save_pretrained(folder)
        (folder / "README.md").write_text(model_card(trainer), encoding="utf-8")

    try:
        _replace(run.model, fill)
    except OSError as error:
        raise MixlabError(f"the model could not be written to {run.model}: {one_line(error)}; run the same command again") from error


def _replace(target: Path, fill: Callable[[Path], Any]) -> None:
    """Write a folder anew: whole, or the old one stays."""
    target.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f"{checkpoints.STAGING}{target.name}-", dir=target.parent))
    try:
        checkpoints.write(staging / target.name, fill)
        if target.exists():
            target.rename(staging / "old")
        (staging / target.name).rename(target)
        checkpoints.sync(target.parent)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _described(model: Any) -> dict[str, Any]:
    config = getattr(model, "config", None)
    fields = config.to_diff_dict() if config is not None else {}
    return {"class": type(model).__name__, "config": {name: value for name, value in fields.items() if name not in INCIDENTAL}}


def model_card(trainer: MixTrainer) -> str:
    """What the model is and how it was made, with the header that the Hub reads."""
    model: Any = trainer.model
    settings = trainer.settings
    size = sum(parameter.numel() for parameter in model.parameters())
    rows = {
        "steps": settings.steps,
        "examples per step": settings.batch_size,
        "learning rate": f"{settings.learning_rate:g}, {settings.schedule}, {settings.warmup_steps} steps of warm-up",
        "weight decay": settings.weight_decay,
        "seed": settings.seed,
        "steps left out": len(trainer.guard.bad),
        "torch": torch.__version__,
    }
    table = "\n".join(f"| {name} | {value} |" for name, value in rows.items())
    kind = type(model).__name__
    return (
        f"---\nlibrary_name: transformers\ntags:\n- mixlab\n- {getattr(model.config, 'model_type', 'mixlab')}\n---\n\n"
        f"# {kind}\n\n{size:,} parameters, trained with mixlab.\n\n| | |\n| --- | --- |\n{table}\n\n"
        f"```python\nimport mixlab\nfrom transformers import {_auto(model)}\n\n"
        f"model = {_auto(model)}.from_pretrained('path/to/this/folder')\n```\n"
    )


def _auto(model: Any) -> str:
    head = type(model).__name__.partition("For")[2]
    return f"AutoModelFor{head}" if head else "AutoModel"
