"""MobileNet v1: timm's and transformers' models and ours, with the same weights, say the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import nn

import mixlab
from mixlab import MixlabError
from mixlab.modeling.convert import import_model
from mixlab.modeling.convert_back import write_foreign

ROWS = {
    "MobileNet v1: logits, weights in and back [timm mobilenetv1_100, mobilenetv1_125]": "test_logits_are_those_of_timm",
    "MobileNet v1: logits, weights in and back [transformers MobileNetV1]": "test_logits_are_those_of_transformers",
    "MobileNet v1: 4,231,976 parameters, 569M multiply-adds [timm, transformers]": "test_counts_are_exact",
    "MobileNet v1: how far a final token reads [gradients]": "test_a_final_token_reads_as_far_as_declared",
    "MobileNet v1: sizes that do not divide are refused": "test_what_cannot_be_is_refused",
}


def scrambled(model: nn.Module) -> nn.Module:
    """Every parameter and every statistic away from its start, and signals of about 1 through all layers."""
    torch.manual_seed(0)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight)
            elif isinstance(module, nn.BatchNorm2d):
                module.weight.uniform_(0.5, 1.5)
                module.bias.normal_(std=0.3)
                module.running_mean.normal_(std=0.3)  # pyright: ignore[reportOptionalMemberAccess]
                module.running_var.uniform_(0.5, 2.0)  # pyright: ignore[reportOptionalMemberAccess]
                module.num_batches_tracked.fill_(7)  # pyright: ignore[reportOptionalMemberAccess]
    return model.eval()


def check_both_ways(theirs: nn.Module, layout: str, folder: Path, **options: Any) -> Any:
    """Imported weights say the same, and written back they are the same file."""
    state = scrambled(theirs).state_dict()
    save_file(state, folder / "theirs.safetensors")
    ours, report = import_model(str(folder / "theirs.safetensors"), **options)
    assert (report.architecture, report.layout, report.task) == ("mobilenet", layout, "image-classification")
    assert (report.loaded, report.missing, report.unused) == (len(state), [], [])
    for height, width in ((64, 64), (96, 32)):
        pixels = torch.randn(2, 3, height, width)
        with torch.no_grad():
            expected = theirs(pixels)
            expected = getattr(expected, "logits", expected)
            assert expected.std() > 0.1
            torch.testing.assert_close(ours(pixel_values=pixels).logits, expected, atol=1e-5, rtol=1e-5)
    write_foreign(ours, layout, folder / "back.safetensors")
    back = load_file(folder / "back.safetensors")
    assert set(back) == set(state)
    assert all(torch.equal(back[name], state[name]) for name in state)
    return ours


@pytest.mark.parametrize(("name", "classes"), [("mobilenetv1_100", 1000), ("mobilenetv1_125", 7)])
def test_logits_are_those_of_timm(oracle: Any, name: str, classes: int, tmp_path: Path) -> None:
    theirs = oracle("timm").create_model(name, num_classes=classes)
    ours = check_both_ways(theirs, "timm", tmp_path)
    assert ours.config.depths == [1, 2, 2, 6, 2]
    assert (ours.config.layer_norm_eps, ours.config.num_labels) == (1e-5, classes)


@pytest.mark.parametrize("share", [1.0, 0.25])
def test_logits_are_those_of_transformers(share: float, tmp_path: Path) -> None:
    theirs = transformers.MobileNetV1ForImageClassification(
        transformers.MobileNetV1Config.from_dict({"depth_multiplier": share, "num_labels": 1000})
    )
    ours = check_both_ways(theirs, "transformers", tmp_path, preset="mobilenet-v1" if share == 1 else None)
    assert ours.config.hidden_size == 1024 * share
    ours.save_pretrained(tmp_path / "ours")
    again = type(ours).from_pretrained(tmp_path / "ours").eval()
    pixels = torch.randn(1, 3, 64, 64)
    torch.testing.assert_close(again(pixel_values=pixels).logits, ours(pixel_values=pixels).logits, atol=1e-6, rtol=0)


def test_the_side_that_is_padded_matters(tmp_path: Path) -> None:
    """The two libraries differ by more than rounding, so each layout must bring its own rule."""
    theirs = scrambled(transformers.MobileNetV1ForImageClassification(transformers.MobileNetV1Config(depth_multiplier=0.25)))
    save_file(theirs.state_dict(), tmp_path / "theirs.safetensors")
    ours, _ = import_model(str(tmp_path / "theirs.safetensors"), settings={"same_padding": "symmetric"})
    pixels = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        assert (ours(pixel_values=pixels).logits - theirs(pixels).logits).abs().max() > 1e-2


def test_counts_are_exact(oracle: Any) -> None:
    account = mixlab.account("mobilenet-v1")
    assert account.params == 4_231_976
    assert account.macs == 568_740_352  # 569M in the paper
    with torch.device("meta"):
        timm = oracle("timm").create_model("mobilenetv1_100")
        theirs = transformers.MobileNetV1ForImageClassification(transformers.MobileNetV1Config.from_dict({"num_labels": 1000}))
        ours = mixlab.create("mobilenet-v1")
    assert [sum(p.numel() for p in model.parameters()) for model in (timm, theirs, ours)] == [account.params] * 3
    assert account.params < mixlab.account("mobilenet-v1", depths=[1, 2, 2, 7, 2]).params


@pytest.mark.parametrize("padding", ["symmetric", "tensorflow"])
def test_a_final_token_reads_as_far_as_declared(padding: str) -> None:
    """Above itself where zeros stand on both sides, below where they stand on one."""
    torch.manual_seed(0)
    side, token = 96, 5
    model = mixlab.create("mobilenet-tiny", task="features", same_padding=padding, image_size=side).double().eval()
    reach, patch = model.config.traits.reach, model.config.final_patch
    pixels = torch.randn(1, 3, side, side, dtype=torch.float64, requires_grad=True)
    grid = side // patch
    row = model(pixel_values=pixels).last_hidden_state.unflatten(1, (grid, grid))[0, token]
    read = torch.autograd.grad((row * torch.randn_like(row)).sum(), pixels)[0].abs().amax((0, 1, 3)).nonzero()
    above, below = token * patch - int(read.min()), int(read.max()) - (token + 1) * patch + 1
    assert max(above, below) == reach
    assert (above > below) == (padding == "symmetric")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"image_size": 60}, "image_size 60 is not a multiple of 8"),
        ({"hidden_size": 100}, "cannot be halved 3 times"),
        ({"depths": []}, "at least one stage"),
        ({"depths": [1, 0, 1]}, "each at least one block"),
        ({"num_hidden_layers": 5}, "num_hidden_layers is 5, but depths=.* makes it 4"),
        ({"patch_size": 4}, "a mixlab-mobilenet has"),
        ({"hidden_dropout": 0.1}, "a mixlab-mobilenet has"),
        ({"pooling": "cls"}, "no pooling 'cls'; choose among mean"),
        ({"modality": "text", "max_position_embeddings": 8}, "reads image, not text"),
        ({"same_padding": "none"}, "same_padding"),
    ],
)
def test_what_cannot_be_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(MixlabError, match=message):
        mixlab.config("mobilenet-tiny", **settings)


def test_images_that_do_not_divide_are_refused() -> None:
    model = mixlab.create("mobilenet-tiny").eval()
    with pytest.raises(MixlabError, match="its sides must be multiples of 8: crop or pad it"):
        model(pixel_values=torch.zeros(1, 3, 32, 36))
    with pytest.raises(MixlabError, match="multiples of 8 pixels"):
        model.resize_length(15 * 15)
    assert "no weight depends on it" in model.resize_length(20 * 20)
    assert model.config.image_size == 40
    with pytest.raises(MixlabError, match="cannot do 'masked-image-modeling'"):
        mixlab.create("mobilenet-tiny", task="masked-image-modeling")


def test_a_layout_with_more_layers_is_refused(oracle: Any, tmp_path: Path) -> None:
    save_file(oracle("timm").create_model("mobilenetv1_100h").state_dict(), tmp_path / "model.safetensors")
    with pytest.raises(MixlabError, match=r"bn2\.bias.* have no place in a mobilenet"):
        import_model(str(tmp_path / "model.safetensors"))
