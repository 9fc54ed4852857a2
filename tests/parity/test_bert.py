"""BERT: transformers' model and ours, with the same weights, say the same; its relative variants, against loops over every pair."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

import mixlab
from mixlab import MixlabError
from mixlab.modeling.convert import import_model
from mixlab.modeling.convert_back import foreign_state, write_foreign
from tests.modeling.tiny import randomise
from tests.reference import relative

ROWS = {
    "logits and hidden states with learned positions, segments and padding [transformers BertForMaskedLM]": "test_logits",
    "weights out and in again, both ways [transformers BertForMaskedLM.from_pretrained]": "test_out_and_in_again",
    "the backbone alone, and the old names of norms [transformers BertModel]": "test_files_of_the_backbone",
    "relative bias (+ rel pos): logits and gradients [loops over every pair]": "test_relative",
    "bias alone, no queries and keys (+ rel pos - attn): logits and gradients [loops over every pair]": "test_relative",
    "relative variants under padding: distances are those of the text [the same loops]": "test_relative_with_padding",
    "parameters of base and large [transformers BertForMaskedLM, BertModel; exact counts]": "test_counts",
    "parameters of the Transformers of Tables 3 and 4 [exact counts; the paper's figures]": "test_counts_of_the_ablations",
}

SIZES = {"vocab_size": 60, "num_hidden_layers": 3, "intermediate_size": 40, "max_position_embeddings": 24, "hidden_size": 32}
LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
HEADS, LENGTH = 4, 17


def theirs(heads: int = HEADS) -> Any:
    config = transformers.BertConfig(**SIZES, num_attention_heads=heads, hidden_dropout_prob=0, attention_probs_dropout_prob=0)
    return randomise(transformers.BertForMaskedLM(config), scale=0.1).eval()


def save(state: dict[str, Tensor], path: Path) -> str:
    save_file({name: tensor.contiguous().clone() for name, tensor in state.items()}, path)
    return str(path)


def both(tmp_path: Path, heads: int = HEADS) -> tuple[Any, Any]:
    model = theirs(heads)
    ours, report = import_model(save(model.state_dict(), tmp_path / "model.safetensors"), settings={"num_attention_heads": heads})
    assert (report.architecture, report.task, report.missing, report.unused) == ("bert", "masked-lm", [], [])
    return model, ours


def batch() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(3)
    ids, segments = torch.randint(0, 60, (2, LENGTH), generator=generator), torch.randint(0, 2, (2, LENGTH), generator=generator)
    mask = torch.ones_like(ids)
    mask[1, 11:] = 0
    return {"input_ids": ids, "token_type_ids": segments, "attention_mask": mask}


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=1e-5)


@pytest.mark.parametrize("heads", [1, 4])
@torch.no_grad()
def test_logits(heads: int, tmp_path: Path) -> None:
    model, ours = both(tmp_path, heads)
    inputs = batch()
    kept = inputs["attention_mask"].bool()
    expected, found = (m(**inputs, output_hidden_states=True) for m in (model, ours))
    assert expected.logits.std() > 0.1
    close(found.logits[kept], expected.logits[kept])
    assert len(found.hidden_states) == len(expected.hidden_states) == 4
    for mine, yours in zip(found.hidden_states[1:], expected.hidden_states[1:], strict=True):
        close(mine[kept], yours[kept])


@torch.no_grad()
def test_out_and_in_again(tmp_path: Path) -> None:
    model, ours = both(tmp_path)
    write_foreign(ours, "transformers", tmp_path / "back" / "model.safetensors")
    model.config.save_pretrained(tmp_path / "back")
    back, info = transformers.BertForMaskedLM.from_pretrained(tmp_path / "back", output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    for name, tensor in model.state_dict().items():
        assert torch.equal(back.state_dict()[name], tensor), name
    close(back.eval()(**batch()).logits, model(**batch()).logits)
    again, _ = import_model(str(tmp_path / "back" / "model.safetensors"), settings={"num_attention_heads": HEADS})
    for name, tensor in ours.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name


@pytest.mark.parametrize("old_names", [False, True], ids=["today", "gamma and beta"])
@torch.no_grad()
def test_files_of_the_backbone(old_names: bool, tmp_path: Path) -> None:
    model = transformers.BertModel(theirs().config)
    randomise(model, scale=0.1).eval()
    state = model.state_dict()
    if old_names:
        state = {n.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): t for n, t in state.items()}
        assert any(name.endswith("gamma") for name in state)
    ours, report = import_model(save(state, tmp_path / "model.safetensors"), settings={"num_attention_heads": HEADS})
    assert (report.task, report.missing, report.unused) == ("features", [], [])
    inputs = batch()
    kept = inputs["attention_mask"].bool()
    close(ours(**inputs).last_hidden_state[kept], model(**inputs).last_hidden_state[kept])
    write_foreign(ours, "transformers", tmp_path / "back" / "model.safetensors")
    model.config.save_pretrained(tmp_path / "back")
    back, info = transformers.BertModel.from_pretrained(tmp_path / "back", output_loading_info=True)
    assert all(name.startswith("pooler.") for name in info["missing_keys"])
    assert not info["unexpected_keys"]
    close(back.eval()(**inputs).last_hidden_state[kept], model(**inputs).last_hidden_state[kept])


# --- Distances in place of positions ---------------------------------------------------------------------------------

over_variants = pytest.mark.parametrize("positions", ["relative", "relative_alone"])
both_ways = pytest.mark.parametrize("task", ["masked-lm", "causal-lm"])


def variant(positions: str, task: str) -> Any:
    sizes = {"hidden_size": 12, "num_attention_heads": 3, "intermediate_size": 14, "vocab_size": 29, "num_hidden_layers": 2}
    model = mixlab.create("bert-tiny", task=task, positions=positions, max_position_embeddings=16, **sizes)
    return randomise(model, scale=0.4).double().eval()


def loops(p: dict[str, Tensor], text: Tensor, config: Any) -> Tensor:
    """The model for one text."""

    def norm(x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], p[f"{name}.weight"], p[f"{name}.bias"], config.layer_norm_eps)

    def linear(x: Tensor, name: str) -> Tensor:
        return x @ p[f"{name}.weight"].mT + p[f"{name}.bias"]

    x = norm(p["model.stem.tokens.weight"][text] + p["model.stem.segments.weight"][0], "model.body.norm")
    for layer in range(config.num_hidden_layers):
        block = f"model.body.stack.blocks.{layer}."
        own = {name.removeprefix(block + "attention."): tensor for name, tensor in p.items() if name.startswith(block + "attention.")}
        if config.positions == "relative_alone":
            attended = relative.distance_attention(x, own, config.num_attention_heads, causal=config.causal)
        else:
            bias = own["logit_bias.weight.taps"]
            attended = relative.self_attention(x, own, config.num_attention_heads, bias=bias, causal=config.causal)
        x = norm(x + attended, block + "attention_norm")
        x = norm(x + linear(F.gelu(linear(x, block + "ffn.widen")), block + "ffn.narrow"), block + "ffn_norm")
    x = norm(F.gelu(linear(x, "transform.dense")), "transform.norm")
    return x @ p["model.stem.tokens.weight"].mT + p["lm_head.bias"]


def text(batch: int, n: int) -> Tensor:
    return torch.randint(29, (batch, n), generator=torch.Generator().manual_seed(n))


@both_ways
@over_variants
def test_relative(positions: str, task: str) -> None:
    model, ids = variant(positions, task), text(2, 13)
    p = {name: parameter.detach().clone().requires_grad_() for name, parameter in model.named_parameters()}
    expected = torch.stack([loops(p, row, model.config) for row in ids])
    assert expected.std() > 0.1
    found = model(ids).logits
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    weights = torch.randn_like(found)
    (found * weights).sum().backward()
    (expected * weights).sum().backward()
    for name, parameter in model.named_parameters():
        wanted = p[name].grad if p[name].grad is not None else torch.zeros_like(parameter)
        assert parameter.grad is not None, name
        torch.testing.assert_close(parameter.grad, wanted, rtol=1e-8, atol=1e-8, msg=lambda said, name=name: f"{name}: {said}")


@both_ways
@over_variants
@torch.no_grad()
def test_relative_with_padding(positions: str, task: str) -> None:
    model, ids = variant(positions, task), text(3, 11)
    mask = torch.ones_like(ids)
    mask[0, :4] = 0
    mask[1, 7:] = 0
    mask[2, 3:5] = 0
    found = model(ids, attention_mask=mask).logits
    for row, real, logits in zip(ids, mask.bool(), found, strict=True):
        torch.testing.assert_close(logits[real], loops(dict(model.named_parameters()), row[real], model.config), rtol=1e-9, atol=1e-9)


@over_variants
@torch.no_grad()
def test_relative_with_a_cache(positions: str) -> None:
    model, ids = variant(positions, "causal-lm"), text(2, 16)
    whole, past, start = model(ids).logits, None, 0
    for n in (4, 1, 1, 7, 3):
        output = model(ids[:, start : start + n], past_key_values=past, use_cache=True)
        torch.testing.assert_close(output.logits, whole[:, start : start + n], rtol=1e-10, atol=1e-10)
        past, start = output.past_key_values, start + n


@over_variants
@torch.no_grad()
def test_relative_of_both_sides_becomes_causal(positions: str, tmp_path: Path) -> None:
    model = variant(positions, "masked-lm").float()
    model.save_pretrained(tmp_path / "both")
    causal, report = import_model(str(tmp_path / "both"), task="causal-lm")
    assert any("2 layers: relative bias" in note and "dropped 15" in note for note in report.notes)
    expected = loops({**dict(model.named_parameters()), **dict(causal.named_parameters())}, text(1, 9)[0], causal.config)
    close(causal(text(1, 9)).logits[0], expected)


def test_what_reads_by_distance_alone_shows_maps_and_no_attention() -> None:
    model = variant("relative_alone", "masked-lm")
    maps = model(text(2, 9), output_maps=True).maps
    torch.testing.assert_close(maps[0].sum(-1), torch.ones_like(maps[0][..., 0]))
    with pytest.raises(MixlabError, match="no attention to output"):
        model(text(2, 9), output_attentions=True)


# --- Counts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("preset", "sizes", "count"), [("bert-base", {}, 109_482_240), ("bert-large", LARGE, 335_141_888)])
def test_counts(preset: str, sizes: dict[str, int], count: int) -> None:
    """The published count has a pooler, d * d + d, which serves next-sentence prediction."""
    with torch.device("meta"):
        config = transformers.BertConfig(**sizes)
        lm, backbone = transformers.BertForMaskedLM(config), transformers.BertModel(config)
        ours = mixlab.create(preset)
    assert sum(p.numel() for p in backbone.parameters()) == count
    d = config.hidden_size
    assert mixlab.account(preset, task="features").params == count - (d * d + d)
    assert mixlab.account(preset).params == sum(p.numel() for p in lm.parameters()) == sum(p.numel() for p in ours.parameters())


BLOCK, TABLE, NORM, BIAS = 7_087_872, 32_000 * 768, 2 * 768, 12 * (2 * 128 - 1)
ABLATIONS = {
    "bert-l6": (67_203_072, 6 * BLOCK + TABLE + 128 * 768 + NORM),
    "bert-l12": (109_730_304, 12 * BLOCK + TABLE + 128 * 768 + NORM),
    "bert-l24": (194_784_768, 24 * BLOCK + TABLE + 128 * 768 + NORM),
    "bert-l48": (364_893_696, 48 * BLOCK + TABLE + 128 * 768 + NORM),
    "bert-l12-relative": (109_668_720, 12 * (BLOCK + BIAS) + TABLE + NORM),
    "bert-l12-relative-alone": (95_494_512, 12 * (BLOCK + BIAS - 2 * (768 * 768 + 768)) + TABLE + NORM),
}


@pytest.mark.parametrize("preset", ABLATIONS)
def test_counts_of_the_ablations(preset: str) -> None:
    from mixlab.modeling.architecture import find_preset

    count, closed_form = ABLATIONS[preset]
    assert mixlab.account(preset).params == count == closed_form
    with torch.device("meta"):
        assert sum(p.numel() for p in mixlab.create(preset).parameters()) == count
    published = find_preset(preset)[1].published
    assert published == ("96M" if preset == "bert-l12-relative-alone" else f"{count / 1e6:.0f}M")


# --- Bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"num_attention_heads": 7}, "hidden_size 128 cannot be split into num_attention_heads=7"),
        ({"positions": "rotary"}, "positions"),
        ({"modality": "audio"}, "reads text, not audio"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(MixlabError, match=said) as caught:
        mixlab.config("bert-tiny", **settings)
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be_read_or_written(tmp_path: Path) -> None:
    state = load_file(save(theirs().bert.state_dict(), tmp_path / "m.safetensors"))
    segments = "embeddings.token_type_embeddings.weight"
    with pytest.raises(MixlabError, match="a RoBERTa, whose positions begin elsewhere"):
        import_model(save({**state, segments: state[segments][:1]}, tmp_path / "roberta.safetensors"))
    decoder = {"cls.predictions.decoder.weight": state["embeddings.word_embeddings.weight"] + 1}
    with pytest.raises(MixlabError, match="the decoder is not the table of tokens"):
        import_model(save({f"bert.{name}": tensor for name, tensor in state.items()} | decoder, tmp_path / "untied.safetensors"))
    for positions in ("relative", "relative_alone"):
        with pytest.raises(MixlabError, match="transformers has no place for"):
            foreign_state(variant(positions, "masked-lm"), "transformers")
    with pytest.raises(MixlabError, match="17 tokens, but this mixlab-bert reads at most 16"):
        variant("relative", "masked-lm")(text(1, 17))
