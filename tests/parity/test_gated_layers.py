"""GLU, highway and squeeze-and-excitation: with the same weights as timm's and torch's own, they say the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mixlab.layers import GLU, Highway, SqueezeExcite
from mixlab.layers.patches import as_image, as_tokens
from tests.modeling.tiny import randomise

ROWS = {
    "GLU: gated linear unit [torch F.glu]": "test_glu_is_torchs",
    "GLU in a feed-forward network, every gate [timm GluMlp]": "test_glu_is_timms",
    "SwiGLU with two projections [timm SwiGLU]": "test_swiglu_is_timms",
    "Squeeze-and-excitation [timm SEModule]": "test_squeeze_excite_is_timms",
    "Highway layer [einsum]": "test_highway_is_its_equation",
}


def test_glu_is_torchs() -> None:
    layer, x = randomise(GLU(8, 6)), torch.randn(2, 5, 8)
    torch.testing.assert_close(layer(x), F.glu(layer.project(x), dim=-1), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("gate", "activation"), [("sigmoid", nn.Sigmoid), ("relu", nn.ReLU), ("gelu", nn.GELU), ("silu", nn.SiLU), ("linear", nn.Identity)]
)
def test_glu_is_timms(oracle: Any, gate: Any, activation: type[nn.Module]) -> None:
    theirs = randomise(oracle("timm.layers").GluMlp(8, hidden_features=12, act_layer=activation, gate_last=True))
    ours = nn.Sequential(GLU(8, 6, gate=gate), nn.Linear(6, 8))
    names = {"0.project": "fc1", "1": "fc2"}
    ours.load_state_dict({f"{a}.{kind}": theirs.get_parameter(f"{b}.{kind}") for a, b in names.items() for kind in ("weight", "bias")})
    x = torch.randn(2, 5, 8)
    torch.testing.assert_close(ours(x), theirs(x), rtol=0, atol=1e-5)


def test_swiglu_is_timms(oracle: Any) -> None:
    theirs = randomise(oracle("timm.layers").SwiGLU(8, hidden_features=6))
    ours = GLU(8, 6, gate="silu")
    with torch.no_grad():
        ours.project.weight.copy_(torch.cat([theirs.fc1_x.weight, theirs.fc1_g.weight]))
        ours.project.bias.copy_(torch.cat([theirs.fc1_x.bias, theirs.fc1_g.bias]))
    x = torch.randn(2, 5, 8)
    torch.testing.assert_close(theirs.fc2(ours(x)), theirs(x), rtol=0, atol=1e-5)


@pytest.mark.parametrize("grid", [(3, 4), (1, 1)])
def test_squeeze_excite_is_timms(oracle: Any, grid: tuple[int, int]) -> None:
    theirs = randomise(oracle("timm.layers").SEModule(32, rd_channels=4))
    ours = SqueezeExcite(32, reduction=8)
    names = {"squeeze": "fc1", "excite": "fc2"}
    with torch.no_grad():
        for a, b in names.items():
            ours.get_submodule(a).weight.copy_(theirs.get_parameter(f"{b}.weight")[:, :, 0, 0])  # a 1 x 1 convolution there
            ours.get_submodule(a).bias.copy_(theirs.get_parameter(f"{b}.bias"))
    x = torch.randn(2, grid[0] * grid[1], 32)
    torch.testing.assert_close(ours(x), as_tokens(theirs(as_image(x, grid))), rtol=0, atol=1e-5)


def test_highway_is_its_equation() -> None:
    layer, x = randomise(Highway(8)), torch.randn(2, 5, 8)
    H = (torch.einsum("bnd,ed->bne", x, layer.transform.weight) + layer.transform.bias).clamp(min=0)
    T = torch.special.expit(torch.einsum("bnd,ed->bne", x, layer.gate.weight) + layer.gate.bias)
    torch.testing.assert_close(layer(x), x + T * (H - x), rtol=0, atol=1e-5)
