"""transformers' Trainer, with the parts replaced that lose work: saving, loading, the order of data, and steps that are not finite."""

from __future__ import annotations

import contextlib
import functools
import os
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.utils.data import DataLoader, Sampler
from transformers import PrinterCallback, Trainer, TrainerCallback
from transformers.trainer_utils import TrainOutput

from mixlab.data.sampling import StatelessSampler
from mixlab.errors import MixlabError, one_line
from mixlab.modeling.quiet import quiet_bars
from mixlab.training import checkpoints, loading, ranks, sharding, state
from mixlab.training.deterministic import deterministic
from mixlab.training.guard import BadStepError, Guard, Rollback, Snapshot, Verdict
from mixlab.training.interrupt import EvaluationLeft, Interrupt, Interrupted
from mixlab.training.meter import Meter
from mixlab.training.metrics import MetricsFile
from mixlab.training.settings import TrainingSettings


class MixTrainer(Trainer):
    """Trains in `folder`, which holds the checkpoints; `train()` continues from the newest valid one by itself."""

    def __init__(
        self,
        model: nn.Module,
        settings: TrainingSettings,
        folder: Path | str,
        train_dataset: Any,
        *,
        eval_dataset: Any = None,
        collator: Callable[[Sequence[Any]], dict[str, Any]] | None = None,
        tokenizer: Any = None,
        sampler: StatelessSampler | None = None,
        metrics: MetricsFile | None = None,
        compute_metrics: Callable[[Any], dict[str, float]] | None = None,
        callbacks: Sequence[TrainerCallback] = (),
        optimizers: tuple[Any, Any] = (None, None),
    ) -> None:
        self.settings, self.folder, self.metrics, self.sampler = settings, Path(folder), metrics, sampler
        self.guard = Guard(settings.spike, settings.most_bad_steps)
        self.meter = Meter(model)
        self._given_optimizers = optimizers
        self._worker_seeds = torch.Generator()
        self._interrupt = Interrupt()
        self._losses: list[Tensor] = []  # of the micro-batches of this step
        self._before: Snapshot | None = None  # this step
        self._loss_before = torch.tensor(0.0)  # what was to be reported, before this step
        self._resumed: dict[str, Any] | None = None
        config: Any = getattr(model, "config", None)
        caching = getattr(config, "use_cache", None)
        super().__init__(
            model=model,  # pyright: ignore[reportArgumentType] (any module)
            args=settings.arguments(self.folder),
            data_collator=collator,
            train_dataset=loading.keyed(train_dataset),
            eval_dataset=loading.keyed(eval_dataset),
            processing_class=tokenizer,
            compute_metrics=compute_metrics,
            callbacks=list(callbacks),
            optimizers=optimizers,
        )
        # Trainer evaluates a loss only where a batch has all of these, and shift_labels are labels in another form, never beside them.
        self.label_names = [name for name in self.label_names if name != "shift_labels"]
        if caching is not None:
            config.use_cache = caching  # Trainer turns it off, and the saved model would generate slowly
        self.data_collator = loading.WithoutKeys(self.data_collator)
        self.remove_callback(PrinterCallback)
        for callback in self.callback_handler.callbacks:
            if getattr(callback, "logging_dir", "") is None:  # TensorBoard's, which would write among the checkpoints
                callback.logging_dir = str(self.folder.parent / "tensorboard")

    # ---- Starting, continuing, leaving ----

    def train(
        self, resume_from_checkpoint: str | bool | None = True, trial: Any = None, ignore_keys_for_eval: list[str] | None = None
    ) -> TrainOutput:
        """To the last step. True: from the newest valid checkpoint, if there is one; a path: from that; False: from the beginning."""
        with self._interrupt, deterministic(self.settings.deterministic):
            try:
                if self.settings.shard and ranks.world() > 1:
                    self._shard()
                output = self._train_through_rollbacks(resume_from_checkpoint, ignore_keys_for_eval)
                if sharding.is_sharded(self._module()):
                    self._make_whole()
                return output
            except (MixlabError, Interrupted) as error:
                traceback.clear_frames(error.__traceback__)  # lets go of the processes that load data
                raise

    def _shard(self) -> None:
        """Trainer then takes the model for one that cares for its slices itself, and wraps it in nothing."""
        if self._given_optimizers[0] is not None:
            raise MixlabError("a sharded model needs an optimizer that is made after it was cut; leave shard off, or give no optimizer")
        sharding.shard(self._module(), self.args.device)
        self.optimizer, self.lr_scheduler = self._given_optimizers  # those of an earlier call know the whole weights
        self.is_distributed_loading_by_transformers, self.place_model_on_device = True, False

    @contextlib.contextmanager
    def _defer_fsdp_gradient_reduction(self) -> Iterator[None]:
        """While a step accumulates. Trainer's own asks the configuration for settings of models that it cut itself."""
        model: Any = self._module()
        model.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            model.set_requires_gradient_sync(True)

    def _make_whole(self) -> None:
        self.model = self.model_wrapped = sharding.whole(self._module(), self.args.device)
        self.is_distributed_loading_by_transformers, self.place_model_on_device = False, True

    def _train_through_rollbacks(self, resume: str | bool | None, ignored: list[str] | None) -> TrainOutput:
        while True:
            start = ranks.on_main(functools.partial(self._starting_point, resume))
            step = 0 if start is None else checkpoints.step_of(start)
            if self.metrics is not None and ranks.rank() == 0:
                self.metrics.continue_after(step)
            if start is not None and step >= self.settings.steps:
                self._load_from_checkpoint(str(start))
                return TrainOutput(step, 0.0, {})
            state.seed_everything(ranks.unlike_seed(self.settings.seed, step))
            try:
                output = super().train(None if start is None else str(start), None, ignored)
            except Rollback as bad:
                self.guard.left_out.add(bad.step)
                self.optimizer, self.lr_scheduler = self._given_optimizers
                resume = True
                continue
            if self._interrupt.asked and self.state.global_step < self.settings.steps:
                raise Interrupted(f"interrupted after step {self.state.global_step}; the same command continues")
            return output

    def _starting_point(self, resume: str | bool | None) -> Path | None:
        if isinstance(resume, str):
            chosen = Path(resume)
            if wrong := checkpoints.problems(chosen):
                raise MixlabError(f"checkpoint {chosen} is not valid: {'; '.join(wrong[:3])}")
            for later in checkpoints.all_in(self.folder):
                if later.parent == chosen.parent and checkpoints.step_of(later) > checkpoints.step_of(chosen):
                    checkpoints.set_aside(later, "superseded")
            return chosen
        checkpoints.clean(self.folder)
        if resume:
            return checkpoints.newest_valid(self.folder)
        if checkpoints.all_in(self.folder):
            raise MixlabError(f"{self.folder} holds checkpoints; continue from them, or choose another folder")
        return None

    # ---- Data ----

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler[int] | None:
        dataset: Any = self.train_dataset if train_dataset is None else train_dataset
        if not hasattr(dataset, "__len__"):
            return None
        return loading.WholeBatches(self.sampler or StatelessSampler(len(dataset), self.settings.seed), self.settings.batch_size)

    def get_train_dataloader(self) -> DataLoader[Any]:
        return loading.prepare(super().get_train_dataloader(), self._worker_seeds)

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """As usual, and training does not notice: the random generators are put back."""
        before = state.random_state()
        try:
            with self.meter.paused():
                return super().evaluate(*args, **kwargs)
        except EvaluationLeft:
            return {}
        finally:
            state.set_random_state(before)

    def prediction_step(self, *args: Any, **kwargs: Any) -> Any:
        if self._interrupt.asked and self.is_in_train and ranks.world() == 1:
            raise EvaluationLeft
        return super().prediction_step(*args, **kwargs)

    def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
        # accelerate's set_epoch does not reach the sampler through a skipping loader over several processes.
        sampler = _innermost_sampler(kwargs["train_dataloader"])
        if sampler is not None:
            sampler.set_epoch(kwargs["epoch"])
        self._worker_seeds.manual_seed(self.settings.seed + kwargs["epoch"])
        if self._resumed is not None:
            self._tr_loss = self._resumed["loss"].to(self._tr_loss)
            self._globalstep_last_logged = self._resumed["last_logged"]
            self._resumed = None
        super()._run_epoch(*args, **kwargs)

    # ---- Steps ----

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        if not self._losses:
            self._before = Snapshot.take(self._module())
            self._loss_before = self._tr_loss.clone()
        self.meter.count(inputs)
        loss = super().training_step(model, inputs, num_items_in_batch)
        self._losses.append(loss)
        return loss

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Any:
        """The last thing before the optimizer: here a bad step is refused."""
        norm: Any = sharding.full(super()._get_grad_norm(model, grad_norm=grad_norm))
        loss = ranks.mean(float(torch.stack(self._losses).sum()))
        self._losses = []
        verdict = self.guard.judge(self.state.global_step + 1, loss, float(norm))
        if verdict is not None:
            self._refuse(verdict, model)
        return norm

    def _refuse(self, verdict: Verdict, model: nn.Module) -> None:
        """Stop, go back, or let the optimizer find no gradients, which leaves weights and its state as they are."""
        assert self._before is not None
        self._before.restore_buffers(self._module())
        model.zero_grad()
        policy = self.settings.on_bad_step
        if self.metrics is not None and ranks.rank() == 0:
            self.metrics.append(verdict.step, "bad-step", why=verdict.why, policy=policy)
        if policy == "stop" or self.guard.exhausted:
            state.set_random_state(self._before.random)
            self._tr_loss = self._loss_before
            self.guard.forget(verdict)
            self._save_checkpoint(model, None)
            many = f" ({self.guard.in_a_row + 1} bad steps in a row)" if policy != "stop" else ""
            raise BadStepError(
                f"step {verdict.step}: {verdict.why}{many}; the state before it is {checkpoints.name_of(self.state.global_step)}; "
                "lower learning_rate, look at the data, or set on_bad_step to skip or rollback"
            )
        if policy == "rollback" and verdict.step not in self.guard.left_out:
            raise Rollback(verdict.step, verdict.why)
        self._tr_loss = self._loss_before
        self._globalstep_last_logged += 1  # the reported loss is the mean of the steps that were taken

    def _maybe_log_save_evaluate(self, *args: Any, **kwargs: Any) -> None:
        self._leave_if_asked()
        super()._maybe_log_save_evaluate(*args, **kwargs)
        if self._leave_if_asked():  # during the evaluation
            super()._maybe_log_save_evaluate(*args, **kwargs)

    def _leave_if_asked(self) -> bool:
        """Have a checkpoint written and training stop, once, on all processes alike."""
        if self.control.should_training_stop or not ranks.any_of(self._interrupt.asked):
            return False
        self._interrupt.asked = True
        self.control.should_save = self.control.should_training_stop = True
        self.control.should_evaluate = False
        return True

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs:
            logs |= self.meter.rates(ranks.world())
        super().log(logs, start_time)
        if self.metrics is not None and ranks.rank() == 0:
            kind = "train" if "loss" in logs else "evaluate" if any(name.startswith("eval_") for name in logs) else "end"
            self.metrics.append(self.state.global_step, kind, **logs)

    # ---- Saving ----

    def _prepare_for_training(self, max_steps: int, train_dataloader: Any, resume_from_checkpoint: str | None) -> Any:
        prepared = super()._prepare_for_training(max_steps, train_dataloader, resume_from_checkpoint)
        if resume_from_checkpoint is None and self.settings.on_bad_step == "rollback":
            self._globalstep_last_logged, self._tr_loss = 0, torch.tensor(0.0)
            self._save_checkpoint(prepared[0], None)  # a place to go back to
        return prepared

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        self.store_flos()
        random = ranks.gather(state.random_state())
        weights = sharding.weights(self._module()) if sharding.is_sharded(self._module()) else self._module().state_dict()
        optimizer = sharding.gathered(self._optimizer_state())
        step = self.state.global_step

        def save() -> None:
            if (where := state.non_finite([weights, optimizer])) is not None:
                last = next(iter(checkpoints.all_in(self.folder)), None)
                after = f"; the last valid checkpoint is {last.name}" if last else ""
                raise BadStepError(f"after step {step} {where} is not finite, so no checkpoint was written{after}; lower learning_rate")
            checkpoints.write(self.folder / checkpoints.name_of(step), lambda folder: self._fill(folder, weights, optimizer, random))
            checkpoints.rotate(self.folder, self.settings.keep)

        try:
            ranks.on_main(save)
        except (OSError, SafetensorError) as error:
            why = one_line(getattr(error, "strerror", None) or error)
            raise MixlabError(
                f"the checkpoint of step {step} could not be written to {self.folder}: {why}; earlier ones are intact"
            ) from error

    def _fill(self, folder: Path, weights: dict[str, Any], optimizer: dict[str, Any], random: list[dict[str, Any]]) -> None:
        self._save(str(folder), weights if sharding.is_sharded(self._module()) else None)
        checkpoints.stage_hook("weights")
        state.write_tree(folder, "optimizer", optimizer)
        state.write_tree(folder, "scheduler", self.lr_scheduler.state_dict())
        state.write_tree(folder, "random", random)
        progress = {
            "loss": self._tr_loss,
            "last_logged": self._globalstep_last_logged,
            "guard": self.guard.memory(),
            "tokens": self.meter.tokens,
        }
        state.write_tree(folder, "progress", progress)
        self.state.save_to_json(os.path.join(folder, "trainer_state.json"))

    def _module(self) -> nn.Module:
        assert self.model is not None
        return self.model

    def _optimizer_state(self) -> dict[str, Any]:
        assert self.optimizer is not None
        return self.optimizer.state_dict()

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        """An ordinary folder of transformers, without the pickled arguments."""
        model: Any = self.accelerator.unwrap_model(self.model, keep_torch_compile=False)
        with quiet_bars():
            model.save_pretrained(output_dir or self.args.output_dir, state_dict=state_dict)

    # ---- Loading ----

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        state.load_weights(self._module() if model is None else model, Path(resume_from_checkpoint))

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is None:
            return
        folder = Path(checkpoint)
        state.load_optimizer(self.optimizer, state.read_tree(folder, "optimizer"))
        self.lr_scheduler.load_state_dict(state.read_tree(folder, "scheduler"))
        self._resumed = state.read_tree(folder, "progress")
        assert self._resumed is not None
        self.guard.remember(self._resumed["guard"])
        self.meter.tokens = self._resumed["tokens"]

    def _load_rng_state(self, checkpoint: str | None) -> None:
        if checkpoint is None:
            return
        stored = state.read_tree(Path(checkpoint), "random")
        if len(stored) == ranks.world():
            state.set_random_state(stored[ranks.rank()])


def _innermost_sampler(loader: Any) -> Any:
    """Through the batch samplers that accelerate puts around it."""
    sampler = getattr(loader, "batch_sampler", None)
    while sampler is not None and not hasattr(sampler, "set_epoch"):
        sampler = getattr(sampler, "batch_sampler", None) or getattr(sampler, "sampler", None)
    return sampler
