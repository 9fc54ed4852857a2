"""Masked image modelling: static mixers against sums that are written out, and what every architecture that does it has in common."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import mixlab
from mixlab import MixlabError
from tests.conformance.cases import Case, cases_with
from tests.modeling.tiny import randomise
from tests.reference.compare import random_input
from tests.reference.masked import BLOCKS, masked

ROWS = {
    "masked gMLP and masked MLP-Mixer, patches left out, W[idx][:, idx]: outputs, loss, gradients [sums written out]": (
        "test_a_masked_static_mixer_is_the_sum_over_visible_patches"
    ),
    "masked gMLP and masked MLP-Mixer, patches covered by a token at full length [sums written out]": (
        "test_a_masked_static_mixer_is_the_sum_over_visible_patches"
    ),
    "masked image modelling of every architecture that reads images: the loss falls": "test_the_loss_falls",
    "masked image modelling of every architecture that reads images: noise may be given": (
        "test_noise_decides_what_is_hidden_and_is_drawn_where_it_is_not_given"
    ),
}

CASES = cases_with(task="masked-image-modeling")
over = pytest.mark.parametrize("case", CASES, ids=[case.preset for case in CASES])
DECODER = {
    "decoder_hidden_size": 32,
    "decoder_num_layers": 1,
    "decoder_intermediate_size": 64,
    "decoder_num_attention_heads": 2,
}


def small(arch: str, masking: str) -> Any:
    """Sizes that differ from one another, since loops are slow and equal sizes hide mistakes."""
    sizes = {"image_size": 12, "patch_size": 4, "num_channels": 2, "hidden_size": 6, "intermediate_size": 10, "num_hidden_layers": 2}
    decoder = {"decoder_hidden_size": 4, "decoder_num_layers": 1, "decoder_intermediate_size": 8}
    more = {"tokens_intermediate_size": 5} if arch == "mixer" else {}
    settings = {**sizes, **decoder, **more, "masking": masking, "mask_ratio": 0.6}
    return randomise(mixlab.create(f"{arch}-tiny-image", task="masked-image-modeling", **settings).double())


@pytest.mark.parametrize("masking", ["drop", "token"])
@pytest.mark.parametrize("arch", BLOCKS)
def test_a_masked_static_mixer_is_the_sum_over_visible_patches(arch: str, masking: str) -> None:
    """Outputs, loss, and every gradient; each image has its own visible patches."""
    model, pixels, noise = small(arch, masking), random_input(2, 2, 12, 12), random_input(2, 9, seed=3)
    output = model(pixel_values=pixels, noise=noise)
    assert torch.equal(output.mask.sum(1), torch.tensor([6, 6]))
    assert not torch.equal(output.mask[0], output.mask[1])
    p = {name: parameter.detach().clone().requires_grad_() for name, parameter in model.named_parameters()}
    losses = []
    for sample in range(2):
        logits, loss, hidden = masked(pixels[sample], noise[sample], p, arch=arch, side=4, keep=3, drop=masking == "drop")
        torch.testing.assert_close(output.logits[sample], logits, rtol=1e-9, atol=1e-10)
        assert output.mask[sample].nonzero().flatten().tolist() == hidden
        losses.append(loss)
    expected = sum(losses) / 2
    torch.testing.assert_close(output.loss, expected, rtol=1e-9, atol=1e-10)
    output.loss.backward()
    expected.backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, p[name].grad, rtol=1e-7, atol=1e-9, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("arch", BLOCKS)
def test_weights_of_dropped_places_are_not_read(arch: str) -> None:
    """With one visible patch, the encoder's weights between places are used at a single place."""
    model = small(arch, "drop")
    model.config.mask_ratio = 0.9
    noise = random_input(1, 9)
    model(pixel_values=random_input(1, 2, 12, 12), noise=noise).loss.backward()
    body, first = model.model.body.blocks[0], int(noise.argmin())
    spatial = (
        body.gate.spatial.weight.grad[0] if arch == "gmlp" else next(m for n, m in body.named_modules() if n.endswith("widen")).weight.grad
    )
    assert spatial[..., first].abs().sum() > 0
    assert spatial.abs().sum() == spatial[..., first].abs().sum()


def ways(case: Case) -> list[str]:
    return ["token", "drop"] if case.traits.drops else ["token"]


def waves(config: Any, images: int) -> torch.Tensor:
    """Each image is one plane wave, so that the patches that are seen tell about the others."""
    side = torch.arange(config.image_size) / config.patch_size
    x, y = side.expand(config.image_size, -1), side[:, None].expand(-1, config.image_size)
    directions = torch.arange(images)[:, None, None] * torch.pi / images
    wave = (2 * torch.pi * (x * directions.cos() + y * directions.sin())).sin()
    return wave[:, None].expand(-1, config.num_channels, -1, -1)


@over
def test_the_loss_falls(case: Case) -> None:
    """In a few steps, below what no more than the mean of each patch would reach, which is 1."""
    for masking in ways(case):
        torch.manual_seed(0)
        model: Any = mixlab.create(case.preset, task="masked-image-modeling", **{**case.sizes(masking=masking), **DECODER})
        pixels = waves(model.config, 4)
        noise = torch.rand(4, model.config.grid**2)
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=3e-3)
        losses = []
        for _ in range(40):
            loss = model(pixel_values=pixels, noise=noise).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert losses[0] > 0.9
        assert losses[-1] < 0.7, (masking, losses)


@over
def test_noise_decides_what_is_hidden_and_is_drawn_where_it_is_not_given(case: Case) -> None:
    for masking in ways(case):
        model = case.build("masked-image-modeling", masking=masking, **DECODER)
        pixels, n = case.inputs()["pixel_values"], model.config.grid**2
        noise = torch.rand(2, n)
        first, second = (model(pixel_values=pixels, noise=noise) for _ in range(2))
        assert torch.equal(first.logits, second.logits)
        least = noise.argsort(1)[:, : n - int(first.mask[0].sum())]
        assert not first.mask.gather(1, least).any()
        masks = []
        for seed in (1, 1, 2):
            torch.manual_seed(seed)
            masks.append(model(pixel_values=pixels).mask)
        assert torch.equal(masks[0], masks[1])
        assert not torch.equal(masks[0], masks[2])
        assert not torch.equal(masks[0][0], masks[0][1])
        with pytest.raises(MixlabError, match=rf"noise of shape \(2, {n - 1}\), expected \(2, {n}\): one number per patch"):
            model(pixel_values=pixels, noise=noise[:, 1:])
        with pytest.raises(MixlabError, match="noise must be a tensor"):
            model(pixel_values=pixels, noise=noise.tolist())


@over
def test_a_share_that_hides_nothing_is_refused(case: Case) -> None:
    """The loss would be a mean over no patch."""
    model = case.build("masked-image-modeling", masking=ways(case)[-1], mask_ratio=0.0, **DECODER)
    with pytest.raises(MixlabError, match=r"mask_ratio 0\.0 of \d+ patches hides none"):
        model(**case.inputs())
    with pytest.raises(MixlabError, match=r"mask_ratio is 1\.0; it must be at least 0 and below 1"):
        case.config(mask_ratio=1.0)
