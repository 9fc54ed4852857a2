"""FSDP2: a model in slices learns what a whole one does, and its checkpoints are those of everyone."""

from __future__ import annotations

import json
import math
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from transformers import AutoModelForMaskedLM, TrainerCallback

from mixlab.errors import MixlabError
from mixlab.training import checkpoints, ranks, sharding, state
from mixlab.training.guard import BadStepError
from mixlab.training.settings import TrainingSettings
from mixlab.training.trainer import MixTrainer
from tests.training.job import Collator, Job, dataset, digest, kill_at, train
from tests.training.survival import fork, losses, wait


def together(work: Callable[[], Any], processes: int = 2) -> list[int]:
    """The exit codes of processes that torchrun would have started so."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def ranked(rank: int) -> None:
        own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": processes, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        os.environ.update({name: str(value) for name, value in own.items()})
        work()

    children = [fork(lambda rank=rank: ranked(rank)) for rank in range(processes)]
    return [wait(child) for child in children]


def all_train(folder: Path, job: Job, **options: Any) -> dict[str, str]:
    def work() -> None:
        trainer = train(folder, job, **options)
        if ranks.rank() == 0:
            (folder / "digest.json").write_text(json.dumps(digest(trainer, folder)), encoding="utf-8")

    assert together(work) == [0, 0]
    return json.loads((folder / "digest.json").read_text(encoding="utf-8"))


class Look(TrainerCallback):
    """Each process holds a slice of every large weight, and of what the optimizer keeps for it."""

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, optimizer: Any = None, **kwargs: Any) -> None:
        for parameter in model.parameters():
            kept = [parameter, *(value for value in optimizer.state[parameter].values() if value.dim())]
            assert len(kept) == 3
            assert all(isinstance(value, DTensor) for value in kept)
            assert all(value.to_local().shape[0] <= math.ceil(value.shape[0] / 2) for value in kept)


def test_slices_end_where_whole_models_do(tmp_path: Path) -> None:
    """With evaluations and accumulation on the way; the folder of the model is an ordinary one."""
    job = {"steps": 12, "dropout": 0.0, "accumulation": 2}
    rows, evaluated = dataset(), {"evaluate_every": 6}
    all_train(tmp_path / "sliced", Job(**job, shard=True), callbacks=[Look()], eval_dataset=rows[:9], settings=evaluated)
    whole = train(tmp_path / "whole", Job(**job), eval_dataset=rows[:9], settings=evaluated)
    for one, other in zip(losses(tmp_path / "sliced"), losses(tmp_path / "whole"), strict=True):
        assert abs(one[1] - other[1]) < 1e-5
    model = AutoModelForMaskedLM.from_pretrained(tmp_path / "sliced" / "model")
    assert type(model) is type(whole.model)
    for one, other in zip(model.parameters(), whole.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=0)
    newest = tmp_path / "sliced" / "checkpoints" / "step-12"
    for name in ("config.json", "optimizer.json"):
        assert (newest / name).read_bytes() == (tmp_path / "whole" / "checkpoints" / "step-12" / name).read_bytes()


def killed_together(folder: Path, job: Job, hook: str) -> None:
    """The first of two processes dies inside a save; the other notices, and ends as well."""

    def work() -> None:
        if os.environ["RANK"] == "0":
            checkpoints.stage_hook = kill_at(hook)
        train(folder, job)

    codes = together(work)
    assert codes[0] == -signal.SIGKILL
    assert codes[1] != 0


@pytest.mark.slow
def test_what_two_slices_left_continues_sliced_and_whole(tmp_path: Path) -> None:
    """The checkpoint of two slices continues in one process, in two whole ones, and in two slices: there to the bit."""
    job = Job(steps=24, shard=True)
    expected = all_train(tmp_path / "expected", job)
    killed_together(tmp_path / "slices", job, "filled:3")
    assert all_train(tmp_path / "slices", job) == expected

    job = Job(steps=24, dropout=0.0, shard=True)
    train(tmp_path / "reference", Job(steps=24, dropout=0.0))
    for name, then in (("one", lambda folder: train(folder, job)), ("whole", lambda folder: all_train(folder, Job(steps=24, dropout=0.0)))):
        killed_together(tmp_path / name, job, "hashed:3")
        then(tmp_path / name)
        for one, other in zip(losses(tmp_path / name), losses(tmp_path / "reference"), strict=True):
            assert abs(one[1] - other[1]) < 1e-5


def test_what_one_process_left_continues_in_slices(tmp_path: Path) -> None:
    job = Job(steps=24, dropout=0.0)
    train(tmp_path / "reference", job)

    def killed() -> None:
        checkpoints.stage_hook = kill_at("filled:3")
        train(tmp_path / "run", job)

    assert wait(fork(killed)) == -signal.SIGKILL
    all_train(tmp_path / "run", Job(steps=24, dropout=0.0, shard=True))
    assert max(abs(a[1] - b[1]) for a, b in zip(losses(tmp_path / "run"), losses(tmp_path / "reference"), strict=True)) < 1e-5


def test_a_bad_step_is_seen_in_slices(tmp_path: Path) -> None:
    """A gradient that is NaN in one process only stops both, with the state before it."""

    def work() -> None:
        job = Job(shard=True)
        trainer = MixTrainer(job.model(), job.settings(), tmp_path / "checkpoints", dataset(), collator=Collator(job.task))

        def spoil(module: nn.Module, inputs: Any, output: Any) -> Any:
            if trainer.state.global_step == 7 and ranks.rank() == 1:
                output["loss"] = output["loss"] * math.nan
            return output

        trainer.model.register_forward_hook(spoil)
        with pytest.raises(BadStepError, match=r"^step 8: .*nan.*step-7;"):
            trainer.train()

    assert together(work) == [0, 0]
    newest = checkpoints.newest_valid(tmp_path / "checkpoints")
    assert newest is not None
    assert newest.name == "step-7"


def test_tied_weights_unequal_starts_and_loading(tmp_path: Path) -> None:
    """All processes take the first one's weights; what is gathered is what was cut, tied weights once; and back from a folder."""
    job = Job("masked-lm")
    job.model().save_pretrained(tmp_path / "plain")

    def work() -> None:
        dist.init_process_group("gloo")
        first = job.model().state_dict()
        model: Any = job.model()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(ranks.rank())  # as if nobody had set a seed
        sharding.shard(model, torch.device("cpu"))
        gathered = sharding.weights(model)
        if ranks.rank() == 0:
            assert {name: tensor.tolist() for name, tensor in gathered.items()} == {name: t.tolist() for name, t in first.items()}
            assert len({tensor.data_ptr() for tensor in gathered.values()}) == len({t.data_ptr() for t in first.values()}) < len(first)
        else:
            assert all(tensor.numel() == 0 for tensor in gathered.values())
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
        state.load_weights(model, tmp_path / "plain")
        generator = torch.get_rng_state()
        whole = sharding.whole(model, torch.device("cpu"))
        assert torch.equal(torch.get_rng_state(), generator)
        assert not sharding.is_sharded(whole)
        assert all(torch.equal(tensor, first[name]) for name, tensor in whole.state_dict().items())
        dist.destroy_process_group()

    assert together(work) == [0, 0]


def test_what_cannot_be_sharded_is_refused() -> None:
    with pytest.raises(MixlabError, match="Linear tells of no blocks to shard; leave shard off"):
        sharding.shard(nn.Linear(2, 2), torch.device("cpu"))
    with pytest.raises(MixlabError, match="shard and compile do not go together"):
        TrainingSettings(steps=1, shard=True, compile=True)


def test_an_optimizer_of_whole_weights_is_refused(tmp_path: Path) -> None:
    def work() -> None:
        job = Job(shard=True)
        model = job.model()
        optimizers = (torch.optim.SGD(model.parameters(), 0.1), None)
        trainer = MixTrainer(model, job.settings(), tmp_path, dataset(), collator=Collator(job.task), optimizers=optimizers)
        with pytest.raises(MixlabError, match="needs an optimizer that is made after it was cut"):
            trainer.train()

    assert together(work) == [0, 0]
