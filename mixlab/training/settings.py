"""What a training run may be told, checked before anything starts, and the one place where it becomes TrainingArguments."""

from __future__ import annotations

import importlib.util
import math
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from transformers import TrainingArguments

from mixlab.errors import MixlabError, unknown

SCHEDULES = {
    "linear": "linear",
    "cosine": "cosine",
    "constant": "constant_with_warmup",
    "polynomial": "polynomial",
    "inverse-sqrt": "inverse_sqrt",
}
POLICIES = ("stop", "skip", "rollback")
TRACKERS = ("tensorboard", "trackio", "wandb", "mlflow")
CPU_BF16 = ("avx512_bf16", "amx_bf16", "bf16 ")  # of x86, of x86's matrix unit, of Arm


@dataclass(frozen=True)
class TrainingSettings:
    """A run, in numbers. `batch_size` is that of one optimizer step over all processes; `accumulation` cuts it into parts that fit."""

    steps: int
    batch_size: int = 32
    accumulation: int = 1
    learning_rate: float = 5e-4
    schedule: str = "linear"
    warmup: float = 0  # steps; below 1, a share of all steps
    weight_decay: float = 0.01
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-6
    clip: float = 1.0  # the norm that gradients are scaled down to; 0: never
    seed: int = 0
    workers: int = 0
    log_every: int = 10
    save_every: int = 500
    keep: int = 2
    evaluate_every: int = 0  # 0: never
    on_bad_step: Literal["stop", "skip", "rollback"] = "stop"
    spike: float = 0.0  # a loss this many times the running median is a bad step; 0: any finite loss is good
    most_bad_steps: int = 20  # in a row, before `skip` and `rollback` give up
    bf16: bool = False
    compile: bool = False
    shard: bool = False  # over several processes: each holds a slice of the model (FSDP2) instead of all of it
    deterministic: bool = True
    report_to: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "accumulation", "log_every", "save_every", "keep", "most_bad_steps"):
            _at_least(self, name, 1)
        for name in ("warmup", "workers", "evaluate_every", "seed", "weight_decay", "clip", "learning_rate"):
            _at_least(self, name, 0)
        if self.eps <= 0:
            raise MixlabError(f"eps is {self.eps}; it must be above 0")
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise MixlabError(f"betas are {self.betas}; give two numbers from 0 up to, but not, 1")
        if self.warmup > self.steps:
            raise MixlabError(
                f"warmup is {self.warmup} steps, but the run has {self.steps}; set it lower, or to a share of the steps, as in warmup=0.1"
            )
        if self.batch_size % self.accumulation:
            raise MixlabError(f"batch_size {self.batch_size} cannot be cut into {self.accumulation} equal parts; change accumulation")
        if self.spike and not self.spike > 1:
            raise MixlabError(f"spike is {self.spike}; give a factor above 1, or 0 for none")
        if self.shard and self.compile:
            raise MixlabError("shard and compile do not go together; leave one of them off")
        _one_of("schedule", self.schedule, SCHEDULES)
        _one_of("policy on_bad_step", self.on_bad_step, POLICIES)
        for tracker in self.report_to:
            _one_of("tracker", tracker, TRACKERS)
            if importlib.util.find_spec(tracker) is None:
                raise MixlabError(f"report_to names {tracker}, which is not installed; pip install {tracker}, or leave it out")
        if self.bf16:
            check_bf16()

    @property
    def warmup_steps(self) -> int:
        return round(self.warmup * self.steps) if self.warmup < 1 else int(self.warmup)

    def micro_batch(self, processes: int) -> int:
        """The examples of one forward pass in one process."""
        parts = self.accumulation * processes
        if self.batch_size % parts:
            raise MixlabError(
                f"batch_size {self.batch_size} cannot be shared by {processes} processes in {self.accumulation} parts each; "
                f"make it a multiple of {parts}"
            )
        return self.batch_size // parts

    def arguments(self, folder: Path) -> TrainingArguments:
        """The same for transformers. Every setting of ours appears here, and nowhere else."""
        processes = int(os.environ.get("WORLD_SIZE", "1"))
        micro_batch = self.micro_batch(processes)
        return TrainingArguments(
            output_dir=str(folder),
            max_steps=self.steps,
            per_device_train_batch_size=micro_batch,
            per_device_eval_batch_size=micro_batch,
            gradient_accumulation_steps=self.accumulation,
            learning_rate=self.learning_rate,
            lr_scheduler_type=SCHEDULES[self.schedule],
            warmup_steps=self.warmup_steps,
            weight_decay=self.weight_decay,
            adam_beta1=self.betas[0],
            adam_beta2=self.betas[1],
            adam_epsilon=self.eps,
            max_grad_norm=self.clip,
            seed=self.seed,
            data_seed=self.seed,
            dataloader_num_workers=self.workers,
            dataloader_drop_last=False,  # it would drop examples of evaluations too; WholeBatches sees to training
            dataloader_pin_memory=_has_cuda(),
            remove_unused_columns=False,
            logging_strategy="steps",
            logging_steps=self.log_every,
            logging_nan_inf_filter=False,
            save_strategy="steps",
            save_steps=self.save_every,
            eval_strategy="steps" if self.evaluate_every else "no",
            eval_steps=self.evaluate_every or None,
            bf16=self.bf16,
            torch_compile=self.compile,
            report_to=list(self.report_to) or "none",
            disable_tqdm=True,
            use_cpu=not _has_cuda(),
            ddp_find_unused_parameters=False,
        )

    def as_dict(self) -> dict[str, Any]:
        """For a recipe: plain values only. How the work is divided is no part of it, as the number of processes is not."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items() if name != "shard"}


def check_bf16() -> None:
    """A CPU without bf16 instructions emulates them, about a hundred times slower than fp32."""
    if _has_cuda():
        import torch

        if not torch.cuda.is_bf16_supported(including_emulation=False):
            raise MixlabError("bf16 is not supported by this GPU; leave bf16 off")
        return
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        flags = ""
    if not any(flag in flags for flag in CPU_BF16):
        raise MixlabError("bf16 on this CPU would be emulated, about a hundred times slower than fp32; leave bf16 off")


def _has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()


def _at_least(settings: TrainingSettings, name: str, least: int) -> None:
    value = getattr(settings, name)
    if not math.isfinite(value) or value < least:
        raise MixlabError(f"{name} is {value}; it must be at least {least}")


def _one_of(kind: str, value: str, known: Any) -> None:
    if value not in known:
        raise unknown(kind, value, known)
