"""ConvMixer: timm's model and ours, with the same weights, say the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import mixlab
from mixlab import MixlabError
from mixlab.modeling.account import difference
from mixlab.modeling.architecture import find_preset
from mixlab.modeling.convert import import_model
from tests.parity.images import counted_alike, moved, there_and_back

ROWS = {
    "ConvMixer: timm's weights give timm's logits, and go back [timm ConvMixer]": "test_logits_both_ways",
    "ConvMixer: images of any size, square or not [timm ConvMixer]": "test_images_of_any_size",
    "ConvMixer: batch statistics are used and learned alike [timm ConvMixer]": "test_batch_norms_learn_alike",
    "ConvMixer: a published size as timm builds it, and as its preset [timm convmixer_768_32]": "test_a_whole_model_as_its_preset",
    "ConvMixer: exact parameters and multiply-adds of all three sizes, as published [timm]": "test_counts",
    "ConvMixer: the token map of every channel is its convolution [einsum]": "test_maps_are_the_convolution",
    "ConvMixer: even kernels, unfit images and other layouts are refused": "test_what_is_refused",
}

# preset: timm's name, parameters, G MACs, and what the authors' code says.
SIZES = {
    "convmixer-1536-20": ("convmixer_1536_20", 51_625_960, 51.10, "51.6M"),
    "convmixer-768-32": ("convmixer_768_32", 21_110_248, 20.68, "21.1M"),
    "convmixer-1024-20": ("convmixer_1024_20_ks9_p14", 24_383_464, 5.95, "24.4M"),
}


def small(oracle: Any, **more: Any) -> Any:
    settings = {"dim": 12, "depth": 3, "kernel_size": 5, "patch_size": 8, "num_classes": 7}
    return oracle("timm.models.convmixer").ConvMixer(**{**settings, **more})


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        ({}, {}),
        ({"act_layer": torch.nn.ReLU}, {"hidden_act": "relu"}),
        ({"kernel_size": 1, "patch_size": 16, "in_chans": 1, "num_classes": 1}, {"image_size": 64}),
        ({"kernel_size": 9, "patch_size": 32}, {"image_size": 64}),
    ],
    ids=["plain", "relu", "grey-pointwise", "kernel-beyond-the-image"],
)
def test_logits_both_ways(oracle: Any, options: dict[str, Any], settings: dict[str, Any], tmp_path: Path) -> None:
    ours = there_and_back(lambda: small(oracle, **options), tmp_path, scale=0.3, settings=settings)
    assert ours.config.image_size == settings.get("image_size", 224)
    assert ours.config.kernel_size == options.get("kernel_size", 5)


def pair(oracle: Any, folder: Path) -> tuple[Any, Any]:
    torch.manual_seed(0)
    theirs = moved(small(oracle), scale=0.3)
    save_file(theirs.state_dict(), folder / "m.safetensors")
    return import_model(str(folder / "m.safetensors"))[0], theirs


@torch.no_grad()
@pytest.mark.parametrize("size", [(8, 8), (64, 64), (24, 80)])
def test_images_of_any_size(oracle: Any, size: tuple[int, int], tmp_path: Path) -> None:
    ours, theirs = pair(oracle, tmp_path)
    pixels = torch.randn(2, 3, *size)
    torch.testing.assert_close(ours(pixel_values=pixels).logits, theirs(pixels), rtol=0, atol=1e-5)


def test_batch_norms_learn_alike(oracle: Any, tmp_path: Path) -> None:
    """In training: the same logits, the same gradients, the same statistics afterwards; and saving keeps them."""
    ours, theirs = (model.train() for model in pair(oracle, tmp_path))
    pixels = torch.randn(4, 3, 32, 32)
    found, expected = ours(pixel_values=pixels).logits, theirs(pixels)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    for logits in (found, expected):
        logits.square().mean().backward()
    block, their_block = ours.model.body.blocks[1], theirs.blocks[1]
    torch.testing.assert_close(block.depthwise.weight.grad, their_block[0].fn[0].weight.grad, rtol=1e-4, atol=1e-5)
    for norm, their_norm in ((block.depthwise_norm, their_block[0].fn[2]), (ours.model.stem.norm, theirs.stem[2])):
        assert int(norm.num_batches_tracked) == 1
        torch.testing.assert_close(norm.running_mean, their_norm.running_mean)
        torch.testing.assert_close(norm.running_var, their_norm.running_var)
    ours.save_pretrained(tmp_path / "saved")
    again = type(ours).from_pretrained(tmp_path / "saved")
    assert all(torch.equal(tensor, again.state_dict()[name]) for name, tensor in ours.state_dict().items())


@pytest.mark.slow
def test_a_whole_model_as_its_preset(oracle: Any, tmp_path: Path) -> None:
    build = lambda: oracle("timm").create_model("convmixer_768_32")  # noqa: E731
    ours = there_and_back(build, tmp_path, scale=0.01, preset="convmixer-768-32")
    assert ours.config.hidden_act == "relu"


@pytest.mark.parametrize("preset", SIZES)
def test_counts(oracle: Any, preset: str) -> None:
    theirs, params, giga, published = SIZES[preset]
    counted_alike(preset, params, giga, lambda: oracle("timm").create_model(theirs), within=6e-3)
    assert find_preset(preset)[1].published == published
    assert difference(params, published) == "none"


@torch.no_grad()
def test_maps_are_the_convolution() -> None:
    torch.manual_seed(0)
    model = mixlab.create("convmixer-tiny", task="features", num_hidden_layers=2, kernel_size=7).double().eval()
    seen: dict[str, torch.Tensor] = {}

    def remember(_: Any, args: Any, out: torch.Tensor) -> None:
        seen.update(read=args[0].x, written=out.flatten(2).mT)

    depthwise = model.body.blocks[1].depthwise
    depthwise.register_forward_hook(remember)
    maps = model(pixel_values=torch.randn(2, 3, 20, 32, dtype=torch.float64), output_maps=True).maps
    assert maps[1].shape == (128, 40, 40)
    expected = torch.einsum("dij,bjd->bid", maps[1], seen["read"]) + depthwise.bias
    torch.testing.assert_close(seen["written"], expected, rtol=0, atol=1e-12)


def test_what_is_refused(oracle: Any, tmp_path: Path) -> None:
    bad: list[tuple[dict[str, Any], str]] = [
        ({"kernel_size": 4}, "kernel_size 4 has no middle; use an odd number"),
        ({"kernel_size": 0}, "kernel_size 0 has no middle"),
        ({"kernel_size": -3}, "kernel_size -3 has no middle"),
        ({"image_size": 30}, "image_size 30 is not a multiple of patch_size 4"),
        ({"masking": "drop"}, "cannot leave patches out; set masking='token'"),
        ({"pooling": "cls"}, "has no pooling 'cls'"),
        ({"modality": "text", "max_position_embeddings": 9}, "reads image, not text"),
    ]
    for settings, reason in bad:
        with pytest.raises(MixlabError, match=reason):
            mixlab.config("convmixer-tiny", **settings)
    with pytest.raises(MixlabError, match="an image of 32 x 30; its sides must be multiples of 4"):
        mixlab.create("convmixer-tiny")(pixel_values=torch.zeros(1, 3, 32, 30))
    for name, theirs, reason in (
        ("even", small(oracle, kernel_size=4), "kernel_size 4 has no middle"),
        ("no-head", small(oracle, num_classes=0), r"head\.bias"),
    ):
        save_file(theirs.state_dict(), tmp_path / f"{name}.safetensors")
        with pytest.raises(MixlabError, match=reason):
            import_model(str(tmp_path / f"{name}.safetensors"))
    save_file(small(oracle).state_dict(), tmp_path / "small.safetensors")
    with pytest.raises(MixlabError, match="num_hidden_layers=3, and convmixer-768-32 has 32"):
        import_model(str(tmp_path / "small.safetensors"), preset="convmixer-768-32")
