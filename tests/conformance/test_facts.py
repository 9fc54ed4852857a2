"""What an architecture says of its mathematics, measured: degree, equivariance, reach."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mixlab.layers import Tokens
from tests.conformance.cases import Case, cases
from tests.conformance.normalisers import drop_biases, without_normalisers

ALL = cases()
over_all = pytest.mark.parametrize("case", ALL, ids=[case.name for case in ALL])


def mixers(module: nn.Module) -> list[nn.Module]:
    """The modules that declare the degree of their mixing, the outermost ones."""
    if hasattr(module, "order"):
        return [module]
    return [found for child in module.children() for found in mixers(child)]


def degrees(mixer: Any) -> tuple[int, ...]:
    return mixer.order if isinstance(mixer.order, tuple) else (mixer.order,)


def scaled(value: Any, factor: float) -> Any:
    """Every input of a mixer, times a number."""
    if isinstance(value, Tensor):
        return value * factor if value.is_floating_point() else value
    if isinstance(value, Tokens):
        return dataclasses.replace(value, x=value.x * factor, record=None)
    return value


def size(output: Any) -> float:
    return float((output.x if isinstance(output, Tokens) else output).norm())


def slope(mixer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> float:
    """The degree of growth for large inputs."""
    large = 2.0**24
    sizes = [size(mixer(*(scaled(a, t) for a in args), **{k: scaled(v, t) for k, v in kwargs.items()})) for t in (large, 2 * large)]
    return math.log2(sizes[1] / sizes[0])


@over_all
def test_the_degree_of_mixing_is_as_declared(case: Case) -> None:
    seen: dict[nn.Module, tuple[tuple[Any, ...], dict[str, Any]]] = {}
    with without_normalisers(), torch.no_grad():
        model = case.features().double()
        drop_biases(model)
        found = mixers(model.body)
        assert sorted({degree for mixer in found for degree in degrees(mixer)}) == sorted(case.traits.order)

        def remember(mixer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            seen.setdefault(mixer, (args, kwargs))

        for mixer in found:
            mixer.register_forward_pre_hook(remember, with_kwargs=True)
        model(**{name: x.double() if x.is_floating_point() else x for name, x in case.inputs().items()})
        assert set(found) == set(seen)
        for mixer, (args, kwargs) in seen.items():
            assert slope(mixer, args, kwargs) == pytest.approx(max(degrees(mixer)), abs=1e-3), type(mixer).__name__


def body_of(case: Case) -> tuple[Any, tuple[int, int] | None, int]:
    """A body in float64, the grid of its tokens, and how many there are."""
    model = case.features().double()
    config = model.config
    grid = (config.grid, config.grid) if config.modality == "image" else None
    n = config.length if grid else 13
    return model, grid, n


@over_all
@torch.no_grad()
def test_the_order_of_tokens_matters_as_declared(case: Case) -> None:
    model, grid, n = body_of(case)
    prefix = model.config.prefix_tokens
    x = torch.randn(1, n, model.config.stem_size, dtype=torch.float64)
    if case.hierarchical:  # tokens go in and others come out; no hierarchy is blind to their order
        assert case.traits.equivariance != "permutation"
        return
    order = torch.cat([torch.arange(prefix), torch.randperm(n - prefix) + prefix])
    moved, straight = model.body(Tokens(x[:, order], grid=grid)).x, model.body(Tokens(x, grid=grid)).x[:, order]
    assert torch.allclose(moved, straight, rtol=0, atol=1e-9) == (case.traits.equivariance == "permutation")


@over_all
@torch.no_grad()
def test_moving_all_tokens_by_one_moves_what_comes_out_as_declared(case: Case) -> None:
    """Away from the borders, which padding tells apart."""
    traits = case.traits
    if traits.equivariance == "shift":
        assert traits.reach is not None  # a token that reads everything sees the borders
    if traits.equivariance != "shift" or case.hierarchical:
        return
    assert traits.reach is not None
    model, grid, _ = body_of(case)
    side = 2 * traits.reach + 4
    shape = (side, 3) if grid else (side, 1)
    x = torch.randn(1, *shape, model.config.stem_size, dtype=torch.float64)

    def run(x: Tensor) -> Tensor:
        rows, columns = x.shape[1:3]
        return model.body(Tokens(x.flatten(1, 2), grid=(rows, columns) if grid else None)).x.unflatten(1, (rows, columns))

    whole, later = run(x)[:, 1:], run(x[:, 1:])
    inside = slice(traits.reach, side - 1 - traits.reach)
    torch.testing.assert_close(whole[:, inside], later[:, inside], rtol=0, atol=1e-9)


@over_all
def test_a_token_reads_as_far_as_declared(case: Case) -> None:
    """Where gradients reach: an image by rows, in pixels where tokens are merged."""
    traits, (model, grid, n) = case.traits, body_of(case)
    config = model.config
    if case.hierarchical:
        reads_pixels_as_far_as_declared(model, traits.reach)
        return
    x = torch.randn(1, n, config.stem_size, dtype=torch.float64, requires_grad=True)
    hidden = model.body(Tokens(x, grid=grid)).x
    weights = torch.randn_like(hidden)
    last = n - 1
    read = torch.autograd.grad((hidden * weights)[0, last].sum(), x)[0][0].abs().amax(-1)  # how the last token reads each
    distance = torch.arange(n).flip(0) if grid is None else (grid[0] - 1 - (torch.arange(n) - config.prefix_tokens) // grid[1])
    if traits.reach is None:
        assert bool((read[config.prefix_tokens] > 0).all())
        return
    assert bool((read[distance > traits.reach] == 0).all())
    if int(distance.max()) >= traits.reach:
        assert bool((read[distance == traits.reach] > 0).any())


def reads_pixels_as_far_as_declared(model: Any, reach: int | None) -> None:
    config = model.config
    side, patch = config.image_size, config.final_patch
    pixels = torch.randn(1, config.num_channels, side, side, dtype=torch.float64, requires_grad=True)
    hidden = model(pixel_values=pixels).last_hidden_state
    weights = torch.randn_like(hidden)
    read = torch.autograd.grad((hidden * weights)[0, -1].sum(), pixels)[0][0].abs().amax((0, 2))  # by row of the image
    beyond = torch.arange(side).flip(0) - patch + 1  # rows between the token's own pixels and each
    if reach is None:
        assert bool((read[0] > 0).all())
        return
    assert bool((read[beyond > reach] == 0).all())
    if int(beyond.max()) >= reach:
        assert bool((read[beyond == reach] > 0).any())
