"""gMLP for images: timm's model and ours, with the same weights, say the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from mixlab import MixlabError
from mixlab.modeling.convert import import_model
from tests.modeling.tiny import randomise

ROWS = {
    "gMLP for images: timm's weights give timm's logits [timm MlpMixer of SpatialGatingBlock]": "test_logits_without_a_preset",
    "gMLP for images: published sizes as their presets [timm gmlp_ti16_224, gmlp_s16_224]": "test_the_whole_model_as_its_preset",
}

WIDTHS = {"gmlp_ti16_224": 128, "gmlp_s16_224": 256}


def shallow(oracle: Any, name: str, blocks: int = 2, **more: Any) -> Any:
    """timm's model as its own function builds it, but for the depth, which that function fixes."""
    mixer = oracle("timm.models.mlp_mixer")
    settings = {"patch_size": 16, "mlp_ratio": 6, "block_layer": mixer.SpatialGatingBlock, "mlp_layer": mixer.GatedMlp, **more}
    return mixer.MlpMixer(num_blocks=blocks, embed_dim=WIDTHS[name], **settings)


def check(theirs: Any, path: Any, **options: Any) -> Any:
    theirs = randomise(theirs.eval(), scale=0.05)
    save_file(theirs.state_dict(), path)
    ours, report = import_model(str(path), **options)
    pixels = torch.randn(2, 3, ours.config.image_size, ours.config.image_size)
    with torch.no_grad():
        expected = theirs(pixels)
        assert expected.std() > 0.05
        torch.testing.assert_close(ours(pixel_values=pixels).logits, expected, atol=1e-5, rtol=0)
    assert not ours.training
    assert report.layout == "timm"
    assert report.task == "image-classification"
    assert (report.loaded, report.missing, report.unused) == (len(theirs.state_dict()), [], [])
    return ours


@pytest.mark.parametrize("name", WIDTHS)
def test_logits_without_a_preset(oracle: Any, name: str, tmp_path: Any) -> None:
    check(shallow(oracle, name), tmp_path / "model.safetensors")


@pytest.mark.parametrize(("size", "patch", "channels", "classes"), [(64, 16, 1, 7), (96, 8, 3, 2), (32, 32, 4, 1)])
def test_geometry_is_read_from_the_shapes(oracle: Any, size: int, patch: int, channels: int, classes: int, tmp_path: Any) -> None:
    theirs = shallow(oracle, "gmlp_ti16_224", img_size=size, patch_size=patch, in_chans=3, num_classes=classes)
    if channels == 3:
        config = check(theirs, tmp_path / "model.safetensors").config
        assert (config.image_size, config.patch_size, config.num_labels) == (size, patch, classes)
        return
    theirs = randomise(shallow(oracle, "gmlp_ti16_224", img_size=size, patch_size=patch, in_chans=channels, num_classes=classes)).eval()
    save_file(theirs.state_dict(), tmp_path / "model.safetensors")
    ours, _ = import_model(str(tmp_path / "model.safetensors"))
    pixels = torch.randn(1, channels, size, size)
    with torch.no_grad():
        torch.testing.assert_close(ours(pixel_values=pixels).logits, theirs(pixels), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", WIDTHS)
def test_the_whole_model_as_its_preset(oracle: Any, name: str, tmp_path: Any) -> None:
    theirs = oracle("timm").create_model(name)
    path, preset = tmp_path / "model.safetensors", name.replace("_", "-")
    model = check(theirs, path, preset=preset)
    assert model.config.drop_path == pytest.approx(0.05 if "s16" in name else 0)
    bare, _ = import_model(str(path))
    assert all(torch.equal(a, b) for a, b in zip(bare.parameters(), model.parameters(), strict=True))


def test_a_preset_of_other_sizes_is_refused(oracle: Any, tmp_path: Any) -> None:
    save_file(shallow(oracle, "gmlp_ti16_224").state_dict(), tmp_path / "model.safetensors")
    with pytest.raises(MixlabError, match=r"num_hidden_layers=2, and gmlp-ti16-224 has 30; leave --preset out"):
        import_model(str(tmp_path / "model.safetensors"), preset="gmlp-ti16-224")
    with pytest.raises(MixlabError, match="holds a gmlp, and amlp-base is a amlp"):
        import_model(str(tmp_path / "model.safetensors"), preset="amlp-base")


def test_a_model_without_a_classifier_is_refused(oracle: Any, tmp_path: Any) -> None:
    save_file(shallow(oracle, "gmlp_ti16_224", num_classes=0).state_dict(), tmp_path / "model.safetensors")
    with pytest.raises(MixlabError, match=r"head\.bias"):
        import_model(str(tmp_path / "model.safetensors"))


def test_other_sizes_of_image_by_interpolation(oracle: Any, tmp_path: Any) -> None:
    path = tmp_path / "model.safetensors"
    save_file(randomise(shallow(oracle, "gmlp_ti16_224", img_size=64)).state_dict(), path)
    model, report = import_model(str(path), length=36)
    assert model.config.image_size == 96
    assert "interpolated in 2-D from 4 x 4 to 6 x 6" in report.notes[-1]
    assert model(pixel_values=torch.randn(1, 3, 96, 96)).logits.isfinite().all()
