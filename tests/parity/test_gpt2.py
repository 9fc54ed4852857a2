"""GPT-2: transformers' model and ours, with the same weights, say the same and write the same."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

import mixlab
from mixlab import MixlabError
from mixlab.modeling.convert import import_model
from mixlab.modeling.convert_back import write_foreign
from tests.modeling.tiny import randomise

ROWS = {
    "GPT-2: logits, loss and every hidden state, with padding [transformers GPT2LMHeadModel]": "test_logits",
    "GPT-2: greedy generation and beams with a cache [transformers GPT2LMHeadModel.generate]": "test_generation",
    "GPT-2: logits from a cache, step by step [transformers GPT2LMHeadModel]": "test_cached_steps",
    "GPT-2: weights out and in again, both ways [transformers GPT2LMHeadModel.from_pretrained]": "test_out_and_in_again",
    "GPT-2: the files of the Hub, without prefix and with triangles [transformers GPT2Model]": "test_files_of_the_hub",
    "GPT-2: parameters of all sizes [exact counts; transformers]": "test_counts",
    "GPT-2: weights that write into the residual stream begin smaller [transformers]": "test_initialisation",
}

COUNTS = {"gpt2": 124_439_808, "gpt2-medium": 354_823_168, "gpt2-large": 774_030_080, "gpt2-xl": 1_557_611_200}
VOCABULARY, LENGTH = 61, 24


def theirs(heads: int = 4, **more: Any) -> Any:
    none = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 0, "eos_token_id": 0}
    sizes = {"vocab_size": VOCABULARY, "n_positions": LENGTH, "n_embd": 32, "n_layer": 3, "n_head": heads}
    return randomise(transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **none, **more)), scale=0.3).eval()


def save(model: Any, path: Path) -> str:
    save_file({name: tensor.clone().contiguous() for name, tensor in model.state_dict().items()}, path)
    return str(path)


def both(tmp_path: Path, heads: int = 4, **more: Any) -> tuple[Any, Any]:
    model = theirs(heads, **more)
    ours, report = import_model(save(model, tmp_path / "m.safetensors"), settings={"num_attention_heads": heads, "eos_token_id": 0})
    assert (report.architecture, report.layout, report.task, report.missing, report.unused) == ("gpt2", "transformers", "causal-lm", [], [])
    return model, ours


def ids(batch: int, n: int) -> Tensor:
    return torch.randint(1, VOCABULARY, (batch, n), generator=torch.Generator().manual_seed(n))


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=1e-5)


@pytest.mark.parametrize("heads", [1, 4])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@torch.no_grad()
def test_logits(heads: int, tied: bool, tmp_path: Path) -> None:
    model, ours = both(tmp_path, heads, tie_word_embeddings=tied)
    assert ours.config.tie_word_embeddings == tied
    text = ids(3, 17)
    expected = model(text, labels=text, output_hidden_states=True)
    assert expected.logits.std() > 0.1
    found = ours(input_ids=text, labels=text, output_hidden_states=True)
    close(found.logits, expected.logits)
    close(found.loss, expected.loss)
    for mine, yours in zip(found.hidden_states, expected.hidden_states, strict=True):
        close(mine, yours)
    mask = torch.ones_like(text)
    mask[1, :6] = 0  # theirs has to be told the places of a text that is padded on the left
    mask[2, 9:] = 0
    places = (mask.cumsum(1) - 1).clamp(min=0)
    expected = model(text, attention_mask=mask, position_ids=places).logits
    close(ours(input_ids=text, attention_mask=mask).logits[mask.bool()], expected[mask.bool()])


@pytest.mark.parametrize("more", [{"do_sample": False}, {"num_beams": 3}], ids=["greedy", "beams"])
@torch.no_grad()
def test_generation(more: dict[str, Any], tmp_path: Path) -> None:
    model, ours = both(tmp_path)
    prompt = ids(3, 7)
    mask = torch.ones_like(prompt)
    mask[1, :4] = 0
    options = {"attention_mask": mask, "max_new_tokens": 14, "pad_token_id": 0, "eos_token_id": None, **more}
    expected = model.generate(prompt, **options)
    assert expected.shape == (3, 21)
    assert len({tuple(row.tolist()) for row in expected[:, 7:]}) == 3
    assert torch.equal(ours.generate(prompt, **options), expected)
    assert torch.equal(ours.generate(prompt, **options, use_cache=False), expected)


@torch.no_grad()
def test_cached_steps(tmp_path: Path) -> None:
    model, ours = both(tmp_path)
    text, past, theirs_past, start = ids(2, LENGTH), None, None, 0
    for n in (5, 1, 1, 6, LENGTH - 13):
        step = text[:, start : start + n]
        output, expected = ours(step, past_key_values=past, use_cache=True), model(step, past_key_values=theirs_past, use_cache=True)
        close(output.logits, expected.logits)
        past, theirs_past, start = output.past_key_values, expected.past_key_values, start + n
    assert past.get_seq_length() == LENGTH
    with pytest.raises(MixlabError, match=f"{LENGTH + 1} tokens, but .* at most {LENGTH}"):
        ours(text[:, :1], past_key_values=past, use_cache=True)


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@torch.no_grad()
def test_out_and_in_again(tied: bool, tmp_path: Path) -> None:
    model, ours = both(tmp_path, tie_word_embeddings=tied)
    write_foreign(ours, "transformers", tmp_path / "back" / "model.safetensors")
    model.config.save_pretrained(tmp_path / "back")
    back, info = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "back", output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    for name, tensor in model.state_dict().items():
        assert torch.equal(back.state_dict()[name], tensor), name
    close(back.eval()(ids(2, 9)).logits, ours(ids(2, 9)).logits)


@torch.no_grad()
def test_files_of_the_hub(tmp_path: Path) -> None:
    """The released files name the backbone's tensors alone, and keep the causal triangle of every layer."""
    model = theirs()
    state = {name: tensor.clone().contiguous() for name, tensor in model.transformer.state_dict().items()}
    for layer in range(3):
        state[f"h.{layer}.attn.bias"] = torch.ones(1, 1, LENGTH, LENGTH).tril()
        state[f"h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
    save_file(state, tmp_path / "m.safetensors")
    ours, report = import_model(str(tmp_path / "m.safetensors"), settings={"num_attention_heads": 4})
    assert (report.task, report.missing, report.unused) == ("causal-lm", [], [])
    close(ours(ids(2, 9)).logits, model(ids(2, 9)).logits)
    backbone, _ = import_model(str(tmp_path / "m.safetensors"), task="features", settings={"num_attention_heads": 4})
    assert backbone.config.causal
    close(backbone(ids(2, 9)).last_hidden_state, model.transformer(ids(2, 9)).last_hidden_state)


@pytest.mark.parametrize("preset", COUNTS)
def test_counts(preset: str) -> None:
    config = mixlab.config(preset)
    sizes = {"n_embd": config.hidden_size, "n_layer": config.num_hidden_layers, "n_head": config.num_attention_heads}
    with torch.device("meta"):
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes))
        ours = mixlab.create(preset)
    assert mixlab.account(preset).params == COUNTS[preset]
    assert sum(p.numel() for p in model.parameters()) == COUNTS[preset]
    assert sum(p.numel() for p in ours.parameters()) == COUNTS[preset]


def test_initialisation() -> None:
    settings = {"vocab_size": 90, "num_hidden_layers": 6, "hidden_size": 96, "intermediate_size": 384, "num_attention_heads": 4}
    ours = mixlab.create("gpt2", **settings, bos_token_id=None, eos_token_id=None).model.body.blocks
    sizes = {"vocab_size": 90, "n_layer": 6, "n_embd": 96, "n_head": 4}
    model = transformers.GPT2Model(transformers.GPT2Config(**sizes)).h
    for mine, yours in zip(ours, model, strict=True):
        for layer, conv in ((mine.attention.out, yours.attn.c_proj), (mine.ffn.narrow, yours.mlp.c_proj)):
            assert layer.weight.std().item() == pytest.approx(0.02 / math.sqrt(12), rel=0.05)
            assert conv.weight.std().item() == pytest.approx(layer.weight.std().item(), rel=0.05)
        assert mine.ffn.widen.weight.std().item() == pytest.approx(0.02, rel=0.05)


def test_causal_unless_the_task_needs_both_sides() -> None:
    assert mixlab.create("gpt2-tiny", task="sequence-classification").config.causal
    assert mixlab.create("gpt2-tiny", task="sequence-classification").config.pooling == "last"
    assert mixlab.create("gpt2-tiny", task="features").config.causal
    assert not mixlab.create("gpt2-tiny", task="masked-lm").config.causal


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"num_attention_heads": 7}, "hidden_size 128 cannot be split into num_attention_heads=7"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0; it must be at least 1"),
        ({"intermediate_size": 0}, "intermediate_size is 0; it must be at least 1"),
        ({"attention_dropout": 1.0}, "attention_dropout is 1.0"),
        ({"modality": "audio"}, "reads text, not audio"),
        ({"max_position_embeddings": None}, "max_position_embeddings is missing"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(MixlabError, match=said) as caught:
        mixlab.config("gpt2-tiny", **settings)
    assert "\n" not in str(caught.value)


def test_files_that_do_not_fit(tmp_path: Path) -> None:
    state = load_file(save(theirs(), tmp_path / "m.safetensors"))
    del state["transformer.h.1.mlp.c_proj.weight"]
    save_file(state, tmp_path / "less.safetensors")
    with pytest.raises(MixlabError, match=r"lacks model\.body\.blocks\.1\.ffn\.narrow\.weight"):
        import_model(str(tmp_path / "less.safetensors"))
    with pytest.raises(MixlabError, match="vocab_size=61, and gpt2 has 50257"):
        import_model(str(tmp_path / "m.safetensors"), preset="gpt2")
