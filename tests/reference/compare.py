"""Compare a module with its reference: the output, and the gradient of every input and every parameter, in float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

Params = Mapping[str, Tensor]

# Places of real tokens in a batch of two; the first row is whole, so that rows differ.
MASKS: dict[str, Callable[[int], list[bool]] | None] = {
    "full": None,
    "right": lambda n: [i < max(1, n - 2) for i in range(n)],
    "left": lambda n: [i >= n - max(1, n - 2) for i in range(n)],
    "holes": lambda n: [i % 2 == 0 for i in range(n)],
}


def mask_of(kind: str, n: int) -> Tensor | None:
    pattern = MASKS[kind]
    return None if pattern is None else torch.tensor([[True] * n, pattern(n)])


def positions_of(mask: Tensor) -> Tensor:
    """The place of each token among the real ones of its row; padding gets any valid place."""
    return (mask.long().cumsum(1) - 1).clamp(min=0)


def randomised(module: nn.Module, seed: int = 0) -> nn.Module:
    """Float64, and every parameter random: neither a zero nor a one may hide a missing term."""
    generator = torch.Generator().manual_seed(seed)
    module.double()
    for p in module.parameters():
        p.data = torch.randn(p.shape, generator=generator, dtype=torch.float64) * 0.5
    return module


def random_input(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def assert_same(
    module: nn.Module,
    ours: Callable[..., Tensor],
    reference: Callable[..., Tensor],
    *inputs: Tensor,
    mask: Tensor | None = None,
) -> None:
    """`ours(*inputs)` for the batch against `reference(params, mask row, *input rows)` for each sample; only real tokens count."""
    params = {name: p.detach().clone().requires_grad_() for name, p in module.named_parameters()}
    mine, theirs = [[x.clone().requires_grad_() for x in inputs] for _ in range(2)]
    out = ours(*mine)
    rows = [None] * len(out) if mask is None else [row.tolist() for row in mask]
    expected = torch.stack([reference(params, rows[i], *(x[i] for x in theirs)) for i in range(len(out))])
    counts = torch.ones(out.shape[:2], dtype=torch.bool) if mask is None else mask
    torch.testing.assert_close(out[counts], expected[counts], rtol=1e-10, atol=1e-12)

    weights = random_input(*out.shape, seed=2)
    (out * weights)[counts].sum().backward()
    (expected * weights)[counts].sum().backward()
    pairs = {f"input {i}": (a, b) for i, (a, b) in enumerate(zip(mine, theirs, strict=True))}
    pairs |= {name: (p, params[name]) for name, p in module.named_parameters()}
    for name, (a, b) in pairs.items():
        assert a.grad is not None, f"no gradient reaches {name}"
        wanted = torch.zeros_like(b) if b.grad is None else b.grad  # a single token's softmax does not depend on q
        torch.testing.assert_close(a.grad, wanted, rtol=1e-9, atol=1e-11, msg=lambda text, name=name: f"gradient of {name}: {text}")
