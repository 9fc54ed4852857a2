"""Memory, state and ranks against what the real models keep, hold and do."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import mixlab
from mixlab import registry
from mixlab.accounting import Account

SMALL = [preset for preset in registry.presets() if "-tiny" in preset]
CAUSAL = [preset for preset in SMALL if "causal-lm" in mixlab.config(preset).traits.tasks]


def inputs(model: Any, n: int) -> dict[str, Tensor]:
    config = model.config
    if config.modality == "image":
        return {"pixel_values": torch.randn(1, config.num_channels, config.image_size, config.image_size)}
    if config.modality == "audio":
        return {"input_features": torch.randn(1, config.fewest_frames(n), config.num_mel_bins)}
    return {"inputs_embeds": torch.randn(1, n, config.hidden_size)}


def storages(model: nn.Module) -> set[int]:
    return {tensor.untyped_storage()._cdata for tensor in [*model.parameters(), *model.buffers()]}


def kept_by(model: Any, given: dict[str, Tensor]) -> int:
    """Numbers that autograd keeps of a forward pass, each storage once, parameters aside."""
    known, kept = storages(model), {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in known and tensor.is_floating_point():
            kept[storage._cdata] = storage  # held, so that no other gets its place
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(**given)
    return sum(storage.nbytes() // 4 for storage in kept.values())


@pytest.mark.parametrize("preset", SMALL)
def test_training_keeps_what_autograd_keeps(preset: str) -> None:
    """Most agree to the number. A slice keeps all of what it was cut from, and some steps are not those that are counted."""
    model, counted = mixlab.create(preset).train(), mixlab.account(preset)
    assert counted.kept == pytest.approx(kept_by(model, inputs(model, counted.length)), rel=0.07)


class Held(TorchDispatchMode):
    """The most bytes that were there at once, besides what was there before."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.known, self.now, self.most = storages(model), 0, 0

    def __torch_dispatch__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for storage in [leaf.untyped_storage() for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]:
            if storage._cdata not in self.known:
                self.known.add(storage._cdata)
                self.now += storage.nbytes()
                weakref.finalize(storage, self.free, storage._cdata, storage.nbytes())
        self.most = max(self.most, self.now)
        return out

    def free(self, storage: int, size: int) -> None:
        self.known.discard(storage)
        self.now -= size


@pytest.mark.parametrize("preset", SMALL)
def test_inference_holds_at_least_what_is_said(preset: str) -> None:
    """The hungriest part's input and output are a floor: the stream around it, and what callers still name, comes on top."""
    model, counted = mixlab.create(preset).eval(), mixlab.account(preset)
    given = inputs(model, counted.length)
    with torch.no_grad(), Held(model) as held:
        model(**given)
    assert 4 * counted.live <= held.most <= 2.5 * 4 * counted.live


@pytest.mark.parametrize("preset", CAUSAL)
def test_the_state_of_a_token_is_what_the_cache_holds(preset: str) -> None:
    model = mixlab.create(preset, task="causal-lm").eval()
    cache = model(input_ids=torch.randint(0, 100, (1, 7)), use_cache=True).past_key_values
    held = sum(sequence.numel() for layer in cache.layers for sequence in layer.sequences.values())
    assert held == 7 * mixlab.account(preset, task="causal-lm").state > 0


def mixed(counted: Account) -> set[int]:
    return {part["order"] for part in counted.mixings()}


@pytest.mark.parametrize("preset", registry.presets())
def test_lines_mix_tokens_in_the_degrees_that_are_declared(preset: str) -> None:
    counted, traits = mixlab.account(preset), mixlab.config(preset).traits
    # An architecture that mixes no tokens has a degree, and no line that does.
    assert mixed(counted) == set(traits.order) or (traits.reach == 0 and not mixed(counted))
    assert all(part["field"] >= 1 for part in counted.mixings())


@pytest.mark.parametrize("preset", [preset for preset in SMALL if mixlab.config(preset).traits.maps])
def test_maps_of_a_model_have_no_more_terms_and_no_wider_field_than_is_said(preset: str) -> None:
    """The maps that a model shows: how many are independent, and how many tokens a row of them reads."""
    model = mixlab.create(preset, task="features").eval()
    length = model.config.length if model.config.modality == "image" else 40
    counted = mixlab.account(preset, task="features", length=length)
    bounds = counted.mixings()
    with torch.no_grad():
        maps = model(**inputs(model, length), output_maps=True).maps
    assert maps
    for shown in maps:
        heads = shown.flatten(0, -3).double()  # H n n, of one sample
        assert torch.linalg.matrix_rank(heads.flatten(1)) <= max(part["terms"] for part in bounds)
        assert int((heads != 0).sum(-1).max()) <= max(part["field"] for part in bounds)
