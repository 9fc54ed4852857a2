"""ViT, ViT-22B's block and masked autoencoders: timm's and transformers' models, with the same weights, say the same."""

from __future__ import annotations

from functools import partial
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
from mixlab.modeling.convert_back import foreign_state, write_foreign
from tests.parity.images import counted_alike, moved, there_and_back

ROWS = {
    "ViT, cls token, both ways [timm VisionTransformer]": "test_timm_and_back",
    "ViT, mean of the patches, the norm before or behind it, both ways [timm VisionTransformer]": "test_timm_and_back",
    "ViT, attention pooling, both ways [timm AttentionPoolLatent]": "test_timm_and_back",
    "attention pooling alone [transformers SiglipMultiheadAttentionPoolingHead]": "test_attention_pooling_is_siglips",
    "ViT-22B's block: parallel branches, norms of q and k, no bias in W_qkv and norms, both ways [timm ParallelScalingBlock]": (
        "test_timm_and_back"
    ),
    "ViT, both ways [transformers ViTForImageClassification]": "test_transformers_and_back",
    "masked autoencoder, given noise, both ways [transformers ViTMAEForPreTraining]": "test_masked_autoencoder_and_back",
    "fixed positions [transformers ViTMAEModel]": "test_fixed_positions_are_those_of_transformers",
    "counts of vit-ti/s/b/16, b/32, l/16, h/14 [timm]": "test_counts",
    "count of mae-vit-b-16 [transformers ViTMAEForPreTraining]": "test_counts_of_the_masked_autoencoder",
    "count of the blocks of vit-22b [publication]": "test_counts_of_the_giant",
}

SIZES = {"img_size": 32, "patch_size": 8, "embed_dim": 128, "depth": 2, "num_heads": 2, "num_classes": 5}


def timm_vit(oracle: Any, **more: Any) -> nn.Module:
    return oracle("timm.models.vision_transformer").VisionTransformer(**{**SIZES, **more})


def parallel(oracle: Any) -> dict[str, Any]:
    block = oracle("timm.models.vision_transformer").ParallelScalingBlock
    norm = partial(oracle("timm.layers").RmsNorm, eps=1e-6)
    return {"block_fn": block, "qk_norm": True, "qkv_bias": False, "norm_layer": norm}


POOLED = {"global_pool": "avg", "class_token": False}
KINDS: dict[str, dict[str, Any]] = {
    "cls": {},
    "mean of normed patches": {**POOLED, "fc_norm": False},
    "normed mean of patches": POOLED,
    "map": {"global_pool": "map", "class_token": False},
    "one channel": {"in_chans": 1, "img_size": 24},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("at_once", [False, True], ids=["serial", "parallel"])
def test_timm_and_back(oracle: Any, kind: str, at_once: bool, tmp_path: Path) -> None:
    more = {**KINDS[kind], **(parallel(oracle) if at_once else {})}
    config = there_and_back(lambda: timm_vit(oracle, **more), tmp_path).config
    pooling = {"cls": "cls", "map": "map", "one channel": "cls"}.get(kind, "mean")
    assert (config.pooling, config.parallel, config.norm_pooled) == (pooling, at_once, kind == "normed mean of patches")


def test_heads_are_told_when_they_are_not_of_64_channels(oracle: Any, tmp_path: Path) -> None:
    there_and_back(lambda: timm_vit(oracle, num_heads=4), tmp_path, settings={"num_attention_heads": 4})


def test_a_whole_preset(oracle: Any, tmp_path: Path) -> None:
    there_and_back(lambda: oracle("timm").create_model("vit_tiny_patch16_224"), tmp_path, preset="vit-ti-16")


def test_features_need_no_classifier(oracle: Any, tmp_path: Path) -> None:
    theirs = moved(timm_vit(oracle, num_classes=0))
    save_file(theirs.state_dict(), tmp_path / "x.safetensors")
    ours, report = import_model(str(tmp_path / "x.safetensors"))
    assert report.task == "features"
    pixels = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(ours(pixel_values=pixels).last_hidden_state, theirs.forward_features(pixels), atol=1e-5, rtol=0)


def test_attention_pooling_is_siglips() -> None:
    from transformers.models.siglip.modeling_siglip import SiglipMultiheadAttentionPoolingHead

    config = transformers.SiglipVisionConfig(hidden_size=32, intermediate_size=48, num_attention_heads=4, hidden_act="gelu")
    theirs = moved(SiglipMultiheadAttentionPoolingHead(config))
    ours = mixlab.layers.AttentionPool(32, 48, heads=4, norm=partial(nn.LayerNorm, eps=config.layer_norm_eps))
    state = theirs.state_dict()
    renamed = {"probe": state["probe"]}
    for kind in ("weight", "bias"):
        joined = state[f"attention.in_proj_{kind}"]
        renamed |= {f"q.{kind}": joined[:32], f"kv.{kind}": joined[32:], f"out.{kind}": state[f"attention.out_proj.{kind}"]}
        renamed |= {f"ffn_norm.{kind}": state[f"layernorm.{kind}"]}
        renamed |= {f"ffn.widen.{kind}": state[f"mlp.fc1.{kind}"], f"ffn.narrow.{kind}": state[f"mlp.fc2.{kind}"]}
    ours.load_state_dict(renamed)
    x = torch.randn(2, 7, 32)
    torch.testing.assert_close(ours(x), theirs(x), atol=1e-5, rtol=0)


TRANSFORMERS: dict[str, Any] = {
    "image_size": 32,
    "patch_size": 8,
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 96,
    "hidden_dropout_prob": 0.0,
}


def save_memory(theirs: Any, folder: Path) -> str:
    """With the names that a model has in memory."""
    save_file(theirs.state_dict(), folder / "memory.safetensors")
    return str(folder / "memory.safetensors")


def save_folder(theirs: Any, folder: Path) -> str:
    """With the names that files have."""
    theirs.save_pretrained(folder / "theirs")
    return str(folder / "theirs" / "model.safetensors")


def back_again(ours: Any, theirs: Any, folder: Path) -> Any:
    """Our weights, written and loaded by transformers, which finds a place for each."""
    theirs.config.save_pretrained(folder / "back")
    write_foreign(ours, "transformers", folder / "back" / "model.safetensors")
    again, info = type(theirs).from_pretrained(folder / "back", output_loading_info=True)
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    return again.eval()


@pytest.mark.parametrize("save", [save_memory, save_folder])
def test_transformers_and_back(save: Any, tmp_path: Path) -> None:
    theirs: Any = moved(transformers.ViTForImageClassification(transformers.ViTConfig(**TRANSFORMERS, num_labels=5)))
    ours, report = import_model(save(theirs, tmp_path))
    assert (report.architecture, report.layout, report.task, report.missing, report.unused) == (
        "vit",
        "transformers",
        "image-classification",
        [],
        [],
    )
    pixels = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        expected = theirs(pixels)
        assert expected.logits.std() > 0.05
        torch.testing.assert_close(ours(pixel_values=pixels).logits, expected.logits, atol=1e-5, rtol=0)
        assert torch.equal(back_again(ours, theirs, tmp_path)(pixels).logits, expected.logits)


def test_transformers_without_a_head(tmp_path: Path) -> None:
    """The pooler of the bare model serves another task and stays behind."""
    theirs: Any = moved(transformers.ViTModel(transformers.ViTConfig(**TRANSFORMERS)))
    pixels = torch.randn(2, 3, 32, 32)
    for save in (save_memory, save_folder):
        ours, report = import_model(save(theirs, tmp_path))
        assert report.task == "features"
        with torch.no_grad():
            expected = theirs(pixels).last_hidden_state
            torch.testing.assert_close(ours(pixel_values=pixels).last_hidden_state, expected, atol=1e-5, rtol=0)


DECODER = {
    "decoder_hidden_size": 64,
    "decoder_num_hidden_layers": 2,
    "decoder_num_attention_heads": 2,
    "decoder_intermediate_size": 80,
}


def autoencoder(**more: Any) -> Any:
    config = transformers.ViTMAEConfig(**{**TRANSFORMERS, **DECODER, **more})
    return moved(transformers.ViTMAEForPreTraining(config))


@pytest.mark.parametrize("normalized", [False, True], ids=["pixels", "normalised pixels"])
@pytest.mark.parametrize("ratio", [0.75, 0.5])
@pytest.mark.parametrize("save", [save_memory, save_folder])
def test_masked_autoencoder_and_back(normalized: bool, ratio: float, save: Any, tmp_path: Path) -> None:
    theirs = autoencoder(norm_pix_loss=normalized, mask_ratio=ratio)
    ours, report = import_model(save(theirs, tmp_path), settings={"normalized_targets": normalized, "mask_ratio": ratio})
    assert (report.task, report.missing, report.unused) == ("masked-image-modeling", [], [])
    pixels, noise = torch.randn(3, 3, 32, 32), torch.rand(3, 16)
    with torch.no_grad():
        expected, found = theirs(pixels, noise=noise), ours(pixel_values=pixels, noise=noise)
        assert expected.logits.std() > 0.05
        torch.testing.assert_close(found.logits, expected.logits, atol=1e-5, rtol=0)
        torch.testing.assert_close(found.loss, expected.loss, atol=1e-5, rtol=0)
        assert torch.equal(found.mask, expected.mask.bool())
        again = back_again(ours, theirs, tmp_path)(pixels, noise=noise)
        assert torch.equal(again.logits, expected.logits)
        assert torch.equal(again.loss, expected.loss)


def test_gradients_of_the_masked_autoencoder(tmp_path: Path) -> None:
    theirs = autoencoder()
    ours, _ = import_model(save_memory(theirs, tmp_path))
    pixels, noise = torch.randn(2, 3, 32, 32), torch.rand(2, 16)
    theirs(pixels, noise=noise).loss.backward()
    ours(pixel_values=pixels, noise=noise).loss.backward()
    pairs = {
        "vit.embeddings.patch_embeddings.projection.weight": "model.stem.projection.weight",
        "vit.layers.0.mlp.fc1.weight": "model.body.blocks.0.ffn.widen.weight",
        "decoder.mask_token": "decoder.mask_token",
        "decoder.decoder_pred.weight": "decoder.pixels.weight",
    }
    mine, others = dict(ours.named_parameters()), dict(theirs.named_parameters())
    for name, own in pairs.items():
        torch.testing.assert_close(mine[own].grad, others[name].grad, atol=1e-5, rtol=1e-4)
    assert mine["model.body.positions.weight"].grad is None


def test_the_encoder_of_a_masked_autoencoder_begins_a_classifier(tmp_path: Path) -> None:
    theirs = autoencoder()
    encoder = {name: tensor for name, tensor in theirs.state_dict().items() if name.startswith("vit.")}
    save_file(encoder, tmp_path / "encoder.safetensors")
    ours, report = import_model(str(tmp_path / "encoder.safetensors"), task="image-classification", allow_missing=True)
    assert report.missing == ["classifier.bias", "classifier.weight"]
    pixels = torch.randn(2, 3, 32, 32)
    plain: Any = transformers.ViTModel(transformers.ViTConfig(**TRANSFORMERS), add_pooling_layer=False).eval()
    plain.load_state_dict({name.removeprefix("vit."): tensor for name, tensor in encoder.items()})
    with torch.no_grad():
        torch.testing.assert_close(ours.model(pixel_values=pixels).last_hidden_state, plain(pixels).last_hidden_state, atol=1e-5, rtol=0)


def test_fixed_positions_are_those_of_transformers(tmp_path: Path) -> None:
    """transformers computes them only where nothing says that the patches' projection has been filled already."""
    theirs = transformers.ViTMAEModel(transformers.ViTMAEConfig(**TRANSFORMERS))
    theirs.embeddings.patch_embeddings.projection._is_hf_initialized = False
    theirs.embeddings.initialize_weights()
    settings = {"image_size": 32, "patch_size": 8, "hidden_size": 128, "decoder_hidden_size": 128}
    ours: Any = mixlab.create("mae-vit-tiny", **settings)
    expected = theirs.embeddings.position_embeddings[0]
    for body in (ours.model.body, ours.decoder.body):
        torch.testing.assert_close(body.positions.weight, expected, atol=1e-6, rtol=0)
    ours.save_pretrained(tmp_path)
    again = type(ours).from_pretrained(tmp_path)
    assert torch.equal(again.model.body.positions.weight, ours.model.body.positions.weight)
    assert not again.model.body.positions.weight.requires_grad
    ours.resize_length(64)
    larger: Any = mixlab.create("mae-vit-tiny", **{**settings, "image_size": 64})
    assert torch.equal(ours.decoder.body.positions.weight, larger.decoder.body.positions.weight)


# Of zoo counts: parameters and G MACs; the huge model is printed there without its classifier of 1,281,000.
EXACT = {
    "vit-ti-16": (5_717_416, 1.254, "vit_tiny_patch16_224"),
    "vit-s-16": (22_050_664, 4.599, "vit_small_patch16_224"),
    "vit-b-16": (86_567_656, 17.564, "vit_base_patch16_224"),
    "vit-b-32": (88_224_232, 4.409, "vit_base_patch32_224"),
    "vit-l-16": (304_326_632, 61.555, "vit_large_patch16_224"),
    "vit-h-14": (630_764_800 + 1_281_000, 167.295, "vit_huge_patch14_224"),
}


@pytest.mark.parametrize("preset", EXACT)
def test_counts(oracle: Any, preset: str) -> None:
    params, giga, name = EXACT[preset]
    counted_alike(preset, params, giga, lambda: oracle("timm").create_model(name, num_classes=1000))


def test_counts_of_the_huge_model_without_its_classifier() -> None:
    assert mixlab.account("vit-h-14", task="features").params == 630_764_800


@pytest.mark.parametrize(("preset", "params"), [("mae-vit-b-16", 111_907_840), ("mae-vit-l-16", None), ("mae-vit-h-14", None)])
def test_counts_of_the_masked_autoencoder(preset: str, params: int | None) -> None:
    config = mixlab.config(preset)
    sizes = {name: getattr(config, name) for name in ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")}
    with torch.device("meta"):
        theirs = transformers.ViTMAEForPreTraining(transformers.ViTMAEConfig(**sizes, patch_size=config.patch_size))
        ours = mixlab.create(preset)
    counts = [sum(p.numel() for p in model.parameters()) for model in (ours, theirs)]
    assert counts == [mixlab.account(preset).params] * 2
    assert params in (None, counts[0])


def test_counts_of_the_giant() -> None:
    """The publication counts the matrices of the blocks; biases, norms, the stem and the pooling are the rest."""
    counted = mixlab.account("vit-22b")
    lines = {line.name: line for line in counted.group("body").lines if line.times == 48}
    matrices = [lines[name].times * lines[name].symbols["i"] * lines[name].symbols["o"] for name in ("W_qkv", "W_o", "W_1", "W_2")]
    assert sum(matrices) == 21_743_271_936
    assert counted.params == 22_209_743_848
    assert mixlab.config("vit-22b").length == 256
    with torch.device("meta"):
        assert sum(p.numel() for p in mixlab.create("vit-22b").parameters()) == counted.params


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"num_attention_heads": 3}, "hidden_size 128 cannot be split into num_attention_heads=3; use a divisor of 128"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0; it must be at least 1"),
        (
            {"masking": "drop", "decoder_num_attention_heads": 7},
            "decoder_hidden_size 512 cannot be split into decoder_num_attention_heads=7",
        ),
        ({"patch_size": 5}, "image_size 32 is not a multiple of patch_size 5"),
        ({"norm_pooled": True}, "norm_pooled=True is for pooling='mean', not 'cls'"),
        ({"pooling": "last"}, "has no pooling 'last'; choose among cls, mean, map"),
        ({"causal": True, "pooling": "mean"}, "causal=True is for text"),
        ({"modality": "text", "max_position_embeddings": 9, "image_size": 32}, "reads image, not text"),
        ({"intermediate_size": 0}, "intermediate_size is 0"),
        ({"attention_dropout": 1.0}, "attention_dropout is 1.0; it must be at least 0 and below 1"),
        ({"drop_path": -0.1}, "drop_path is -0.1"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(MixlabError, match=said):
        mixlab.config("vit-tiny", **settings)


def test_widths_without_waves_are_refused() -> None:
    with pytest.raises(MixlabError, match="with 66 channels; give a square image and a multiple of 4 channels"):
        mixlab.create("mae-vit-tiny", decoder_hidden_size=66, decoder_num_attention_heads=2)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"global_pool": "avg"}, "pools its patches beside a cls token"),
        ({"reg_tokens": 2}, r"reg_token have no place|are not a square"),
        ({"init_values": 0.1}, r"ls1\.gamma.* have no place in a vit"),
        ({"pre_norm": True}, "norm_pre|patch_embed"),
    ],
)
def test_other_vits_are_refused(oracle: Any, more: dict[str, Any], said: str, tmp_path: Path) -> None:
    save_file(timm_vit(oracle, **more).state_dict(), tmp_path / "x.safetensors")
    with pytest.raises(MixlabError, match=said):
        import_model(str(tmp_path / "x.safetensors"))


@pytest.mark.parametrize("settings", [{"pooling": "mean"}, {"pooling": "map"}, {"parallel": True}, {"final_norm": False}])
def test_what_transformers_cannot_hold_is_not_written(settings: dict[str, Any]) -> None:
    with pytest.raises(MixlabError, match="has no place for"):
        foreign_state(mixlab.create("vit-tiny", num_hidden_layers=1, **settings), "transformers")


def test_a_written_file_holds_the_names_of_the_hub(tmp_path: Path) -> None:
    write_foreign(mixlab.create("mae-vit-tiny"), "transformers", tmp_path / "x.safetensors")
    names = set(load_file(tmp_path / "x.safetensors"))
    assert {"vit.encoder.layer.0.attention.attention.query.weight", "decoder.decoder_layers.1.output.dense.bias"} <= names
