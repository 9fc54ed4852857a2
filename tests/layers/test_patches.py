"""Images as patches or tokens, and back."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from mixlab.layers.patches import as_image, as_tokens, from_patches, to_patches


def test_there_and_back() -> None:
    image = torch.randn(2, 3, 8, 12)
    assert torch.equal(from_patches(to_patches(image, 4), 4, (2, 3)), image)
    tokens = as_tokens(image)
    assert torch.equal(tokens[1, 12 * 5 + 7], image[1, :, 5, 7])
    assert torch.equal(as_image(tokens, (8, 12)), image)


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("training", [True, False])
def test_gradients_through_a_batch_norm_are_right(batch: int, training: bool) -> None:
    """The layout of the tokens' gradient must not confuse torch's kernel, which it does for one image in some layouts."""
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(16).double().train(training)
    image = torch.randn(batch, 16, 6, 6, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(batch, 36, 16, dtype=torch.float64)

    def loss(image: torch.Tensor) -> torch.Tensor:
        between = as_image(as_tokens(norm(image)).sin(), (6, 6))
        return (as_tokens(norm(between)) * weights).sum()

    (found,) = torch.autograd.grad(loss(image), image)
    direction, step = torch.randn_like(image), 1e-6
    with torch.no_grad():
        slope = (loss(image + step * direction) - loss(image - step * direction)) / (2 * step)
    torch.testing.assert_close((found * direction).sum(), slope, rtol=1e-6, atol=1e-6)
