"""Activations by the names that transformers gives them."""

from __future__ import annotations

from functools import partial
from typing import Literal

import torch.nn.functional as F
from torch import Tensor

Activation = Literal["gelu", "gelu_pytorch_tanh", "relu", "silu", "sigmoid", "linear"]


def linear(x: Tensor) -> Tensor:
    """None at all; a function with a name, since modules that hold it are pickled."""
    return x


ACTIVATIONS = {
    "gelu": F.gelu,
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
    "sigmoid": F.sigmoid,
    "linear": linear,
}
