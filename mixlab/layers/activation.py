"""Activations by the names that transformers gives them."""

from __future__ import annotations

from functools import partial
from typing import Literal

import torch.nn.functional as F

Activation = Literal["gelu", "gelu_pytorch_tanh"]
ACTIVATIONS = {"gelu": F.gelu, "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh")}
