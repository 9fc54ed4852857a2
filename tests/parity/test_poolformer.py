"""PoolFormer: timm's model and ours, with the same weights, say the same."""

from __future__ import annotations

from functools import partial
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
    "PoolFormer: timm's weights give timm's logits, and go back [timm MetaFormer]": "test_logits_both_ways",
    "PoolFormer: images of other sizes, and every stage [timm MetaFormer]": "test_images_of_other_sizes",
    "PoolFormer: a published size as timm builds it, and as its preset [timm poolformer_s12]": "test_a_whole_model_as_its_preset",
    "PoolFormer: exact parameters and multiply-adds of both sizes, as published [timm, paper]": "test_counts",
    "PoolFormer: the token mixing and its map [timm Pooling]": "test_the_mixing",
    "PoolFormer: even windows, unfit images, masked patches and other layouts are refused": "test_what_is_refused",
}

# preset: timm's name, parameters, G MACs, and the paper's millions.
SIZES = {
    "poolformer-s12": ("poolformer_s12", 11_915_176, 1.812, "12M"),
    "poolformer-s24": ("poolformer_s24", 21_388_968, 3.392, "21M"),
}


def small(oracle: Any, **more: Any) -> Any:
    library = oracle("timm.models.metaformer")
    settings = {"depths": [2, 1, 3], "dims": [8, 20, 28], "downsample_norm": None, "mlp_act": torch.nn.GELU, "mlp_bias": True}
    settings |= {"norm_layers": library.GroupNorm1, "layer_scale_init_values": 0.5, "res_scale_init_values": None, "use_mlp_head": False}
    return library.MetaFormer(**{**settings, "num_classes": 7, **more})


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        ({}, {}),
        ({"depths": [1], "dims": [12], "in_chans": 1, "num_classes": 1}, {"image_size": 32}),
        ({"depths": [1, 1, 1, 2], "dims": [8, 8 + 4, 16, 24], "pool_size": 5}, {"pool_size": 5, "image_size": 64}),
    ],
    ids=["plain", "one-stage-grey", "four-stages-wide-windows"],
)
def test_logits_both_ways(oracle: Any, options: dict[str, Any], settings: dict[str, Any], tmp_path: Path) -> None:
    ours = there_and_back(lambda: small(oracle, **options), tmp_path, scale=0.2, settings=settings)
    assert ours.config.depths == options.get("depths", [2, 1, 3])
    assert ours.config.widths == options.get("dims", [8, 20, 28])
    assert ours.config.num_hidden_layers == sum(ours.config.depths)
    assert ours.config.image_size == settings.get("image_size", 224)


@torch.no_grad()
@pytest.mark.parametrize("size", [(16, 16), (48, 16), (64, 80)])
def test_images_of_other_sizes(oracle: Any, size: tuple[int, int], tmp_path: Path) -> None:
    torch.manual_seed(0)
    theirs = moved(small(oracle), scale=0.2)
    save_file(theirs.state_dict(), tmp_path / "m.safetensors")
    ours, _ = import_model(str(tmp_path / "m.safetensors"))
    pixels = torch.randn(2, 3, *size)
    torch.testing.assert_close(ours(pixel_values=pixels).logits, theirs(pixels), rtol=0, atol=1e-5)
    hidden = ours(pixel_values=pixels, output_hidden_states=True).hidden_states
    x = theirs.stem(pixels)
    for stage, blocks in zip(theirs.stages, (2, 3, 6), strict=True):
        x = stage(x)
        torch.testing.assert_close(hidden[blocks], x.flatten(2).mT, rtol=0, atol=1e-5)


def test_a_whole_model_as_its_preset(oracle: Any, tmp_path: Path) -> None:
    build = partial(oracle("timm").create_model, "poolformer_s12")
    ours = there_and_back(build, tmp_path, scale=0.05, preset="poolformer-s12")
    assert ours.config.layer_scale_init == 1e-5


@pytest.mark.parametrize("preset", SIZES)
def test_counts(oracle: Any, preset: str) -> None:
    theirs, params, giga, published = SIZES[preset]
    counted_alike(preset, params, giga, lambda: oracle("timm").create_model(theirs))
    assert find_preset(preset)[1].published == published
    assert difference(params, published) == "none"


@torch.no_grad()
def test_the_mixing(oracle: Any) -> None:
    torch.manual_seed(0)
    model = mixlab.create("poolformer-tiny", task="features").double().eval()
    seen: dict[str, torch.Tensor] = {}

    def remember(_: Any, args: Any, out: torch.Tensor) -> None:
        seen.update(read=args[0], written=out)

    model.body.blocks[1].token_mixing.register_forward_hook(remember)
    maps = model(pixel_values=torch.randn(2, 3, 32, 48, dtype=torch.float64), output_maps=True).maps
    assert [tuple(m.shape) for m in maps] == [(1, 96, 96), (1, 24, 24), (1, 6, 6)]
    expected = oracle("timm.models.metaformer").Pooling(3)(seen["read"].mT.unflatten(2, (4, 6))).flatten(2).mT
    torch.testing.assert_close(seen["written"], expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(maps[1] @ seen["read"], expected, rtol=0, atol=1e-12)


def test_what_is_refused(oracle: Any, tmp_path: Path) -> None:
    bad: list[tuple[dict[str, Any], str]] = [
        ({"pool_size": 2}, "pool_size 2 has no middle; use an odd number"),
        ({"pool_size": -1}, "pool_size -1 has no middle"),
        ({"depths": [1, 1]}, r"depths \[1, 1\] and widths \[48, 96, 128\]; give a number"),
        ({"depths": [], "widths": []}, r"depths \[\] and widths \[\]"),
        ({"depths": [1, 0, 1]}, r"depths \[1, 0, 1\]"),
        ({"expansion": 0}, "expansion is 0"),
        ({"num_hidden_layers": 4}, r"num_hidden_layers is 4, but depths=\[1, 1, 1\] makes it 3; leave num_hidden_layers out"),
        ({"hidden_size": 64}, r"hidden_size is 64, but widths=\[48, 96, 128\] makes it 128"),
        ({"image_size": 40}, "image_size 40 is not a multiple of 16"),
        ({"masking": "drop"}, "cannot leave patches out"),
        ({"pooling": "cls"}, "has no pooling 'cls'"),
    ]
    for settings, reason in bad:
        with pytest.raises(MixlabError, match=reason):
            mixlab.config("poolformer-tiny", **settings)
    with pytest.raises(MixlabError, match="cannot do 'masked-image-modeling'"):
        mixlab.create("poolformer-tiny", task="masked-image-modeling")
    with pytest.raises(MixlabError, match="an image of 32 x 40; its sides must be multiples of 16"):
        mixlab.create("poolformer-tiny")(pixel_values=torch.zeros(1, 3, 32, 40))
    others = {
        "second-version": (oracle("timm").create_model("poolformerv2_s12"), "belong to no layout known here"),
        "mlp-head": (small(oracle, use_mlp_head=True), r"head\.fc\.bias"),
        "layer-norm": (small(oracle, layer_scale_init_values=None), "belong to no layout known here"),
        "residual-scale": (small(oracle, res_scale_init_values=1.0), r"res_scale1\.scale"),
    }
    for name, (theirs, reason) in others.items():
        save_file(theirs.state_dict(), tmp_path / f"{name}.safetensors")
        with pytest.raises(MixlabError, match=reason):
            import_model(str(tmp_path / f"{name}.safetensors"))
