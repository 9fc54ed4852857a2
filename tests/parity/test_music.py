"""Music Transformer: the model against loops that gather the key of every pair of tokens."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import mixlab
from mixlab import MixlabError
from tests.modeling.tiny import randomise
from tests.reference import relative

ROWS = {
    "logits and all gradients [loops that gather every key, O(n^2 d)]": "test_logits_and_gradients",
    "padding on both sides: distances are those of the text [the same loops]": "test_padding",
    "decoding with a cache, step by step and by beams [recomputing everything]": "test_generation",
    "the skewing keeps no n x n x c numbers [what is saved for the gradient]": "test_memory",
    "parameters [closed form]": "test_counts",
}

LAYERS, HEADS, D, WIDTH, VOCABULARY, LENGTH = 2, 3, 10, 12, 29, 20
SIZES = {"hidden_size": D, "attention_size": WIDTH, "num_attention_heads": HEADS, "num_hidden_layers": LAYERS}
KINDS = {"near": {"max_relative_distance": 5}, "all": {"max_relative_distance": None}, "shared": {"shared_relative_keys": True}}
over_kinds = pytest.mark.parametrize("kind", KINDS)
both_ways = pytest.mark.parametrize("task", ["causal-lm", "masked-lm"])


def build(task: str = "causal-lm", **more: Any) -> Any:
    text = {"vocab_size": VOCABULARY, "max_position_embeddings": LENGTH, "intermediate_size": 14, "max_relative_distance": 5}
    return randomise(mixlab.create("music-tiny", task=task, **{**SIZES, **text, **more}), scale=0.4).double().eval()


def ids(batch: int, n: int) -> Tensor:
    return torch.randint(VOCABULARY, (batch, n), generator=torch.Generator().manual_seed(n))


def loops(p: dict[str, Tensor], text: Tensor, config: Any) -> Tensor:
    """The model for one text."""

    def norm(x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, (D,), p[f"{name}.weight"], p[f"{name}.bias"], config.layer_norm_eps)

    x = p["model.stem.tokens.weight"][text]
    for layer in range(LAYERS):
        block = f"model.body.blocks.{layer}."
        own = {name.removeprefix(block + "attention."): tensor for name, tensor in p.items() if name.startswith(block + "attention.")}
        keys = own["relative_keys.weight"]
        x = x + relative.self_attention(norm(x, block + "attention_norm"), own, HEADS, keys=keys, causal=config.causal)
        wide = F.linear(norm(x, block + "ffn_norm"), p[block + "ffn.widen.weight"], p[block + "ffn.widen.bias"]).relu()
        x = x + F.linear(wide, p[block + "ffn.narrow.weight"], p[block + "ffn.narrow.bias"])
    return norm(x, "model.body.norm") @ p["model.stem.tokens.weight"].mT


@both_ways
@over_kinds
def test_logits_and_gradients(kind: str, task: str) -> None:
    model, text = build(task, **KINDS[kind]), ids(2, 13)
    p = {name: parameter.detach().clone().requires_grad_() for name, parameter in model.named_parameters()}
    expected = torch.stack([loops(p, row, model.config) for row in text])
    found = model(text).logits
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    weights = torch.randn_like(found)
    (found * weights).sum().backward()
    (expected * weights).sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, p[name].grad, rtol=1e-8, atol=1e-8, msg=lambda text, name=name: f"{name}: {text}")


@both_ways
@torch.no_grad()
def test_padding(task: str) -> None:
    model, text = build(task), ids(3, 11)
    mask = torch.ones_like(text)
    mask[0, :4] = 0
    mask[1, 7:] = 0
    mask[2, 3:5] = 0
    found = model(text, attention_mask=mask).logits
    for row, real, logits in zip(text, mask.bool(), found, strict=True):
        torch.testing.assert_close(logits[real], loops(dict(model.named_parameters()), row[real], model.config), rtol=1e-9, atol=1e-9)


@over_kinds
@torch.no_grad()
def test_generation(kind: str) -> None:
    model, prompt = build(**KINDS[kind]), ids(3, 6)
    mask = torch.ones_like(prompt)
    mask[1, :3] = 0
    whole, past, start = model(ids(2, LENGTH)).logits, None, 0
    for n in (4, 1, 1, 7, 1, LENGTH - 14):
        output = model(ids(2, LENGTH)[:, start : start + n], past_key_values=past, use_cache=True)
        torch.testing.assert_close(output.logits, whole[:, start : start + n], rtol=1e-10, atol=1e-10)
        past, start = output.past_key_values, start + n
    for more in ({"do_sample": False}, {"num_beams": 3}):
        options = {"attention_mask": mask, "max_new_tokens": 13, "pad_token_id": 0, **more}
        with_cache = model.generate(prompt, **options)
        assert with_cache.shape == (3, 19)
        assert torch.equal(with_cache, model.generate(prompt, **options, use_cache=False))
    alone = model.generate(prompt[1:2, 3:], max_new_tokens=13, do_sample=False, pad_token_id=0)
    assert torch.equal(model.generate(prompt, attention_mask=mask, max_new_tokens=13, do_sample=False, pad_token_id=0)[1, 3:], alone[0])


def test_memory() -> None:
    """n x n x c numbers would be 64 times as many as the largest that are kept."""
    n, c = 64, 32
    model = build(max_position_embeddings=n, max_relative_distance=n, attention_size=HEADS * c)
    largest = 0

    def keep(tensor: Tensor) -> Tensor:
        nonlocal largest
        largest = max(largest, tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model.model(ids(1, n)).last_hidden_state.sum()
    assert 0 < largest <= HEADS * n * (n + 1) < n * n * c


@pytest.mark.parametrize(("farthest", "shared"), [(1024, False), (None, False), (300, True)])
def test_counts(farthest: int | None, shared: bool) -> None:
    d, a, f, h, n = 384, 512, 1024, 8, 2048
    keys = (1 if shared else h) * (farthest or n) * (a // h)
    block = 4 * d + (d * 3 * a + 3 * a) + keys + (a * d + d) + (d * f + f) + (f * d + d)
    settings = {"max_relative_distance": farthest, "shared_relative_keys": shared}
    account = mixlab.account("music-piano", **settings)
    assert account.params == 6 * block + 388 * d + 2 * d
    assert account.macs == 6 * (n * (4 * a * d + 2 * d * f) + 3 * n * n * a) + n * d * 388
    with torch.device("meta"):
        assert sum(p.numel() for p in mixlab.create("music-piano", **settings).parameters()) == account.params
    if not settings["shared_relative_keys"] and farthest:
        assert account.params == 12_761_856


@torch.no_grad()
def test_a_longer_model_says_the_same() -> None:
    """Distances without a key say nothing, and neither do new keys of zeros."""
    for more in ({"max_relative_distance": None}, {"max_relative_distance": 5}):
        model, text = build(**more), ids(2, LENGTH)
        before = model(text).logits
        assert "kept" in model.resize_length(LENGTH + 9)
        assert torch.equal(model(text).logits, before)
        assert model(ids(1, LENGTH + 9)).logits.isfinite().all()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"num_attention_heads": 3}, "attention_size 128 cannot be split into num_attention_heads=3"),
        ({"attention_size": 0}, "attention_size is 0; it must be at least 1"),
        ({"max_relative_distance": 0}, "max_relative_distance is 0; it must be at least 1"),
        ({"max_position_embeddings": None}, "max_position_embeddings is missing"),
        ({"modality": "audio"}, "reads text, not audio"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(MixlabError, match=said) as caught:
        mixlab.config("music-tiny", **settings)
    assert "\n" not in str(caught.value)


def test_a_piece_that_is_too_long_is_refused() -> None:
    with pytest.raises(MixlabError, match=f"{LENGTH + 1} tokens, but this mixlab-music reads at most {LENGTH}"):
        build()(ids(1, LENGTH + 1))
