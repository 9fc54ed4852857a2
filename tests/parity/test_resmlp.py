"""ResMLP: timm's model and ours, with the same weights, say the same."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import mixlab
from mixlab import MixlabError
from mixlab.layers import Tokens
from mixlab.modeling.account import difference
from mixlab.modeling.architecture import find_preset
from mixlab.modeling.convert import import_model
from tests.parity.images import counted_alike, there_and_back

ROWS = {
    "ResMLP: timm's weights give timm's logits, and go back [timm ResBlock, Affine]": "test_logits_both_ways",
    "ResMLP: a published size as timm builds it, and as its preset [timm resmlp_12_224]": "test_a_whole_model_as_its_preset",
    "ResMLP: exact parameters and multiply-adds of all three sizes, as published [timm, paper]": "test_counts",
    "ResMLP: a layer's token map is its W, and of dropped patches W is not read [einsum]": "test_maps_and_dropped_patches",
    "ResMLP: other models of timm, and unfit settings, are refused": "test_what_is_no_resmlp_is_refused",
}

# preset: timm's name, parameters, G MACs, and the paper's millions.
SIZES = {
    "resmlp-12": ("resmlp_12_224", 15_350_872, 3.010, "15M"),
    "resmlp-24": ("resmlp_24_224", 30_020_680, 5.961, "30M"),
    "resmlp-36": ("resmlp_36_224", 44_690_488, 8.913, "45M"),
}


def small(oracle: Any, **more: Any) -> Any:
    mixer = oracle("timm.models.mlp_mixer")
    block = partial(mixer.ResBlock, init_values=0.5)
    settings = {"img_size": 32, "patch_size": 8, "num_blocks": 3, "embed_dim": 24, "num_classes": 7, "mlp_ratio": 4}
    return mixer.MlpMixer(**{**settings, "block_layer": block, "norm_layer": mixer.Affine, **more})


@pytest.mark.parametrize(
    "settings",
    [{}, {"mlp_ratio": 1.5}, {"img_size": 48, "patch_size": 16, "in_chans": 1, "num_classes": 1}],
    ids=["plain", "other-width", "grey"],
)
def test_logits_both_ways(oracle: Any, settings: dict[str, Any], tmp_path: Path) -> None:
    ours = there_and_back(lambda: small(oracle, **settings), tmp_path, scale=0.2)
    assert ours.config.intermediate_size == 24 * settings.get("mlp_ratio", 4)


def test_a_whole_model_as_its_preset(oracle: Any, tmp_path: Path) -> None:
    ours = there_and_back(lambda: oracle("timm").create_model("resmlp_12_224"), tmp_path, scale=0.03, preset="resmlp-12")
    assert ours.config.layer_scale_init == 0.1


@pytest.mark.parametrize("preset", SIZES)
def test_counts(oracle: Any, preset: str) -> None:
    theirs, params, giga, published = SIZES[preset]
    counted_alike(preset, params, giga, lambda: oracle("timm").create_model(theirs))
    assert find_preset(preset)[1].published == published
    assert difference(params, published) == "none"


@torch.no_grad()
def test_maps_and_dropped_patches() -> None:
    torch.manual_seed(0)
    model = mixlab.create("resmlp-tiny", task="features", num_hidden_layers=2).double().eval()
    pixels = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    maps = model(pixel_values=pixels, output_maps=True).maps
    block = model.body.blocks[1]
    torch.nn.init.normal_(block.token_mixing.bias)
    assert torch.equal(maps[1][0], block.token_mixing.spatial.weight[0])
    x = torch.randn(2, 5, 128, dtype=torch.float64)
    kept = torch.randperm(64)[:5]
    found = block.token_mixing(x, Tokens(x, positions=kept.expand(2, -1)))
    expected = torch.einsum("ij,bjd->bid", maps[1][0][kept][:, kept], x) + block.token_mixing.bias[0, kept, None]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_what_is_no_resmlp_is_refused(oracle: Any, tmp_path: Path) -> None:
    others = {
        "layer-norm": (small(oracle, norm_layer=torch.nn.LayerNorm), "norm1"),
        "no-head": (small(oracle, num_classes=0), r"head\.bias"),
        "oblong": (small(oracle, img_size=(16, 32)), "8 patches are not a square"),
    }
    for name, (theirs, reason) in others.items():
        save_file(theirs.state_dict(), tmp_path / f"{name}.safetensors")
        with pytest.raises(MixlabError, match=reason):
            import_model(str(tmp_path / f"{name}.safetensors"))
    bad: list[tuple[dict[str, Any], str]] = [
        ({"intermediate_size": 0}, "intermediate_size is 0; it must be at least 1"),
        ({"image_size": 30}, "image_size 30 is not a multiple of patch_size 4"),
        ({"drop_path": -0.1}, "drop_path is -0.1"),
        ({"modality": "audio", "max_position_embeddings": 64}, "reads image, not audio"),
    ]
    for settings, reason in bad:
        with pytest.raises(MixlabError, match=reason):
            mixlab.config("resmlp-tiny", **settings)
    with pytest.raises(MixlabError, match="this model reads 32 x 32"):
        mixlab.create("resmlp-tiny")(pixel_values=torch.zeros(1, 3, 64, 64))
