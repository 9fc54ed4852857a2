"""The default body: blocks one after the other, and a final norm."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from mixlab.layers.tokens import Tokens

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


@contextmanager
def unlearned(block: nn.Module) -> Iterator[None]:
    """Batch norms run without keeping what they see: a batch that is computed twice must count once."""
    norms = [m for m in block.modules() if isinstance(m, BATCH_NORMS)]
    before = [(norm.momentum, None if norm.num_batches_tracked is None else norm.num_batches_tracked.clone()) for norm in norms]
    for norm in norms:
        norm.momentum = 0.0
    try:
        yield
    finally:
        for norm, (momentum, count) in zip(norms, before, strict=True):
            norm.momentum = momentum
            if norm.num_batches_tracked is not None and count is not None:
                norm.num_batches_tracked.copy_(count)


class Stack(nn.Module):
    """Runs tokens through blocks (each `Tokens -> Tokens`) and `norm`; keeps every block's output as `hidden` on request."""

    def __init__(self, blocks: Iterable[nn.Module], norm: nn.Module) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.norm = norm
        self.gradient_checkpointing = False  # a trainer may switch it on and bring its own checkpoint function
        self.checkpoint_every = 1
        self._gradient_checkpointing_func: Callable[..., Any] = partial(checkpoint, use_reentrant=False)

    def forward(self, tokens: Tokens) -> Tokens:
        for layer, block in enumerate(self.blocks):
            tokens = replace(tokens, layer=layer)
            tokens.keep("hidden", lambda x=tokens.x: x)
            tokens = self.run(block, tokens)
        tokens = replace(tokens.with_x(self.norm(tokens.x)), layer=len(self.blocks))
        tokens.keep("hidden", lambda: tokens.x)
        return tokens

    def run(self, block: nn.Module, tokens: Tokens) -> Tokens:
        """One block; under checkpointing, every so many of them forget their insides and recompute them in the backward pass."""
        if not (self.gradient_checkpointing and self.training) or tokens.layer % self.checkpoint_every:
            return block(tokens)

        runs: list[None] = []

        def on_tensor(x: Tensor) -> tuple[Tensor, tuple[int, int] | None]:
            with unlearned(block) if runs else nullcontext():
                runs.append(None)
                out = block(tokens.with_x(x))
            return out.x, out.grid  # a block of a hierarchy leaves another grid behind

        x, grid = self._gradient_checkpointing_func(on_tensor, tokens.x)
        return replace(tokens, x=x, grid=grid)
