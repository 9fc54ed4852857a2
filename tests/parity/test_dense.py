"""Fully connected layers and their simplifications, against einsum over all indices; counts of the notes' sizes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import mixlab
from mixlab import MixlabError
from mixlab.archs.dense import FullyConnected
from mixlab.layers import Tokens

ROWS = {
    "Fully connected over tokens and channels [einsum]": "test_every_mixing_is_its_einsum",
    "Simplification I: tokens only, shared or per channel [einsum]": "test_every_mixing_is_its_einsum",
    "Simplification II: channels only, a 1 x 1 convolution [einsum, torch]": "test_channels_only_is_a_pointwise_convolution",
    "Fully connected from 1024 x 64 to 100 x 64: 419,430,400 weights": "test_tokens_and_channels_may_change",
    "Multilayer perceptron 1024-2048-100 [einsum]": "test_the_perceptron_is_two_products",
    "Fully connected over 512 x 768: 154,618,822,656 weights, and I and II": "test_counts_are_exact",
    "Each simplification is a fully connected layer with a structured tensor": "test_simplifications_are_tensors_with_structure",
}
MIXINGS = ("all", "tokens", "tokens-per-channel", "channels", "none")
D, N = 6, 7


def build(mixing: str, **settings: Any) -> Any:
    """In float64, every parameter away from its start."""
    torch.manual_seed(0)
    sizes = {"hidden_size": D, "max_position_embeddings": N, "vocab_size": 30, "num_hidden_layers": 1}
    model = mixlab.create("dense-tiny", task="features", **{**sizes, "mixing": mixing, **settings}).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def tensor_of(mixing: Any, kind: str, n: int) -> tuple[Tensor, Tensor]:
    """The layer as T[s, e, t, c] and b[s, e]: from token t and channel c to token s and channel e."""
    eye_n, eye_d = torch.eye(n, dtype=torch.float64), torch.eye(D, dtype=torch.float64)
    nothing = torch.zeros(n, D, dtype=torch.float64)
    if kind == "all":
        return mixing.weight[:n, :, :n], mixing.bias[:n]
    if kind.startswith("tokens"):
        maps = mixing.spatial.weight[:, :n, :n].expand(D, n, n)
        return torch.einsum("est,ec->setc", maps, eye_d), mixing.bias[:, :n].expand(D, n).T
    if kind == "channels":
        return torch.einsum("ec,st->setc", mixing.linear.weight, eye_n), mixing.linear.bias.expand(n, D)
    return torch.einsum("ec,st->setc", eye_d, eye_n), nothing


@pytest.mark.parametrize("n", [N, 4])
@pytest.mark.parametrize("kind", MIXINGS)
def test_every_mixing_is_its_einsum(kind: str, n: int) -> None:
    block = build(kind).body.blocks[0]
    x = torch.randn(2, n, D, dtype=torch.float64)
    with torch.no_grad():
        tensor, bias = tensor_of(block.mixing, kind, n)
        normal = F.layer_norm(x, (D,), block.norm.weight, block.norm.bias, 1e-6)
        expected = x + F.gelu(torch.einsum("setc,btc->bse", tensor, normal) + bias)
        torch.testing.assert_close(block(Tokens(x)).x, expected, atol=1e-12, rtol=0)
        alone = build(kind, residual=False, hidden_act="relu").body.blocks[0]
        tensor, bias = tensor_of(alone.mixing, kind, n)
        expected = (torch.einsum("setc,btc->bse", tensor, x) + bias).clamp(min=0)
        torch.testing.assert_close(alone(Tokens(x)).x, expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("kind", MIXINGS[1:])
def test_simplifications_are_tensors_with_structure(kind: str) -> None:
    """Put into the full layer, they say the same; rearranged by token pairs and channel pairs, the shared ones have rank 1."""
    layer = build(kind).body.blocks[0].mixing
    with torch.no_grad():
        tensor, bias = tensor_of(layer, kind, N)
        full = FullyConnected(N, D, N, D).double()
        full.weight.copy_(tensor)
        full.bias.copy_(bias)
        x = torch.randn(3, N, D, dtype=torch.float64)
        torch.testing.assert_close(full(x, Tokens(x)), layer(x, Tokens(x)))
        rank = int(torch.linalg.matrix_rank(tensor.permute(0, 2, 1, 3).reshape(N * N, D * D)))
    assert rank == (D if kind == "tokens-per-channel" else 1)
    free = build("all").body.blocks[0].mixing.weight.detach()
    assert int(torch.linalg.matrix_rank(free.permute(0, 2, 1, 3).reshape(N * N, D * D))) == min(N * N, D * D)


def test_channels_only_is_a_pointwise_convolution() -> None:
    layer = build("channels").body.blocks[0].mixing
    x = torch.randn(2, N, D, dtype=torch.float64)
    with torch.no_grad():
        convolved = F.conv1d(x.mT, layer.linear.weight[..., None], layer.linear.bias).mT
        torch.testing.assert_close(layer(x, Tokens(x)), convolved)


def test_tokens_and_channels_may_change() -> None:
    torch.manual_seed(0)
    layer = FullyConnected(5, 3, 2, 4).double()
    x = torch.randn(2, 5, 3, dtype=torch.float64)
    with torch.no_grad():
        layer.bias.normal_()
        expected = torch.einsum("setc,btc->bse", layer.weight, x) + layer.bias
        torch.testing.assert_close(layer(x, Tokens(x)), expected)
    with torch.device("meta"):
        assert FullyConnected(1024, 64, 100, 64).weight.numel() == 419_430_400
        assert FullyConnected(1024, 1, 100, 1).weight.numel() == 102_400


def test_the_perceptron_is_two_products() -> None:
    """1024 pixels, 2048 hidden nodes, 100 labels: 2,301,952 weights and 2,148 biases."""
    account = mixlab.account("dense-mlp")
    assert (account.params, account.macs) == (2_301_952 + 2_148, 2_301_952)
    torch.manual_seed(0)
    model: Any = mixlab.create("dense-mlp").double().eval()
    assert sum(p.numel() for p in model.parameters()) == account.params
    first, last = model.model.stem.projection, model.classifier
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.05)
        pixels = torch.randn(3, 1, 32, 32, dtype=torch.float64)
        hidden = (torch.einsum("hi,bi->bh", first.weight.flatten(1), pixels.flatten(1)) + first.bias).clamp(min=0)
        expected = torch.einsum("oh,bh->bo", last.weight, hidden) + last.bias
        torch.testing.assert_close(model(pixel_values=pixels).logits, expected, atol=1e-10, rtol=0)


@pytest.mark.parametrize(
    ("preset", "weights", "biases", "macs"),
    [
        ("dense-all", (512 * 768) ** 2, 512 * 768, 154_618_822_656),
        ("dense-tokens", 262_144, 512, 512 * 512 * 768),
        ("dense-tokens-per-channel", 201_326_592, 512 * 768, 512 * 512 * 768),
        ("dense-channels", 589_824, 768, 512 * 768 * 768),
    ],
)
def test_counts_are_exact(preset: str, weights: int, biases: int, macs: int) -> None:
    body = mixlab.account(preset).group("body")
    assert (body.params, body.macs) == (weights + biases, macs)
    with torch.device("meta"):
        model: Any = mixlab.create(preset)
    assert sum(p.numel() for p in model.body.parameters()) == body.params


@pytest.mark.parametrize("kind", MIXINGS)
def test_what_is_declared_of_a_mixing_is_so(kind: str) -> None:
    """Padding is never read; order and length matter where a weight knows the place, and nowhere else."""
    model = build(kind)
    traits, ids = model.config.traits, torch.randint(1, 30, (2, N))
    mask = torch.ones_like(ids)
    mask[1, :3] = 0
    with torch.no_grad():
        together = model(input_ids=ids, attention_mask=mask).last_hidden_state[1, 3:]
        torch.testing.assert_close(together, model(input_ids=ids[1:, 3:]).last_hidden_state[0])
        x, order = torch.randn(1, N, D, dtype=torch.float64), torch.randperm(N).roll(1)
        moved, straight = model.body(Tokens(x[:, order])).x, model.body(Tokens(x)).x[:, order]
        assert torch.allclose(moved, straight) == (traits.equivariance == "permutation")
        other = x.clone()
        other[0, 0] = torch.randn(D, dtype=torch.float64)
        reads = (model.body(Tokens(x)).x - model.body(Tokens(other)).x)[0].abs().amax(-1) > 1e-6
        assert bool(reads[1:].any()) == (traits.reach is None)
        longer = torch.randint(1, 30, (1, N + 2))
        if traits.length == "any":
            assert model(input_ids=longer).last_hidden_state.shape == (1, N + 2, D)
        else:
            with pytest.raises(MixlabError, match=f"reads at most {N}"):
                model(input_ids=longer)
    if kind == "all":
        with pytest.raises(MixlabError, match="no maps"):
            model(input_ids=ids, output_maps=True)
    else:
        assert model(input_ids=ids, output_maps=True).maps[0].shape[-2:] == (N, N)


def test_lengths_can_be_changed_where_a_matrix_allows_it() -> None:
    shared, ids = build("tokens"), torch.randint(1, 30, (1, 5))
    before = shared(input_ids=ids).last_hidden_state
    assert "dense W kept for 7 tokens" in shared.resize_length(12)
    torch.testing.assert_close(shared(input_ids=ids).last_hidden_state, before)
    image: Any = mixlab.create("dense-tiny-image").eval()
    assert "interpolated in 2-D from 8 x 8 to 4 x 4" in image.resize_length(16)
    assert image(pixel_values=torch.randn(1, 3, 16, 16)).logits.shape == (1, 10)
    with pytest.raises(MixlabError, match=r"tensor over 7 tokens of 6 channels .* build a new model"):
        build("all").resize_length(9)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mixing": "some"}, "mixing"),
        ({"modality": "audio"}, "reads text or image, not audio"),
        ({"causal": True, "pooling": "last"}, "cannot be causal"),
        ({"max_position_embeddings": None}, "max_position_embeddings is missing"),
    ],
)
def test_what_cannot_be_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(MixlabError, match=message):
        mixlab.config("dense-tiny", **settings)
