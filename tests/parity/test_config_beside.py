"""A folder of transformers tells what no tensor does: heads, activations, what norms add. A model reads it there, and says the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from mixlab import MixlabError
from mixlab.modeling.convert import import_model
from tests.modeling.tiny import randomise

ROWS = {
    "folders of BERT, GPT-2, FNet, ViT, MAE and Swin: heads, activations and norms are read from config.json "
    "[transformers save_pretrained]": "test_a_folder_needs_no_settings",
}

TEXT = {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 40, "max_position_embeddings": 24}
IMAGE = {"image_size": 16, "patch_size": 4, "hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 40, "num_attention_heads": 4}
DECODER = {"decoder_hidden_size": 16, "decoder_num_hidden_layers": 1, "decoder_num_attention_heads": 4, "decoder_intermediate_size": 24}
ODD = {"hidden_act": "gelu_new", "layer_norm_eps": 0.1}  # far from what is assumed
SMALL_GPT2 = {"vocab_size": 60, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 24, "bos_token_id": 1, "eos_token_id": 2}
SWIN = {
    "image_size": 32,
    "patch_size": 2,
    "window_size": 4,
    "embed_dim": 8,
    "depths": (2, 1),
    "num_heads": (2, 4),
    "hidden_act": "gelu_new",
}
FOLDERS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "bert": (transformers.BertForMaskedLM, transformers.BertConfig, {**TEXT, **ODD, "num_attention_heads": 4}),
    "gpt2": (
        transformers.GPT2LMHeadModel,
        transformers.GPT2Config,
        {**SMALL_GPT2, "layer_norm_epsilon": 0.1, "activation_function": "gelu"},
    ),
    "fnet": (transformers.FNetForMaskedLM, transformers.FNetConfig, {**TEXT, "hidden_act": "gelu", "layer_norm_eps": 0.1}),
    "vit": (transformers.ViTForImageClassification, transformers.ViTConfig, {**IMAGE, **ODD, "num_labels": 5}),
    "mae": (
        transformers.ViTMAEForPreTraining,
        transformers.ViTMAEConfig,
        {**IMAGE, **DECODER, **ODD, "norm_pix_loss": True, "mask_ratio": 0.5},
    ),
    "swin": (transformers.SwinForImageClassification, transformers.SwinConfig, {**SWIN, "num_labels": 5}),
}


def folder(name: str, path: Path) -> Any:
    model, config, settings = FOLDERS[name]
    torch.manual_seed(0)
    theirs = randomise(model(config(**settings)), scale=0.2).eval()
    theirs.save_pretrained(path)
    return theirs


@torch.no_grad()
@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_needs_no_settings(name: str, tmp_path: Path) -> None:
    theirs = folder(name, tmp_path)
    ours, _ = import_model(str(tmp_path))
    read = {"input_ids": torch.randint(0, 60, (2, 20))}
    if ours.config.modality == "image":
        side = ours.config.image_size
        assert side == theirs.config.image_size
        read = {"pixel_values": torch.randn(2, 3, side, side), **({"noise": torch.rand(2, 16)} if name == "mae" else {})}
    expected, found = theirs(**read), ours(**read)
    assert expected.logits.std() > 0.05
    torch.testing.assert_close(found.logits, expected.logits, rtol=0, atol=1e-5)
    if name == "mae":
        torch.testing.assert_close(found.loss, expected.loss, rtol=0, atol=1e-5)


def test_tokens_that_end_a_text_are_told(tmp_path: Path) -> None:
    folder("gpt2", tmp_path)
    ours, _ = import_model(str(tmp_path))
    assert (ours.config.bos_token_id, ours.config.eos_token_id) == (1, 2)


def test_what_is_set_comes_first(tmp_path: Path) -> None:
    folder("bert", tmp_path)
    ours, _ = import_model(str(tmp_path), settings={"num_attention_heads": 2})
    assert (ours.config.num_attention_heads, ours.config.layer_norm_eps) == (2, 0.1)


@pytest.mark.parametrize(
    ("name", "changed", "said"),
    [
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx=True"),
        ("bert", {"is_decoder": True}, "is_decoder=True"),
        ("swin", {"layer_norm_eps": 0.1}, "layer_norm_eps=0.1"),
        ("bert", {"hidden_act": "relu"}, "hidden_act"),
        ("bert", {"num_attention_heads": "4"}, "num_attention_heads"),
        ("bert", {"num_attention_heads": 5}, "cannot be split"),
        ("vit", {"hidden_act": ["gelu"]}, "hidden_act"),
    ],
)
def test_what_cannot_be_done_is_refused(name: str, changed: dict[str, Any], said: str, tmp_path: Path) -> None:
    folder(name, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **changed}))
    with pytest.raises(MixlabError, match=said) as refused:
        import_model(str(tmp_path))
    assert "\n" not in str(refused.value)
