"""gMLP and aMLP for text and images: g-mlp-pytorch's models and ours, with the same weights, say the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from mixlab import MixlabError
from mixlab.modeling.convert import import_model
from tests.modeling.tiny import randomise

ROWS = {
    "gMLP and aMLP for text, two-sided and causal, with heads and circulant weights [g-mlp-pytorch gMLP]": "test_text",
    "gMLP with tanh on the gate [g-mlp-pytorch gMLP]": "test_tanh_on_the_gate_is_a_setting",
    "gMLP and aMLP for images [g-mlp-pytorch gMLPVision]": "test_images",
}

TEXT = {"num_tokens": 40, "dim": 32, "depth": 3, "seq_len": 12}
IMAGE = {"image_size": 16, "patch_size": 4, "num_classes": 5, "dim": 32, "depth": 3}

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {  # name: (our architecture, their options)
    "plain": ("gmlp", {}),
    "heads": ("gmlp", {"heads": 2}),
    "circulant": ("gmlp", {"circulant_matrix": True}),
    "circulant-heads": ("gmlp", {"circulant_matrix": True, "heads": 2}),
    "attention": ("amlp", {"attn_dim": 8}),
    "attention-heads-circulant": ("amlp", {"attn_dim": 8, "heads": 2, "circulant_matrix": True}),
}


def save(theirs: nn.Module, path: Any) -> str:
    save_file({name: tensor.contiguous() for name, tensor in theirs.state_dict().items()}, path)
    return str(path)


def compare(ours: Any, theirs: nn.Module, **inputs: Any) -> None:
    with torch.no_grad():
        expected = theirs(*inputs.values())
        assert expected.std() > 0.1
        torch.testing.assert_close(ours(**inputs).logits, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("causal", [False, True], ids=["both-sides", "causal"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_text(oracle: Any, variant: str, causal: bool, tmp_path: Any) -> None:
    arch, options = VARIANTS[variant]
    theirs = randomise(oracle("g_mlp_pytorch").gMLP(**TEXT, **options, causal=causal), scale=0.15).eval()
    task = "causal-lm" if causal else "masked-lm"
    ours, report = import_model(save(theirs, tmp_path / "m.safetensors"), task="causal-lm" if causal else None)
    assert (report.architecture, report.task) == (arch, task)
    assert not report.missing
    assert not report.unused
    compare(ours, theirs, input_ids=torch.randint(TEXT["num_tokens"], (3, TEXT["seq_len"])))
    if causal:  # the only case in which theirs reads shorter texts
        compare(ours, theirs, input_ids=torch.randint(TEXT["num_tokens"], (2, 7)))


@pytest.mark.parametrize("causal", [False, True], ids=["both-sides", "causal"])
def test_tanh_on_the_gate_is_a_setting(oracle: Any, causal: bool, tmp_path: Any) -> None:
    theirs = randomise(oracle("g_mlp_pytorch").gMLP(**TEXT, act=nn.Tanh(), causal=causal), scale=0.15).eval()
    path, task = save(theirs, tmp_path / "m.safetensors"), "causal-lm" if causal else "masked-lm"
    ours, report = import_model(path, task=task, settings={"gate_activation": "tanh"})
    ids = torch.randint(TEXT["num_tokens"], (3, TEXT["seq_len"]))
    compare(ours, theirs, input_ids=ids)
    assert any("act=Identity" in note and "gate_activation" in note for note in report.notes)
    without, _ = import_model(path, task=task)
    with torch.no_grad():
        assert (without(input_ids=ids).logits - theirs(ids)).abs().max() > 1e-2
    ours.save_pretrained(tmp_path / "ours")
    compare(type(ours).from_pretrained(tmp_path / "ours").eval(), theirs, input_ids=ids)


@pytest.mark.parametrize("options", [{}, {"attn_dim": 8}, {"heads": 2}], ids=["plain", "attention", "heads"])
def test_images(oracle: Any, options: dict[str, Any], tmp_path: Any) -> None:
    theirs = randomise(oracle("g_mlp_pytorch").gMLPVision(**IMAGE, **options), scale=0.15).eval()
    ours, report = import_model(save(theirs, tmp_path / "m.safetensors"))
    assert report.task == "image-classification"
    assert (ours.config.image_size, ours.config.patch_size, ours.config.num_labels) == (16, 4, 5)
    compare(ours, theirs, pixel_values=torch.randn(3, 3, 16, 16))


def test_what_cannot_be_expressed_is_refused(oracle: Any, tmp_path: Any) -> None:
    library = oracle("g_mlp_pytorch")
    bare = library.gMLP(**{**TEXT, "num_tokens": None})
    with pytest.raises(MixlabError, match=r"to_embed\.weight"):
        import_model(save(bare, tmp_path / "bare.safetensors"))
    grey = library.gMLPVision(**IMAGE, channels=1)
    with pytest.raises(MixlabError, match="only RGB"):
        import_model(save(grey, tmp_path / "grey.safetensors"))
    wide = library.gMLPVision(**{**IMAGE, "image_size": (8, 16)})
    with pytest.raises(MixlabError, match="8 patches are not a square"):
        import_model(save(wide, tmp_path / "wide.safetensors"))
    with pytest.raises(MixlabError, match=r"unknown .*gate_activatoin.*did you mean 'gate_activation'"):
        import_model(save(library.gMLP(**TEXT), tmp_path / "m.safetensors"), settings={"gate_activatoin": "tanh"})
