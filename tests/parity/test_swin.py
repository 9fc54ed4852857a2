"""Swin: transformers' and timm's models and ours, with the same weights, say the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import mixlab
from mixlab import MixlabError
from mixlab.modeling.convert import import_model
from mixlab.modeling.convert_back import write_foreign
from tests.parity.images import counted_alike, moved, there_and_back

ROWS = {
    "Swin: timm's weights give timm's logits, and go back [timm SwinTransformer]": "test_timm_both_ways",
    "Swin: images that are not square, windows shifted along one axis [timm SwinTransformer]": "test_an_oblong_image",
    "Swin: transformers' weights give its logits, and go back [transformers SwinForImageClassification]": "test_transformers_both_ways",
    "Swin: transformers' backbone, and the names of its modules [transformers SwinModel]": "test_transformers_backbone",
    "Swin: a published size as timm builds it, and as its preset [timm swin_tiny_patch4_window7_224]": "test_a_whole_model_as_its_preset",
    "Swin: exact parameters and multiply-adds of T, S and B [timm]": "test_counts",
    "Swin: exact parameters of T, S and B [transformers]": "test_counts_of_transformers",
    "Swin: shifted windows and merging reach as many pixels as declared [gradients]": "test_reach",
    "Swin: other models, windows larger than the grid and unfit sizes are refused": "test_what_does_not_fit_is_refused",
}

# preset: timm's name, width of the first stage, depth of the third, first heads, parameters, G MACs.
SIZES = {
    "swin-t": ("swin_tiny_patch4_window7_224", 96, 6, 3, 28_288_354, 4.491),
    "swin-s": ("swin_small_patch4_window7_224", 96, 18, 3, 49_606_258, 8.741),
    "swin-b": ("swin_base_patch4_window7_224", 128, 18, 4, 87_768_224, 15.431),
}
THREE = {"img_size": 32, "patch_size": 2, "window_size": 4, "embed_dim": 8, "depths": (2, 3, 1), "num_heads": (2, 1, 4), "num_classes": 5}
SMALL = {
    "square": THREE,
    "one stage": {**THREE, "img_size": 16, "depths": (2,), "num_heads": (2,), "window_size": 8},
    "several windows to the end": {**THREE, "img_size": 64},
    "narrow, grey": {**THREE, "mlp_ratio": 2.0, "in_chans": 1, "window_size": 2, "img_size": 16},
}


def theirs_of(oracle: Any, **more: Any) -> Any:
    return oracle("timm.models.swin_transformer").SwinTransformer(**{**THREE, **more})


@pytest.mark.parametrize("size", SMALL)
def test_timm_both_ways(oracle: Any, size: str, tmp_path: Path) -> None:
    given = SMALL[size]
    settings = {"image_size": given["img_size"]} if size.startswith("several") else {}
    ours = there_and_back(lambda: theirs_of(oracle, **given), tmp_path, scale=0.2, settings=settings)
    config = ours.config
    assert (config.depths, config.num_heads, config.window_size) == (list(given["depths"]), list(given["num_heads"]), given["window_size"])
    assert (config.image_size, config.mlp_ratio) == (given["img_size"], given.get("mlp_ratio", 4.0))


def test_an_oblong_image(oracle: Any, tmp_path: Path) -> None:
    theirs = moved(theirs_of(oracle, img_size=(32, 64)), 0.2)
    save_file(theirs.state_dict(), tmp_path / "x.safetensors")
    ours, _ = import_model(str(tmp_path / "x.safetensors"))
    pixels = torch.randn(2, 3, 32, 64)
    with torch.no_grad():
        torch.testing.assert_close(ours(pixel_values=pixels).logits, theirs(pixels), rtol=0, atol=1e-5)


def huggingface(cls: Any = transformers.SwinForImageClassification, **more: Any) -> Any:
    sizes = {"image_size": 64, "patch_size": 2, "window_size": 4, "embed_dim": 8, "depths": (2, 3, 1), "num_heads": (2, 1, 4)}
    torch.manual_seed(0)
    return moved(cls(transformers.SwinConfig(**{**sizes, "num_labels": 5, **more})), 0.2)


def test_transformers_both_ways(tmp_path: Path) -> None:
    """From the folder that transformers writes, and into one that it reads."""
    theirs, pixels = huggingface(), torch.randn(2, 3, 64, 64)
    theirs.save_pretrained(tmp_path / "theirs")
    ours, report = import_model(str(tmp_path / "theirs" / "model.safetensors"), settings={"image_size": 64})
    assert (report.layout, report.architecture, report.task) == ("transformers", "swin", "image-classification")
    assert (report.missing, report.unused) == ([], [])
    with torch.no_grad():
        expected = theirs(pixels).logits
        assert expected.std() > 0.05
        torch.testing.assert_close(ours(pixel_values=pixels).logits, expected, rtol=0, atol=1e-5)
        write_foreign(ours, "transformers", tmp_path / "back" / "model.safetensors")
        theirs.config.save_pretrained(tmp_path / "back")
        wanted, written = (load_file(tmp_path / folder / "model.safetensors") for folder in ("theirs", "back"))
        assert {name: tensor.shape for name, tensor in wanted.items()} == {name: tensor.shape for name, tensor in written.items()}
        back = transformers.SwinForImageClassification.from_pretrained(tmp_path / "back").eval()
        torch.testing.assert_close(back(pixels).logits, expected, rtol=0, atol=0)


def test_transformers_backbone(tmp_path: Path) -> None:
    """The hidden states of every stage too; a state dict of a live model has other names than a file."""
    theirs, pixels = huggingface(transformers.SwinModel), torch.randn(2, 3, 64, 64)
    save_file(theirs.state_dict(), tmp_path / "x.safetensors")
    ours, report = import_model(str(tmp_path / "x.safetensors"), settings={"image_size": 64})
    assert (report.task, report.missing, report.unused) == ("features", [], [])
    with torch.no_grad():
        expected = theirs(pixels, output_hidden_states=True)
        found = ours(pixel_values=pixels, output_hidden_states=True)
    torch.testing.assert_close(found.last_hidden_state, expected.last_hidden_state, rtol=0, atol=1e-5)
    torch.testing.assert_close(found.hidden_states[0], expected.hidden_states[0], rtol=0, atol=1e-5)
    before_merging = expected.reshaped_hidden_states[0].flatten(2).transpose(1, 2)
    torch.testing.assert_close(found.hidden_states[0], before_merging, rtol=0, atol=1e-5)
    assert [h.shape[1:] for h in found.hidden_states] == [(1024, 8)] * 3 + [(256, 16)] * 3 + [(64, 32)]


def test_a_whole_model_as_its_preset(oracle: Any, tmp_path: Path) -> None:
    build = oracle("timm").create_model
    ours = there_and_back(lambda: build("swin_tiny_patch4_window7_224"), tmp_path, scale=0.02, preset="swin-t")
    assert (ours.config.num_labels, ours.config.drop_path) == (1000, 0.2)


@pytest.mark.parametrize("preset", SIZES)
def test_counts(oracle: Any, preset: str) -> None:
    name, *_, params, giga = SIZES[preset]
    counted_alike(preset, params, giga, lambda: oracle("timm").create_model(name))


@pytest.mark.parametrize("preset", SIZES)
def test_counts_of_transformers(preset: str) -> None:
    _, width, depth, heads, params, _ = SIZES[preset]
    sizes = {"embed_dim": width, "depths": (2, 2, depth, 2), "num_heads": [heads * 2**stage for stage in range(4)], "num_labels": 1000}
    with torch.device("meta"):
        theirs = transformers.SwinForImageClassification(transformers.SwinConfig(**sizes))
    assert sum(p.numel() for p in theirs.parameters()) == mixlab.account(preset).params == params


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ({"image_size": 32}, None),  # one window in the last stage
        ({"image_size": 64, "depths": [1, 1]}, 24),
        ({"image_size": 64, "depths": [2, 2]}, 40),
        ({"image_size": 96, "depths": [2, 3]}, 72),
        ({"image_size": 64, "depths": [2], "num_heads": [2], "hidden_size": 64}, 20),
    ],
)
def test_reach(sizes: dict[str, Any], expected: int | None) -> None:
    """The farthest rows of pixels that any final token reads, by gradients."""
    torch.manual_seed(0)
    model = moved(mixlab.create("swin-tiny", task="features", **sizes)).double()
    config = model.config
    side, patch = config.image_size, config.final_patch
    pixels = torch.randn(1, 3, side, config.image_multiple, dtype=torch.float64, requires_grad=True)
    hidden = model(pixel_values=pixels).last_hidden_state.unflatten(1, (side // patch, -1))
    farthest, everything = 0, True
    for row in range(side // patch):
        (read,) = torch.autograd.grad((hidden[0, row] * torch.randn_like(hidden[0, row])).sum(), pixels, retain_graph=True)
        rows = (read[0].abs().amax((0, 2)) > 0).nonzero().flatten()
        farthest = max(farthest, row * patch - int(rows.min()), int(rows.max()) + 1 - (row + 1) * patch)
        everything &= len(rows) == side
    assert everything == (expected is None)
    assert config.traits.reach == expected == (None if everything else farthest)


def test_what_does_not_fit_is_refused(oracle: Any, tmp_path: Path) -> None:
    bad: list[tuple[dict[str, Any], str]] = [
        ({"window_size": 5}, "window_size 5 is larger than the last stage's grid of 4 x 4; use 4"),
        ({"image_size": 2}, "window_size 4 is larger than the last stage's grid of 0 x 0"),
        ({"image_size": 48}, "image_size 48 is not a multiple of 32"),
        ({"window_size": 3}, "image_size 32 is not a multiple of 24"),
        ({"window_size": 0}, "window_size is at least 1"),
        ({"mlp_ratio": 0}, "mlp_ratio between 0 and 64"),
        ({"num_heads": [3, 4]}, "64 channels of stage 0 cannot be split into num_heads=3"),
        ({"num_heads": [2]}, r"depths \[2, 1\] and num_heads \[2\]: give one number for each"),
        ({"depths": [2, 0]}, r"depths \[2, 0\]"),
        ({"depths": []}, r"depths \[\]"),
        ({"hidden_size": 129}, "hidden_size 129 cannot be halved 1 times"),
        ({"num_hidden_layers": 7}, r"num_hidden_layers is 7, but depths \[2, 1\] makes it 3"),
        ({"pooling": "cls"}, "has no pooling 'cls'"),
        ({"masking": "drop"}, "cannot leave patches out"),
        ({"attention_dropout": 1.0}, "attention_dropout is 1.0"),
    ]
    for settings, reason in bad:
        with pytest.raises(MixlabError, match=reason):
            mixlab.config("swin-tiny", **settings)
    model = mixlab.create("swin-tiny").eval()
    with pytest.raises(MixlabError, match="an image of 32 x 48; its sides must be multiples of 32: crop or pad it"):
        model(pixel_values=torch.zeros(1, 3, 32, 48))
    with pytest.raises(MixlabError, match="must be multiples of 32"):
        model.resize_length(9 * 9)
    model.resize_length(16 * 16)
    assert model(pixel_values=torch.randn(1, 3, 64, 64)).logits.shape == (1, 10)
    others = {
        "windows": (theirs_of(oracle, window_size=((4, 4), (4, 4), (2, 2))), "windows of several sizes"),
        "no-bias": (theirs_of(oracle, qkv_bias=False), r"lacks .*qkv\.bias"),
        "positions": (huggingface(use_absolute_embeddings=True), r"position_embeddings have no place in a swin"),
    }
    for name, (theirs, reason) in others.items():
        save_file(theirs.state_dict(), tmp_path / f"{name}.safetensors")
        with pytest.raises(MixlabError, match=reason):
            import_model(str(tmp_path / f"{name}.safetensors"))
