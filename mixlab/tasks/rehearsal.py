"""A job tried out before it is started for days: the real model, two steps on random tokens, and what the whole run would cost."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch

from mixlab.errors import MixlabError
from mixlab.modeling.auto import create
from mixlab.tasks.job import Job
from mixlab.training.meter import TRAINING, forward_flops, matmul_limit

STEPS, EXAMPLES = 2, 2
ROWS = 100_000  # the cost of which is told where rows decide the number of steps
ACCELERATOR = 300e12  # FLOP/s that a large accelerator sustains on such work


def rehearse(job: Job) -> str:
    """Take the steps, and tell the cost line by line."""
    if job.start is not None:
        raise MixlabError(f"a rehearsal builds a new model; leave start={job.start} out")
    torch.manual_seed(job.training.seed)
    settings = {"vocab_size": job.vocabulary.size, "max_position_embeddings": job.length, "pad_token_id": 0, **job.model}
    model: Any = create(job.preset, task=job.task, **settings)
    if job.task == "masked-lm":
        model.config.labelled_logits_only = True
    losses = _steps(model, job)
    example = TRAINING * forward_flops(model, job.length)
    batch, parameters = job.training.batch_size, sum(p.numel() for p in model.parameters())
    lines = [
        f"{job.preset} for {job.task}: {parameters:,} parameters, {job.length} tokens, {batch} examples a step",
        f"two steps of {EXAMPLES} examples: loss {losses[0]:.3f}, then {losses[1]:.3f}",
        f"a step: {batch * job.length:,} tokens, {example * batch:.3g} FLOPs (3 times a forward pass, 2 per multiply-add)",
    ]
    if job.epochs:
        rows = example * job.epochs * ROWS
        return "\n".join(
            [
                *lines,
                f"{job.epochs:g} passes over the data: {rows:.3g} FLOPs for every {ROWS:,} rows of full length, "
                f"about {_time(rows / ACCELERATOR)} on one accelerator that sustains {ACCELERATOR / 1e12:.0f} TFLOP/s",
            ]
        )
    whole, here = example * batch * job.training.steps, matmul_limit(torch.device("cpu"))
    return "\n".join(
        [
            *lines,
            f"all {job.training.steps:,} steps: {batch * job.length * job.training.steps:.3g} tokens, {whole:.3g} FLOPs",
            f"at least {_time(whole / here)} at this machine's matrix products ({here / 1e9:.0f} GFLOP/s), "
            f"about {_time(whole / ACCELERATOR)} on one accelerator that sustains {ACCELERATOR / 1e12:.0f} TFLOP/s",
        ]
    )


def _time(seconds: float) -> str:
    """In the largest unit that leaves more than one."""
    for unit, size in (("years", 365 * 86400), ("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds > size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} seconds"


def _steps(model: Any, job: Job) -> list[float]:
    """With the job's optimizer at its full learning rate; finite, or refused."""
    settings = replace(job.training, steps=STEPS, warmup=0)
    optimizer = torch.optim.AdamW(
        model.parameters(), settings.learning_rate, betas=settings.betas, eps=settings.eps, weight_decay=settings.weight_decay
    )
    losses = []
    for _ in range(STEPS):
        loss = model.train()(**_random_batch(model, job)).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    if not all(map(math.isfinite, losses)):
        raise MixlabError(f"the losses of two steps are {losses}; lower learning_rate")
    return losses


def _random_batch(model: Any, job: Job) -> dict[str, torch.Tensor]:
    """Inputs of the right kind with the labels that the task wants."""
    ids = torch.randint(0, model.config.vocab_size, (EXAMPLES, job.length))
    if job.task == "masked-lm":
        hidden = torch.rand(ids.shape) < job.masking.rate
        hidden[:, 0] = True
        return {"input_ids": ids, "labels": ids.masked_fill(~hidden, -100)}
    if job.task == "causal-lm":
        return {"input_ids": ids, "labels": ids}
    if job.task == "question-answering":
        return {"input_ids": ids, "start_positions": torch.tensor([1, 2]), "end_positions": torch.tensor([2, 3])}
    if job.task == "sequence-classification":
        return {"input_ids": ids, "labels": torch.arange(EXAMPLES) % model.config.num_labels}
    raise MixlabError(f"{job.task} cannot be rehearsed; train a few steps instead: --set steps=2")
