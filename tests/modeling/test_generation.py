"""Causal models generate: with a cache as without, in a batch as alone, by every way of decoding that transformers has."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, StaticCache

from mixlab import MixlabError
from mixlab.layers.tokens import Tokens
from mixlab.modeling.architecture import load
from mixlab.modeling.cache import SequenceCacheLayer
from tests.modeling.tiny import LENGTH, VOCABULARY, archs_with, blocks, tiny

CAUSAL = archs_with("causal")
PAD = 0


def variants() -> list[Any]:
    """Every causal architecture; where W has structures and heads, each of them.

    Untied, since a random model whose output matrix is its embeddings tends to say the last token again, for ever.
    """
    found = []
    for arch in CAUSAL:
        fields = load(arch).field_names()
        structures = ("dense", "toeplitz") if "spatial_structure" in fields else (None,)
        heads = (1, 2) if "gate_heads" in fields else (None,)
        for structure, count in ((s, h) for s in structures for h in heads):
            given = {"spatial_structure": structure, "gate_heads": count, "spatial_init_std": 0.3, "tie_word_embeddings": False}
            settings = {name: value for name, value in given.items() if name in fields and value is not None}
            found.append(pytest.param((arch, settings), id="-".join(str(x) for x in (arch, structure, count) if x is not None)))
    return found


@pytest.fixture(params=variants())
def model(request: pytest.FixtureRequest) -> Any:
    arch, settings = request.param
    return tiny(arch, "causal-lm", pad_token_id=PAD, **settings)


@pytest.fixture(params=CAUSAL)
def simple(request: pytest.FixtureRequest) -> Any:
    return tiny(request.param, "causal-lm", pad_token_id=PAD)


def ids(batch: int, n: int, seed: int = 0) -> Tensor:
    return torch.randint(1, VOCABULARY, (batch, n), generator=torch.Generator().manual_seed(seed))


def generate(model: Any, prompt: Tensor, new: int = 6, **options: Any) -> Tensor:
    options = {"do_sample": False, "attention_mask": torch.ones_like(prompt), **options}
    return model.generate(prompt, max_new_tokens=new, **options)


def padded(rows: list[Tensor], side: str) -> tuple[Tensor, Tensor]:
    """Texts of different lengths as one batch, and its mask; what stands at the padding is any token, not only PAD."""
    n = max(len(row) for row in rows)
    batch, mask = torch.full((len(rows), n), 7), torch.zeros(len(rows), n, dtype=torch.long)
    for i, row in enumerate(rows):
        place = slice(n - len(row), n) if side == "left" else slice(0, len(row))
        batch[i, place], mask[i, place] = row, 1
    return batch, mask


# --- The cache -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunks", [[1] * LENGTH, [5, 1, 1, 8, 1, LENGTH - 16], [LENGTH - 1, 1]], ids=["steps", "chunks", "prefill"])
@torch.no_grad()
def test_cached_logits_are_those_of_the_whole_text(model: Any, chunks: list[int]) -> None:
    text, past, start = ids(3, LENGTH), None, 0
    whole = model(text).logits
    for n in chunks:
        output = model(text[:, start : start + n], past_key_values=past, use_cache=True)
        torch.testing.assert_close(output.logits, whole[:, start : start + n], atol=1e-5, rtol=0)
        past, start = output.past_key_values, start + n
    assert past.get_seq_length() == LENGTH == start


@pytest.mark.parametrize("chunks", [[9, 1, 1, 1], [6, 3, 3]], ids=str)  # the first holds a token of every row
@torch.no_grad()
def test_cached_logits_of_a_left_padded_batch(model: Any, chunks: list[int]) -> None:
    rows = [ids(1, n, seed=n)[0] for n in (12, 7, 9)]
    batch, mask = padded(rows, "left")
    cache, end, parts = DynamicCache(config=model.config), 0, []
    for n in chunks:
        end += n
        parts.append(model(batch[:, end - n : end], attention_mask=mask[:, :end], past_key_values=cache).logits)
    logits = torch.cat(parts, 1)
    for i, row in enumerate(rows):
        torch.testing.assert_close(logits[i, -len(row) :], model(row[None]).logits[0], atol=1e-5, rtol=0)


@pytest.mark.parametrize("side", ["left", "right"])
@torch.no_grad()
def test_padding_on_either_side_changes_nothing(model: Any, side: str) -> None:
    rows = [ids(1, n, seed=n)[0] for n in (LENGTH, 1, 9)]
    batch, mask = padded(rows, side)
    logits = model(batch, attention_mask=mask).logits
    for i, row in enumerate(rows):
        torch.testing.assert_close(logits[i, mask[i].bool()], model(row[None]).logits[0], atol=1e-5, rtol=0)


def filled(model: Any, batch: int = 3, n: int = 8) -> tuple[DynamicCache, Tensor]:
    cache, text = DynamicCache(config=model.config), ids(batch, n)
    with torch.no_grad():
        model(text, past_key_values=cache)
    return cache, text


CHANGES: dict[str, Any] = {  # name: (change of the cache, the same change of the texts)
    "crop": (lambda cache: cache.crop(-3), lambda text: text[:, :-3]),
    "crop nothing": (lambda cache: cache.crop(0), lambda text: text),
    "reorder": (lambda cache: cache.reorder_cache(torch.tensor([2, 2, 0])), lambda text: text[[2, 2, 0]]),
    "repeat": (lambda cache: cache.batch_repeat_interleave(2), lambda text: text.repeat_interleave(2, 0)),
    "select": (lambda cache: cache.batch_select_indices(torch.tensor([1])), lambda text: text[[1]]),
}


@pytest.mark.parametrize("change", CHANGES)
@torch.no_grad()
def test_a_changed_cache_is_that_of_the_changed_text(model: Any, change: str) -> None:
    cache, text = filled(model)
    of_cache, of_text = CHANGES[change]
    of_cache(cache)
    text = of_text(text)
    assert cache.get_seq_length() == text.shape[1]
    more = ids(len(text), 2, seed=5)
    whole = model(torch.cat([text, more], 1)).logits[:, -2:]
    torch.testing.assert_close(model(more, past_key_values=cache).logits, whole, atol=1e-5, rtol=0)


def test_the_cache_of_a_configuration_is_ours(simple: Any) -> None:
    cache = DynamicCache(config=simple.config)
    assert [type(layer) for layer in cache.layers] == [SequenceCacheLayer] * simple.config.num_hidden_layers
    cache, _ = filled(simple)
    cache.reset()
    assert cache.get_seq_length() == 0


def test_caches_of_other_kinds_are_refused(simple: Any) -> None:
    prompt = ids(1, 4)
    for past in (DynamicCache(), StaticCache(config=tiny_llama(), max_cache_len=9), "a cache"):
        with pytest.raises(MixlabError, match=r"use DynamicCache\(config=model.config\)"):
            simple(prompt, past_key_values=past)
    with pytest.raises(MixlabError, match="pass the number of tokens to forget as a negative number"):
        filled(simple)[0].crop(3)


def tiny_llama() -> Any:
    from transformers import LlamaConfig

    return LlamaConfig(num_hidden_layers=1, hidden_size=8, num_attention_heads=1, intermediate_size=8, vocab_size=9)


@pytest.mark.parametrize("kind", ["static", "offloaded", "offloaded_static", "quantized"])
def test_other_cache_implementations_are_refused_in_one_line(simple: Any, kind: str) -> None:
    with pytest.raises(MixlabError) as caught:
        generate(simple, ids(1, 4), cache_implementation=kind)
    assert "\n" not in str(caught.value)
    assert kind in str(caught.value)


def test_a_new_token_does_not_run_the_prompt_again(simple: Any) -> None:
    seen: list[int] = []
    block = blocks(simple)[0]
    block.register_forward_pre_hook(lambda _, args: seen.append(args[0].x.shape[1] if isinstance(args[0], Tokens) else -1))
    generate(simple, ids(2, 9), new=5, use_cache=True)
    assert seen == [9, 1, 1, 1, 1]
    seen.clear()
    generate(simple, ids(2, 9), new=3, use_cache=False)
    assert seen == [9, 10, 11]


def test_the_expansion_sees_only_new_tokens() -> None:
    """The same, by the rows that go through U itself."""
    model, rows = tiny("gmlp", "causal-lm"), []
    model.model.body.blocks[0].U.register_forward_hook(lambda _, args, __: rows.append(args[0].shape[1]))
    generate(model, ids(1, 7), new=4)
    assert rows == [7, 1, 1, 1]


# --- Ways of decoding ------------------------------------------------------------------------------------------------


@torch.no_grad()
def greedy_by_hand(model: Any, prompt: Tensor, new: int) -> Tensor:
    for _ in range(new):
        prompt = torch.cat([prompt, model(prompt).logits[:, -1:].argmax(-1)], 1)
    return prompt


def test_greedy(model: Any) -> None:
    prompt = ids(6, 8)
    expected = greedy_by_hand(model, prompt, 10)
    assert torch.equal(generate(model, prompt, 10, use_cache=True), expected)
    assert torch.equal(generate(model, prompt, 10, use_cache=False), expected)
    assert any(row.unique().numel() > 1 for row in expected[:, 8:])  # not one token forever


DECODING: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampling": {"do_sample": True, "top_k": 0},
    "top-k and temperature": {"do_sample": True, "top_k": 5, "temperature": 1.7},
    "several samples": {"do_sample": True, "num_return_sequences": 3},
    "beams": {"num_beams": 4},
    "several beams": {"num_beams": 4, "num_return_sequences": 4, "length_penalty": 0.5},
    "beam sampling": {"num_beams": 3, "do_sample": True},
    "penalties": {"repetition_penalty": 1.5, "no_repeat_ngram_size": 2},
}


@pytest.mark.parametrize("decoding", DECODING)
def test_the_cache_changes_no_decoding(model: Any, decoding: str) -> None:
    options, prompt, outputs = DECODING[decoding], ids(2, 6), []
    for use_cache in (True, False):
        torch.manual_seed(11)
        outputs.append(generate(model, prompt, 8, use_cache=use_cache, **options))
    assert torch.equal(*outputs)
    assert outputs[0].shape == (2 * options.get("num_return_sequences", 1), 14)


@pytest.mark.parametrize("arch", CAUSAL)
def test_assisted_generation_is_greedy(arch: str) -> None:
    """A smaller model proposes; what it proposes wrongly is cropped from the cache. Good and bad assistants end alike."""
    model = tiny(arch, "causal-lm", pad_token_id=PAD)
    prompt = ids(1, 6)
    expected = greedy_by_hand(model, prompt, 10)
    for assistant in (tiny(arch, "causal-lm", pad_token_id=PAD, num_hidden_layers=1, seed=5), model):
        assert torch.equal(generate(model, prompt, 10, assistant_model=assistant), expected)
    assert torch.equal(generate(model, prompt, 10, prompt_lookup_num_tokens=2), expected)


@pytest.mark.parametrize("options", [{"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.5}, {"penalty_alpha": 0.6, "top_k": 4}])
def test_decodings_that_transformers_moved_out_are_not_run(simple: Any, options: dict[str, Any]) -> None:
    """Group beams and contrastive search are remote code since transformers 5: an error, not another kind of decoding."""
    with pytest.raises((ValueError, OSError)):
        generate(simple, ids(1, 4), **options)


@pytest.mark.parametrize("options", [{}, {"num_beams": 3}], ids=["greedy", "beams"])
def test_each_row_of_a_batch_generates_what_it_would_alone(model: Any, options: dict[str, Any]) -> None:
    rows = [ids(1, n, seed=n)[0] for n in (9, 3, 6)]
    batch, mask = padded(rows, "left")
    together = generate(model, batch, 7, attention_mask=mask, **options)
    for i, row in enumerate(rows):
        assert torch.equal(together[i, 9:], generate(model, row[None], 7, **options)[0, len(row) :])


@pytest.mark.parametrize("use_cache", [True, False])
@pytest.mark.parametrize("options", [{}, {"num_beams": 3}], ids=["greedy", "beams"])
def test_prompts_padded_on_the_right_are_continued_too(model: Any, options: dict[str, Any], use_cache: bool) -> None:
    """The first new token follows the last real one, not the padding behind it."""
    rows = [ids(1, n, seed=n)[0] for n in (9, 3, 6)]
    batch, mask = padded(rows, "right")
    together = generate(model, batch, 7, attention_mask=mask, use_cache=use_cache, **options)
    assert torch.equal(together[:, :9], batch)
    for i, row in enumerate(rows):
        assert torch.equal(together[i, 9:], generate(model, row[None], 7, **options)[0, len(row) :])


def test_embeddings_as_prompt(simple: Any) -> None:
    prompt = ids(2, 6)
    embedded = simple.get_input_embeddings()(prompt)
    new = simple.generate(inputs_embeds=embedded, attention_mask=torch.ones_like(prompt), max_new_tokens=5, do_sample=False)
    assert torch.equal(new, greedy_by_hand(simple, prompt, 5)[:, 6:])


def test_an_end_token_ends_a_row(simple: Any) -> None:
    prompt = ids(2, 6)
    free = generate(simple, prompt, 6)
    end = int(free[0, 7])
    stopped = generate(simple, prompt, 6, eos_token_id=end, pad_token_id=PAD)
    assert (stopped[0, 8:] == PAD).all()


# --- Refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("use_cache", [True, False])
def test_the_length_cap(simple: Any, use_cache: bool) -> None:
    prompt = ids(1, LENGTH - 2)
    assert generate(simple, prompt, 3, use_cache=use_cache).shape[1] == LENGTH + 1  # the last token is written, not read
    if simple.config.traits.length == "any":  # then max_position_embeddings caps nothing
        assert generate(simple, prompt, 4, use_cache=use_cache).shape[1] == LENGTH + 2
        return
    with pytest.raises(MixlabError) as caught:
        generate(simple, prompt, 4, use_cache=use_cache)
    assert f"{LENGTH + 1} tokens, but this" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("task", ["masked-lm", "sequence-classification", "features"])
@pytest.mark.parametrize("arch", CAUSAL)
def test_an_encoder_refuses_to_generate(arch: str, task: str) -> None:
    model = tiny(arch, task)
    assert not model.can_generate()
    with pytest.raises(MixlabError, match="cannot generate; build or load the model with task='causal-lm'"):
        model.generate(ids(1, 3))


@pytest.mark.parametrize("arch", CAUSAL)
def test_an_encoder_refuses_a_cache(arch: str) -> None:
    with pytest.raises(MixlabError, match="a cache needs a causal model"):
        tiny(arch, "features", causal=False, pooling="cls")(ids(1, 3), use_cache=True)
