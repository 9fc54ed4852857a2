"""FNet: transformers' model and ours, with the same weights, say the same, but for padding, which theirs reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch.utils.flop_counter import FlopCounterMode

import mixlab
from mixlab import MixlabError
from mixlab.modeling.account import difference
from mixlab.modeling.architecture import find_preset
from mixlab.modeling.convert import import_model
from mixlab.modeling.convert_back import write_foreign
from tests.modeling.tiny import randomise

ROWS = {
    "FNet: the same weights give the same logits at every length, and go back [transformers FNetForMaskedLM]": "test_logits_both_ways",
    "FNet: a file of the bare model, and of one for pretraining [transformers FNetModel, FNetForPreTraining]": "test_other_files",
    "FNet: the transform alone [transformers FNetBasicFourierTransform]": "test_the_transform",
    "FNet: exact parameters and multiply-adds, as published [transformers, paper]": "test_counts",
    "FNet: theirs reads padding behind a mask, ours refuses the mask [transformers FNetModel]": "test_padding_leaks_there_and_not_here",
    "FNet: what it cannot do, and what is not its layout, is refused": "test_what_is_refused",
}

SIZES = {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 3, "intermediate_size": 40, "max_position_embeddings": 24}


def theirs(kind: str, **more: Any) -> Any:
    torch.manual_seed(0)
    config = transformers.FNetConfig(**{**SIZES, "hidden_dropout_prob": 0.0, **more})
    return randomise(getattr(transformers, kind)(config), scale=0.1).eval()


def saved(model: Any, path: Path) -> str:
    save_file({name: tensor.contiguous().clone() for name, tensor in model.state_dict().items()}, path)
    return str(path)


def text(length: int) -> dict[str, torch.Tensor]:
    return {"input_ids": torch.randint(0, 60, (2, length)), "token_type_ids": torch.randint(0, 4, (2, length))}


@torch.no_grad()
@pytest.mark.parametrize("act", ["gelu_new", "gelu"])
def test_logits_both_ways(act: str, tmp_path: Path) -> None:
    model = theirs("FNetForMaskedLM", hidden_act=act)
    settings = {"hidden_act": "gelu"} if act == "gelu" else {}
    ours, report = import_model(saved(model, tmp_path / "in.safetensors"), settings=settings)
    assert (report.architecture, report.layout, report.task, report.missing, report.unused) == ("fnet", "transformers", "masked-lm", [], [])
    for length in (1, 7, 16, 24):
        inputs = text(length)
        expected = model(**inputs).logits
        assert expected.std() > 0.1
        torch.testing.assert_close(ours(**inputs).logits, expected, rtol=0, atol=1e-5)
    bare = {"input_ids": inputs["input_ids"]}  # all of segment 0
    torch.testing.assert_close(ours(**bare).logits, model(**bare).logits, rtol=0, atol=1e-5)
    write_foreign(ours, "transformers", tmp_path / "out.safetensors")
    back = theirs("FNetForMaskedLM", hidden_act=act, initializer_range=0.5)
    left = back.load_state_dict(load_file(tmp_path / "out.safetensors"), strict=False)
    assert (sorted(left.missing_keys), left.unexpected_keys) == (["fnet.pooler.dense.bias", "fnet.pooler.dense.weight"], [])
    assert torch.equal(back(**inputs).logits, expected)


@torch.no_grad()
def test_other_files(tmp_path: Path) -> None:
    inputs = text(24)
    model = theirs("FNetModel", use_tpu_fourier_optimizations=True, tpu_short_seq_length=24)
    ours, report = import_model(saved(model, tmp_path / "bare.safetensors"))
    assert report.task == "features"
    # Theirs multiplies by matrices of single precision here.
    torch.testing.assert_close(ours(**inputs).last_hidden_state, model(**inputs).last_hidden_state, rtol=0, atol=1e-4)
    model = theirs("FNetForPreTraining")
    ours, report = import_model(saved(model, tmp_path / "pretrained.safetensors"))
    assert report.task == "masked-lm"
    assert "next-sentence prediction are left behind" in report.notes[0]
    torch.testing.assert_close(ours(**inputs).logits, model(**inputs).prediction_logits, rtol=0, atol=1e-5)
    features, _ = import_model(saved(theirs("FNetModel"), tmp_path / "model.safetensors"))
    write_foreign(features, "transformers", tmp_path / "out.safetensors")
    again, _ = import_model(str(tmp_path / "out.safetensors"))
    assert torch.equal(again(**inputs).last_hidden_state, features(**inputs).last_hidden_state)


def test_the_transform() -> None:
    from transformers.models.fnet.modeling_fnet import FNetBasicFourierTransform

    from mixlab.layers import Tokens
    from mixlab.layers.fourier import FourierMixing

    x = torch.randn(2, 24, 32)
    (expected,) = FNetBasicFourierTransform(transformers.FNetConfig(**SIZES))(x)
    torch.testing.assert_close(FourierMixing()(Tokens(x)), expected, rtol=0, atol=1e-5)
    summed = sum(m @ x @ w for m, w in FourierMixing().terms(24, 32))
    torch.testing.assert_close(summed, expected, rtol=0, atol=1e-4)


def test_counts() -> None:
    """Theirs has a pooler besides, d d + d, and next-sentence prediction, 2 d + 2."""
    d = 768
    with torch.device("meta"):
        model = transformers.FNetModel(transformers.FNetConfig())
        pretraining = transformers.FNetForPreTraining(transformers.FNetConfig())
        built = mixlab.create("fnet-base")
    counts = [sum(p.numel() for p in m.parameters()) for m in (model, pretraining, built)]
    assert mixlab.account("fnet-base", task="features").params + d * d + d == counts[0] == 82_861_056
    assert mixlab.account("fnet-base").params + d * d + d + 2 * d + 2 == counts[1] == 83_486_722
    assert mixlab.account("fnet-base").params == counts[2]
    assert find_preset("fnet-base")[1].published == "83M"
    assert difference(counts[2], "83M") == difference(counts[0], "83M") == "none"
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(input_ids=torch.zeros(1, 512, dtype=torch.long, device="meta"))
    # Their pooler reads one token. Neither count has the Fourier transforms.
    assert 2 * (mixlab.account("fnet-base", task="features").macs + d * d) == counter.get_total_flops()
    assert counter.get_total_flops() / 2e9 == pytest.approx(29.294, abs=5e-4)


@torch.no_grad()
def test_padding_leaks_there_and_not_here(tmp_path: Path) -> None:
    model = theirs("FNetModel")
    ours, _ = import_model(saved(model, tmp_path / "m.safetensors"))
    ids = torch.randint(5, 60, (1, 12))
    padded, otherwise = (torch.cat([ids, torch.full((1, 8), pad)], dim=1) for pad in (3, 4))
    mask = torch.tensor([[1] * 12 + [0] * 8])
    seen = [model(input_ids=x, attention_mask=mask).last_hidden_state[:, :12] for x in (padded, otherwise)]
    alone = model(input_ids=ids).last_hidden_state
    assert (seen[0] - seen[1]).abs().max() > 0.5  # what stands behind the mask is read
    assert (seen[0] - alone).abs().max() > 0.5  # and a padded text is another text
    for x in (padded, otherwise):
        with pytest.raises(MixlabError, match="cannot hide padding; batch texts of equal length"):
            ours(input_ids=x, attention_mask=mask)
    torch.testing.assert_close(ours(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state, alone, rtol=0, atol=1e-5)


def test_what_is_refused(tmp_path: Path) -> None:
    model = theirs("FNetForMaskedLM", tie_word_embeddings=False)
    with pytest.raises(MixlabError, match="the decoder is not the table of tokens"):
        import_model(saved(model, tmp_path / "untied.safetensors"))
    with pytest.raises(MixlabError, match="cannot be causal"):
        mixlab.create("fnet-tiny", task="causal-lm")
    bad: list[tuple[dict[str, Any], str]] = [
        ({"causal": True, "pooling": "last"}, "cannot be causal"),
        ({"modality": "audio"}, "reads text, not audio"),
        ({"intermediate_size": 0}, "intermediate_size is 0; it must be at least 1"),
        ({"hidden_act": "relu"}, "hidden_act"),
        ({"max_position_embeddings": None}, "max_position_embeddings is missing"),
    ]
    for settings, reason in bad:
        with pytest.raises(MixlabError, match=reason):
            mixlab.config("fnet-tiny", **settings)
    small = mixlab.create("fnet-tiny", task="features", num_hidden_layers=1)
    with pytest.raises(MixlabError, match="129 tokens, but this mixlab-fnet reads at most 128"):
        small(input_ids=torch.ones(1, 129, dtype=torch.long))
    assert "positions kept for 128 tokens; the new ones are zero" in small.resize_length(130)
    assert small(input_ids=torch.ones(1, 130, dtype=torch.long)).last_hidden_state.shape == (1, 130, 128)
    with pytest.raises(MixlabError, match="has no attention"):
        small(input_ids=torch.ones(1, 8, dtype=torch.long), output_attentions=True)
