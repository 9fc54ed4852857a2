"""A small training run that continues by itself: python -m tests.training.job FOLDER --task masked-lm --workers 0 --accumulation 1

It prints the sha256 of the final weights and of the optimizer's state. With KILL_AT=<hook>:<n> in the environment, it kills itself with
SIGKILL when the n-th such point of its saves is reached.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import TrainerCallback

import mixlab
from mixlab.errors import MixlabError
from mixlab.training import checkpoints, ranks
from mixlab.training.fit import fit
from mixlab.training.interrupt import Interrupted
from mixlab.training.settings import TrainingSettings
from mixlab.training.trainer import MixTrainer

VOCABULARY, LENGTH, EXAMPLES = 40, 16, 40
HOOKS = ("staged", "weights", "filled", "hashed", "fsynced", "renamed", "rotated")
TASKS = ("masked-lm", "causal-lm", "sequence-classification", "question-answering")


@dataclass(frozen=True)
class Job:
    task: str = "masked-lm"
    workers: int = 0
    accumulation: int = 1
    steps: int = 24
    save_every: int = 5
    dropout: float = 0.1
    shard: bool = False

    def settings(self, **changes: Any) -> TrainingSettings:
        own = {"steps": self.steps, "batch_size": 8, "accumulation": self.accumulation, "workers": self.workers}
        own |= {
            "save_every": self.save_every,
            "keep": 2,
            "warmup": 3,
            "log_every": 2,
            "learning_rate": 1e-2,
            "seed": 3,
            "shard": self.shard,
        }
        return TrainingSettings(**{**own, **changes})

    def model(self) -> Any:
        torch.manual_seed(0)
        sizes: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "vocab_size": VOCABULARY}
        sizes |= {"max_position_embeddings": LENGTH, "hidden_dropout": self.dropout, "drop_path": self.dropout}
        return mixlab.create("gmlp-tiny", task=self.task, **sizes)


def dataset() -> list[dict[str, Any]]:
    """Tokens that follow a rule with some noise, so that there is something to learn."""
    draw = np.random.default_rng(0)
    rows = (np.arange(LENGTH) * draw.integers(1, 4, (EXAMPLES, 1)) + draw.integers(0, 30, (EXAMPLES, 1))) % (VOCABULARY - 5) + 5
    return [{"input_ids": row.tolist(), "label": int(row[1] - row[0]) % 2} for row in rows]


@dataclass(frozen=True)
class Collator:
    """Batches as a pure function of (epoch, index)."""

    task: str

    def __call__(self, examples: Sequence[dict[str, Any]]) -> dict[str, Any]:
        ids = torch.tensor([example["input_ids"] for example in examples])
        keys = {name: torch.tensor([example[name] for example in examples]) for name in ("index", "epoch")}
        if self.task == "causal-lm":
            return {"input_ids": ids, "labels": ids.clone(), **keys}
        if self.task == "sequence-classification":
            return {"input_ids": ids, "labels": torch.tensor([example["label"] for example in examples]), **keys}
        if self.task == "question-answering":
            start = ids.argmax(1)
            return {"input_ids": ids, "start_positions": start, "end_positions": (start + 1).clamp(max=LENGTH - 1), **keys}
        hidden = [np.random.default_rng([7, e["epoch"], e["index"]]).random(LENGTH) < 0.3 for e in examples]
        mask = torch.from_numpy(np.stack(hidden))
        mask[:, 0] = True
        return {"input_ids": ids.masked_fill(mask, 4), "labels": ids.masked_fill(~mask, -100), **keys}


class Pause(TrainerCallback):
    """Makes steps slow enough to be interrupted, and tells on standard output that training has begun."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.seconds:
            if state.is_world_process_zero:  # lines of two processes would mix
                print(f"step {state.global_step}", flush=True)
            time.sleep(self.seconds)


def train(folder: Path, job: Job, **options: Any) -> MixTrainer:
    torch.set_num_threads(1)  # equal bytes need equally many threads
    changes = options.pop("settings", {})
    data = options.pop("dataset", None) or dataset()
    return fit(job.model(), job.settings(**changes), folder, data, collator=Collator(job.task), progress=False, **options)


def digest(trainer: MixTrainer, folder: Path) -> dict[str, str]:
    """Of the weights in memory and of the optimizer's state on the disk, which a finished run leaves in its last checkpoint."""
    newest = checkpoints.newest_valid(folder / "checkpoints")
    assert newest is not None
    weights = hashlib.sha256()
    for name, tensor in sorted(trainer.model.state_dict().items()):
        weights.update(name.encode() + tensor.contiguous().numpy().tobytes())
    state = hashlib.sha256(b"".join((newest / f"optimizer.{kind}").read_bytes() for kind in ("json", "safetensors")))
    random = hashlib.sha256((newest / "random.safetensors").read_bytes())
    return {"weights": weights.hexdigest(), "optimizer": state.hexdigest(), "random": random.hexdigest(), "step": newest.name}


def kill_at(point: str, tell: bool = False) -> Callable[[str], None]:
    """A stage hook that ends this process at `<hook>:<n>`, and may tell when."""
    hook, _, count = point.partition(":")
    seen = 0

    def strike(name: str) -> None:
        nonlocal seen
        seen += name == hook
        if name == hook and seen == int(count):
            if tell:
                print(f"killed {time.time()}", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)

    return strike


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--task", choices=TASKS, default="masked-lm")
    for name, value in (("pause", 0.0), ("dropout", 0.1)):
        parser.add_argument(f"--{name}", type=float, default=value)
    for name, default in (("workers", 0), ("accumulation", 1), ("steps", 24), ("save-every", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--shard", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    job = Job(options.task, options.workers, options.accumulation, options.steps, options.save_every, options.dropout, options.shard)
    if "KILL_AT" in os.environ:
        checkpoints.stage_hook = kill_at(os.environ["KILL_AT"], tell=True)
    try:
        trainer = train(options.folder, job, callbacks=[Pause(options.pause)])
    except MixlabError as error:
        print(f"error: {error}", file=sys.stderr)
        return getattr(error, "exit_code", 1)
    except Interrupted as stop:
        print(stop, file=sys.stderr)
        return stop.exit_code
    if ranks.rank() == 0:
        print(json.dumps(digest(trainer, options.folder)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
