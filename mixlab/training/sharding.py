"""A model in slices, one for each process (FSDP2): none holds all weights, gradients and optimizer states at once.

Checkpoints know nothing of it. Tensors are made whole as they are written and cut as they are read, so that any number of processes,
sharded or not, continues from the same files. What says "all together" must be called by all processes in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from mixlab.errors import MixlabError, one_line
from mixlab.training import ranks


def is_sharded(model: nn.Module) -> bool:
    return isinstance(model, FSDPModule)


def shard(model: nn.Module, device: torch.device) -> None:
    """Cut a model in place, block by block. All together; they begin with the weights of the first."""
    names = getattr(model, "_no_split_modules", None) or ()
    blocks = [module for module in model.modules() if type(module).__name__ in names]
    if not blocks:
        raise MixlabError(f"{type(model).__name__} tells of no blocks to shard; leave shard off, which trains it whole in each process")
    with torch.no_grad():
        for tensor in [*model.parameters(), *model.buffers()]:
            dist.broadcast(tensor, src=0)
    mesh = init_device_mesh(device.type, (ranks.world(),))
    try:
        for module in [*reversed(blocks), model]:  # from the inside out; the model itself takes what is in no block
            fully_shard(module, mesh=mesh)
    except (ValueError, NotImplementedError) as error:
        raise MixlabError(f"{type(model).__name__} cannot be sharded: {one_line(error)}; leave shard off") from error


def weights(model: nn.Module) -> dict[str, Tensor]:
    """Those of a sharded model, whole, for the first process; the others get empty tensors. All together."""
    return gathered(model.state_dict(keep_vars=True))


def gathered(tree: Any) -> Any:
    """A tree with all slices made whole, for the first process; the others get empty tensors. All together."""
    seen: dict[int, Tensor] = {}  # tied weights stay one tensor

    def joined(part: Tensor) -> Tensor:
        if id(part) not in seen:
            whole = full(part).detach()
            seen[id(part)] = whole if ranks.rank() == 0 else whole.new_empty(0)
        return seen[id(part)]

    with torch.no_grad():
        return _mapped(tree, joined)


def _mapped(tree: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(tree, Tensor):
        return change(tree)
    if isinstance(tree, Mapping):
        return {key: _mapped(part, change) for key, part in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(_mapped(part, change) for part in tree)
    return tree


def full(value: Any) -> Any:
    """A slice made whole; anything else as it is. All together."""
    return value.full_tensor() if isinstance(value, DTensor) else value


def cut(whole: Tensor, like: Tensor | None) -> Tensor:
    """This process's slice of a tensor that all of them read, where `like` is sharded and of the same shape."""
    if not isinstance(like, DTensor) or isinstance(whole, DTensor) or whole.shape != like.shape:
        return whole
    return distribute_tensor(whole.to(like.device), like.device_mesh, like.placements, src_data_rank=None)


def cut_optimizer(optimizer: Any, tree: Mapping[str, Any]) -> Mapping[str, Any]:
    """The whole state of an optimizer, with the slices that belong to its parameters."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    numbers = [number for group in tree["param_groups"] for number in group["params"]]
    of = dict(zip(numbers, parameters, strict=False))  # where the lengths differ, loading tells
    state = {number: _mapped(kept, lambda value, number=number: cut(value, of.get(number))) for number, kept in tree["state"].items()}
    return {**tree, "state": state}


def whole(model: nn.Module, device: torch.device) -> nn.Module:
    """An ordinary model with the weights of a sharded one, in every process. All together."""
    kind: Any = next(base for base in type(model).__mro__ if not issubclass(base, FSDPModule))
    with torch.random.fork_rng(), torch.no_grad():
        plain = kind(model.config)
        plain.load_state_dict({name: full(tensor) for name, tensor in model.state_dict().items()})
    return plain.to(device).train(model.training)
