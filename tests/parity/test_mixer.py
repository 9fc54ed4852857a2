"""MLP-Mixer: timm's model and ours, with the same weights, say the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import mixlab
from mixlab import MixlabError
from mixlab.cli.show import facts
from mixlab.layers import Tokens
from mixlab.modeling.architecture import find_preset
from mixlab.modeling.convert import import_model
from tests.parity.images import counted_alike, there_and_back, without_classifier

ROWS = {
    "MLP-Mixer: timm's weights give timm's logits, and go back [timm MlpMixer]": "test_logits_both_ways",
    "MLP-Mixer: a published size as timm builds it, and as its preset [timm mixer_s32_224]": "test_a_whole_model_as_its_preset",
    "MLP-Mixer: exact parameters and multiply-adds of all six sizes [timm]": "test_counts",
    "MLP-Mixer: the published counts are those without the classifier [paper]": "test_published_counts_leave_the_classifier_out",
    "MLP-Mixer: of dropped patches the weights are not read [einsum]": "test_some_tokens_use_their_part_of_the_weights",
    "MLP-Mixer: for another size of image the weights are interpolated": "test_other_sizes_of_image_by_interpolation",
    "MLP-Mixer: other models of timm, and unfit settings, are refused": "test_what_is_no_mixer_is_refused",
}

# preset: timm's name, parameters, G MACs, and the paper's millions.
SIZES = {
    "mixer-s-32": ("mixer_s32_224", 19_104_624, 1.002, 19),
    "mixer-s-16": ("mixer_s16_224", 18_528_264, 3.777, 18),
    "mixer-b-32": ("mixer_b32_224", 60_293_428, 3.238, 60),
    "mixer-b-16": ("mixer_b16_224", 59_880_472, 12.602, 59),
    "mixer-l-32": ("mixer_l32_224", 206_939_264, 11.253, 206),
    "mixer-l-16": ("mixer_l16_224", 208_196_168, 44.548, 207),
}
SMALL = {"img_size": 32, "patch_size": 8, "num_blocks": 3, "embed_dim": 24, "num_classes": 7}


def small(oracle: Any, **more: Any) -> Any:
    return oracle("timm.models.mlp_mixer").MlpMixer(**{**SMALL, **more})


@pytest.mark.parametrize(
    "settings",
    [{}, {"mlp_ratio": (1.5, 2.0)}, {"img_size": 48, "patch_size": 16, "in_chans": 1}, {"num_classes": 1}],
    ids=["plain", "other-widths", "grey", "one-label"],
)
def test_logits_both_ways(oracle: Any, settings: dict[str, Any], tmp_path: Path) -> None:
    ours = there_and_back(lambda: small(oracle, **settings), tmp_path, scale=0.2)
    config = ours.config
    ratio = settings.get("mlp_ratio", (0.5, 4.0))
    assert (config.tokens_intermediate_size, config.intermediate_size) == (24 * ratio[0], 24 * ratio[1])
    assert (config.image_size, config.num_channels) == (settings.get("img_size", 32), settings.get("in_chans", 3))


def test_a_whole_model_as_its_preset(oracle: Any, tmp_path: Path) -> None:
    ours = there_and_back(lambda: oracle("timm").create_model("mixer_s32_224"), tmp_path, scale=0.02, preset="mixer-s-32")
    assert ours.config.num_labels == 1000


@pytest.mark.parametrize("preset", SIZES)
def test_counts(oracle: Any, preset: str) -> None:
    theirs, params, giga, _ = SIZES[preset]
    counted_alike(preset, params, giga, lambda: oracle("timm").create_model(theirs))


@pytest.mark.parametrize("preset", SIZES)
def test_published_counts_leave_the_classifier_out(preset: str) -> None:
    found = find_preset(preset)[1]
    assert found.published == f"{SIZES[preset][3]}M"
    shown = facts(preset, None, None)
    assert (shown["published"], shown["published_note"]) == (found.published, "printed without the classifier")
    # 18,015,264 and 207,171,168 with it would be 18.5 and 208.2 million.
    assert round(without_classifier(preset) / 1e6) == SIZES[preset][3]


def test_some_tokens_use_their_part_of_the_weights() -> None:
    torch.manual_seed(0)
    model = mixlab.create("mixer-tiny", task="features", num_hidden_layers=1).double()
    mixing = model.body.blocks[0].token_mixing
    x = torch.randn(2, 5, 128, dtype=torch.float64)
    places = torch.stack([torch.randperm(64)[:5] for _ in range(2)])
    found = mixing(x, Tokens(x, positions=places))
    for sample, kept in enumerate(places):
        widen, narrow = mixing.mlp.widen, mixing.mlp.narrow
        hidden = torch.einsum("sk,kd->sd", widen.weight[:, kept], x[sample]) + widen.bias[:, None]
        expected = torch.einsum("ks,sd->kd", narrow.weight[kept], torch.nn.functional.gelu(hidden)) + narrow.bias[kept][:, None]
        torch.testing.assert_close(found[sample], expected, rtol=0, atol=1e-12)
    everything = torch.randn(2, 64, 128, dtype=torch.float64)
    straight = mixing(everything, Tokens(everything))
    order = torch.randperm(64)
    moved = mixing(everything[:, order], Tokens(everything[:, order], positions=order.expand(2, -1)))
    torch.testing.assert_close(moved, straight[:, order], rtol=0, atol=1e-12)


@torch.no_grad()
def test_other_sizes_of_image_by_interpolation() -> None:
    torch.manual_seed(0)
    model = mixlab.create("mixer-tiny", num_hidden_layers=1).eval()
    mixing = model.model.body.blocks[0].token_mixing
    constant = torch.randn(64, 1)  # a hidden unit that sums the whole image
    mixing.mlp.widen.weight.copy_(constant.expand(-1, 64))
    pixels = torch.randn(1, 3, 32, 32)
    before = model(pixel_values=pixels).logits
    assert "interpolated in 2-D from 8 x 8 to 8 x 8" in model.resize_length(64)
    torch.testing.assert_close(model(pixel_values=pixels).logits, before)
    model.resize_length(16 * 16)
    assert mixing.mlp.widen.weight.shape == (64, 256)
    torch.testing.assert_close(mixing.mlp.widen.weight.sum(1, keepdim=True), 64 * constant)
    assert model(pixel_values=torch.randn(1, 3, 64, 64)).logits.isfinite().all()
    with pytest.raises(MixlabError, match="square number of patches"):
        model.resize_length(60)


def test_what_is_no_mixer_is_refused(oracle: Any, tmp_path: Path) -> None:
    others = {
        "gated": (small(oracle, mlp_layer=oracle("timm.layers").GluMlp), r"channel_mixing\.narrow\.weight is \(24, 48\), the model has"),
        "stem-norm": (small(oracle, stem_norm=True), r"stem\.norm\.bias, stem\.norm\.weight have no place in a mixer"),
        "no-head": (small(oracle, num_classes=0), r"head\.bias"),
        "oblong": (small(oracle, img_size=(16, 32)), "8 patches are not a square"),
    }
    for name, (theirs, reason) in others.items():
        save_file(theirs.state_dict(), tmp_path / f"{name}.safetensors")
        with pytest.raises(MixlabError, match=reason):
            import_model(str(tmp_path / f"{name}.safetensors"))
    save_file(small(oracle).state_dict(), tmp_path / "small.safetensors")
    with pytest.raises(MixlabError, match="num_hidden_layers=3, and mixer-s-32 has 8; leave --preset out"):
        import_model(str(tmp_path / "small.safetensors"), preset="mixer-s-32")
    bad: list[tuple[dict[str, Any], str]] = [
        ({"tokens_intermediate_size": 0}, "tokens_intermediate_size is 0; it must be at least 1"),
        ({"patch_size": 5}, "image_size 32 is not a multiple of patch_size 5"),
        ({"drop_path": 1.0}, "drop_path is 1.0; it must be at least 0 and below 1"),
        ({"modality": "text", "max_position_embeddings": 64}, "reads image, not text"),
        ({"hidden_act": "relu"}, "hidden_act"),
    ]
    for settings, reason in bad:
        with pytest.raises(MixlabError, match=reason):
            mixlab.config("mixer-tiny", **settings)
    with pytest.raises(MixlabError, match="cannot do 'masked-lm'"):
        mixlab.create("mixer-tiny", task="masked-lm")
