"""U-Net: loops over places and ours, with the same weights, say the same; counts in closed form."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import mixlab
from mixlab import MixlabError
from tests.reference import unet as reference

ROWS = {
    "U-Net: restored images and their gradients [loops over places]": "test_restored_images_are_those_of_the_loops",
    "U-Net: 31,030,658 parameters [closed form]": "test_counts_are_exact",
    "U-Net: predicts the residual, and begins as the identity": "test_it_predicts_the_residual",
    "U-Net: skips reach the other side past the coarse levels": "test_skips_carry_what_pools_lose",
    "U-Net: how far a pixel reads [gradients]": "test_a_pixel_reads_as_far_as_declared",
    "U-Net: sizes that do not divide are refused": "test_what_cannot_be_is_refused",
}


def build(task: str = "image-restoration", **settings: Any) -> Any:
    """In float64, every parameter away from its start."""
    torch.manual_seed(0)
    model = mixlab.create("unet-tiny", task=task, **{"hidden_size": 4, **settings}).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


@pytest.mark.parametrize(("pools", "height", "width"), [(1, 4, 2), (2, 8, 12), (3, 8, 8)])
def test_restored_images_are_those_of_the_loops(pools: int, height: int, width: int) -> None:
    model = build(num_pools=pools, image_size=8)
    pixels = torch.randn(1, 3, height, width, dtype=torch.float64)
    params = {name: p.detach().clone().requires_grad_() for name, p in model.named_parameters()}
    ours, theirs = model(pixel_values=pixels).reconstruction[0], reference.restored(params, pixels[0], pools)
    assert (theirs - pixels[0]).std() > 0.03
    torch.testing.assert_close(ours, theirs, atol=1e-10, rtol=0)
    weights = torch.randn_like(ours)
    (ours * weights).sum().backward()
    (theirs * weights).sum().backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, params[name].grad, atol=1e-9, rtol=1e-9, msg=name)


def test_counts_are_exact() -> None:
    """The paper's model has one channel in and two maps out, as many numbers as a classifier of two labels on the last channels."""
    assert reference.count(64, 4, 1, 2) == 31_030_658
    assert mixlab.account("unet", task="image-classification", num_labels=2).params == 31_030_658
    restoring = mixlab.account("unet")
    assert restoring.params == 31_030_658 - 65 == reference.count(64, 4, 1, 1)
    assert mixlab.account("unet-tiny").params == reference.count(8, 2, 3, 3)
    with torch.device("meta"):
        model = mixlab.create("unet").eval()
        pixels = torch.empty(1, 1, 512, 512)
    assert sum(p.numel() for p in model.parameters()) == restoring.params
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(pixel_values=pixels)
    assert counter.get_total_flops() == restoring.flops
    side = 256
    assert 4 * mixlab.account("unet", image_size=side).macs == restoring.macs  # linear in the pixels
    assert mixlab.account("unet", image_size=side).params == restoring.params  # which cost no weights


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        ([1], "labels must be a tensor"),
        (torch.zeros(1, 3, 16, 8), "of shape"),
        (torch.zeros(1, 3, 16, 16, dtype=torch.uint8), "expected floats"),
    ],
)
def test_what_is_no_clean_image_is_refused(labels: Any, said: str) -> None:
    with pytest.raises(MixlabError, match=said):
        mixlab.create("unet-tiny")(pixel_values=torch.zeros(1, 3, 16, 16), labels=labels)


def test_it_predicts_the_residual() -> None:
    pixels = torch.randn(2, 3, 16, 16)
    fresh: Any = mixlab.create("unet-tiny").eval()
    assert torch.equal(fresh(pixel_values=pixels).reconstruction, pixels)
    with torch.no_grad():
        fresh.residual.bias.fill_(0.25)
    torch.testing.assert_close(fresh(pixel_values=pixels).reconstruction, pixels + 0.25)


def test_it_learns_to_remove_noise() -> None:
    """Of smooth images with noise, a few steps take most of it away."""
    torch.manual_seed(0)
    model: Any = mixlab.create("unet-tiny").train()
    clean = torch.nn.functional.interpolate(torch.randn(16, 3, 4, 4), size=(16, 16), mode="bilinear")
    noisy = clean + 0.5 * torch.randn_like(clean)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(80):
        loss = model(pixel_values=noisy, labels=clean).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * (noisy - clean).square().mean()


def test_skips_carry_what_pools_lose() -> None:
    """With the coarse side silenced, what comes out still follows the image; with the skip silenced too, nothing does."""
    model = build(task="features", num_pools=1)
    one, other = torch.randn(2, 1, 3, 4, 4, dtype=torch.float64)
    with torch.no_grad():
        for parameter in model.body.ups.parameters():
            parameter.zero_()
        assert (model(pixel_values=one).last_hidden_state - model(pixel_values=other).last_hidden_state).std() > 0.1
        model.body.blocks[2].convolutions[0].weight[:, :4].zero_()  # the channels of the skip stand first
        assert torch.equal(model(pixel_values=one).last_hidden_state, model(pixel_values=other).last_hidden_state)


def test_hidden_states_are_the_levels() -> None:
    model = build(task="features", image_size=16)
    hidden = model(pixel_values=torch.randn(1, 3, 16, 16, dtype=torch.float64), output_hidden_states=True).hidden_states
    assert [tuple(h.shape[1:]) for h in hidden] == [(256, 4), (256, 4), (64, 8), (16, 16), (64, 8), (256, 4)]


@pytest.mark.parametrize("pools", [1, 2])
def test_a_pixel_reads_as_far_as_declared(pools: int) -> None:
    """Up and down, for every place that a pixel can have within the coarsest one."""
    model = build(task="features", num_pools=pools, image_size=64)
    reach, first = model.config.traits.reach, 32
    pixels = torch.randn(1, 3, 64, 1 << pools, dtype=torch.float64, requires_grad=True)
    rows = model(pixel_values=pixels).last_hidden_state.unflatten(1, (64, -1))[0]
    far = []
    for row in range(first, first + (1 << pools)):
        weights = torch.randn_like(rows[row])
        read = torch.autograd.grad((rows[row] * weights).sum(), pixels, retain_graph=True)[0].abs().amax((0, 1, 3)).nonzero()
        far += [row - int(read.min()), int(read.max()) - row]
    assert max(far) == reach


@pytest.mark.parametrize("pools", [1, 4])
def test_signals_keep_their_size_at_the_start(pools: int) -> None:
    """Deviation sqrt(2 / inputs), as in the paper: no level fades or explodes."""
    torch.manual_seed(0)
    model = mixlab.create("unet-tiny", task="features", num_pools=pools, hidden_size=32, image_size=32).eval()
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Conv2d | torch.nn.ConvTranspose2d):
            inputs = module.in_channels * (9 if isinstance(module, torch.nn.Conv2d) else 1)
            assert module.weight.std().item() == pytest.approx((2 / inputs) ** 0.5, rel=0.1), name
            assert module.bias is not None
            assert not module.bias.any()
    hidden = model(pixel_values=torch.randn(2, 3, 32, 32), output_hidden_states=True).hidden_states
    assert all(0.2 < h.std() < 5 for h in hidden)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"image_size": 18}, "image_size 18 is not a multiple of 4"),
        ({"num_pools": 0}, "num_pools is 0; it must be at least 1"),
        ({"num_hidden_layers": 4}, "num_hidden_layers is 4, but num_pools=2 makes it 5"),
        ({"patch_size": 2}, "a mixlab-unet has"),
        ({"final_norm": True}, "a mixlab-unet has"),
        ({"pooling": "cls"}, "no pooling 'cls'; choose among mean"),
        ({"modality": "text", "max_position_embeddings": 8}, "reads image, not text"),
        ({"masking": "drop"}, "cannot leave patches out"),
    ],
)
def test_what_cannot_be_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(MixlabError, match=message):
        mixlab.config("unet-tiny", **settings)


def test_images_that_do_not_divide_are_refused() -> None:
    model = mixlab.create("unet-tiny").eval()
    with pytest.raises(MixlabError, match="its sides must be multiples of 4: crop or pad it"):
        model(pixel_values=torch.zeros(1, 3, 16, 18))
    assert model(pixel_values=torch.zeros(1, 3, 20, 8)).reconstruction.shape == (1, 3, 20, 8)
    with pytest.raises(MixlabError, match="multiples of 4 pixels"):
        model.resize_length(18 * 18)
    with pytest.raises(MixlabError, match="cannot do 'masked-image-modeling'"):
        mixlab.create("unet-tiny", task="masked-image-modeling")
