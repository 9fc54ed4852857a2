"""A model without its normalisers: norms, softmax and activations pass on what they get, and biases are zero.

What is left of a token mixer is then a polynomial of its input, whose degree can be measured.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from mixlab.layers.activation import ACTIVATIONS

FUNCTIONAL = (
    "layer_norm",
    "batch_norm",
    "group_norm",
    "rms_norm",
    "gelu",
    "relu",
    "relu6",
    "silu",
    "sigmoid",
    "tanh",
    "softmax",
    "hardswish",
)


def same(x: Tensor, *_: Any, **__: Any) -> Tensor:
    return x


def attention(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False, **_: Any) -> Tensor:
    """Without the softmax: the logits themselves are the weights."""
    weights = q @ k.mT / q.shape[-1] ** 0.5
    if attn_mask is not None and attn_mask.dtype != torch.bool:
        weights = weights + attn_mask.masked_fill(torch.isinf(attn_mask), 0.0)
    return (weights.tril() if is_causal else weights) @ v


@contextlib.contextmanager
def without_normalisers() -> Iterator[None]:
    """For building a model and for running it."""
    with contextlib.ExitStack() as stack:
        for name in FUNCTIONAL:
            stack.enter_context(patch(f"torch.nn.functional.{name}", same))
        for name in ("softmax", "sigmoid", "relu", "tanh"):
            stack.enter_context(patch.object(Tensor, name, same))
            stack.enter_context(patch(f"torch.{name}", same))
        stack.enter_context(patch("torch.nn.functional.glu", lambda x, dim=-1: torch.mul(*x.chunk(2, dim=dim))))
        stack.enter_context(patch("torch.nn.functional.scaled_dot_product_attention", attention))
        stack.enter_context(patch.dict(ACTIVATIONS, dict.fromkeys(ACTIVATIONS, same)))
        yield


def drop_biases(model: nn.Module) -> None:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.zero_()
