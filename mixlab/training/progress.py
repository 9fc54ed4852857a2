"""Progress on the screen: a live bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from mixlab.training import checkpoints
from mixlab.training.meter import Meter, matmul_limit


class Progress(TrainerCallback):
    """Loss, tokens per second, the share of the machine's matmul limit, the time left, the last verified checkpoint."""

    def __init__(self, meter: Meter, folder: Path, console: Console | None = None) -> None:
        self.meter, self.folder = meter, folder
        self.console = console or Console(stderr=True)
        self.saved = "none"
        self.text = ""
        self._bar: Bar | None = None

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if not state.is_world_process_zero:
            return
        if self.meter.limit is None:
            self.meter.limit = matmul_limit(args.device)
        if state.global_step:
            self.saved = checkpoints.name_of(state.global_step)
            self.console.print(f"continuing after step {state.global_step} of {state.max_steps}", highlight=False)
        if self.console.is_terminal:
            columns = (MofNCompleteColumn(), BarColumn(), TimeRemainingColumn(), TextColumn("{task.fields[text]}"))
            self._bar = Bar(*columns, console=self.console)
            self._bar.add_task("", total=state.max_steps, completed=state.global_step, text="")
            self._bar.start()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=state.global_step)

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs: dict[str, Any] | None = None, **kwargs: Any
    ) -> None:
        if not state.is_world_process_zero or not logs or "train_runtime" in logs:
            return
        if "loss" in logs:
            self.text = described(logs, self.saved)
        else:
            scores = ", ".join(f"{name.removeprefix('eval_')} {value:.4g}" for name, value in logs.items() if name in _scores(logs))
            self.console.print(f"step {state.global_step}: evaluated: {scores}", highlight=False)
            return
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], text=self.text)
        else:
            self.console.print(f"step {state.global_step}/{state.max_steps}  {self.text}", highlight=False, soft_wrap=True)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self.saved = checkpoints.name_of(state.global_step)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self.stop()

    def stop(self) -> None:
        """Leave the terminal as it was; also after an error."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def described(logs: dict[str, Any], saved: str) -> str:
    parts = [f"loss {logs['loss']:.4f}"]
    if "tokens_per_second" in logs:
        parts.append(f"{logs['tokens_per_second']:,.0f} tokens/s")
    if "matmul_share" in logs:
        parts.append(f"{100 * logs['matmul_share']:.0f}% of the matmul limit")
    return "  ".join([*parts, f"saved {saved}"])


def _scores(logs: dict[str, Any]) -> set[str]:
    times = ("runtime", "per_second", "epoch")
    return {name for name, value in logs.items() if isinstance(value, int | float) and not name.endswith(times)}
