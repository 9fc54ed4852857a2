"""The notes' parameter-free f(X) = X X^T X: einsum, its singular values, and the block around it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import mixlab
from mixlab import MixlabError
from mixlab.archs.gram import Gram
from mixlab.layers import Tokens

ROWS = {
    "f(X) = X X^T X and the block around it [einsum]": "test_the_block_is_its_einsum",
    "f(X) = X X^T X: same rank and singular vectors, singular values cubed [torch.linalg.svd]": "test_singular_values_are_cubed",
    "f(X) = X X^T X: no parameter, 402.7M multiply-adds at 512 x 768": "test_counts_are_exact",
    "f(X) = X X^T X: cached generation equals full recomputation": "test_cached_steps_say_the_same",
}


def f(x: torch.Tensor) -> torch.Tensor:
    return Gram()(x, Tokens(x))


@pytest.mark.parametrize("rank", [1, 3, 5])
def test_singular_values_are_cubed(rank: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(1, 9, rank, dtype=torch.float64) @ torch.randn(rank, 5, dtype=torch.float64)
    u, s, v = torch.linalg.svd(x, full_matrices=False)
    torch.testing.assert_close(f(x), u * s**3 @ v)
    torch.testing.assert_close(torch.linalg.svdvals(f(x))[:, :rank], s[:, :rank] ** 3)
    assert int(torch.linalg.matrix_rank(f(x))) == int(torch.linalg.matrix_rank(x)) == rank


def test_either_product_may_come_first() -> None:
    """n tokens are compared, or d channels: the same numbers, 2 n^2 d or 2 n d^2 multiply-adds."""
    x = torch.randn(2, 6, 4, dtype=torch.float64)
    torch.testing.assert_close(f(x), x @ (x.mT @ x))
    torch.testing.assert_close(f(3 * x), 27 * f(x))


@pytest.mark.parametrize("causal", [False, True])
def test_the_block_is_its_einsum(causal: bool) -> None:
    torch.manual_seed(0)
    pooling = {"causal": True, "pooling": "last"} if causal else {}
    model: Any = mixlab.create("gram-tiny", task="features", hidden_size=6, intermediate_size=8, num_hidden_layers=1, **pooling)
    block = model.double().eval().body.stack.blocks[0]
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
        x = torch.randn(2, 7, 6, dtype=torch.float64)
        normal = F.layer_norm(x, (6,), block.token_norm.weight, block.token_norm.bias, 1e-6)
        read = torch.ones(7, 7, dtype=torch.float64).tril() if causal else torch.ones(7, 7, dtype=torch.float64)
        a = x + torch.einsum("btc,bsc,ts,bsd->btd", normal, normal, read / read.sum(1, keepdim=True), normal) / 6
        expected = a + block.channel_mixing(F.layer_norm(a, (6,), block.channel_norm.weight, block.channel_norm.bias, 1e-6))
        torch.testing.assert_close(block(Tokens(x)).x, expected, atol=1e-12, rtol=0)


def test_counts_are_exact() -> None:
    account = mixlab.account("gram-tiny", length=512, max_position_embeddings=512, hidden_size=768)
    (mixing,) = [line for line in account.lines if line.name.startswith("X X^T")]
    assert (mixing.param_count, mixing.mac_count // mixing.times) == (0, 402_653_184)
    assert not list(Gram().parameters())


def test_cached_steps_say_the_same() -> None:
    """Also where prompts are of different lengths."""
    torch.manual_seed(0)
    model: Any = mixlab.create("gram-tiny", task="causal-lm", num_hidden_layers=2).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        ids = torch.randint(1, 2000, (2, 9))
        mask = torch.ones_like(ids)
        mask[0, :3] = 0
        full = model(input_ids=ids, attention_mask=mask).logits
        step = model(input_ids=ids[:, :6], attention_mask=mask[:, :6], use_cache=True)
        rest = model(input_ids=ids[:, 6:], attention_mask=mask, past_key_values=step.past_key_values)
        torch.testing.assert_close(rest.logits, full[:, 6:], atol=1e-4, rtol=1e-4)
        alone = model(input_ids=ids[:1, 3:]).logits
        torch.testing.assert_close(full[:1, 3:], alone, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("positions", ["none", "learned"])
def test_positions_bring_order_and_a_longest_length(positions: str) -> None:
    torch.manual_seed(0)
    model: Any = mixlab.create("gram-tiny", task="features", positions=positions, num_hidden_layers=1, max_position_embeddings=16).eval()
    x, order = torch.randn(1, 5, 64), torch.tensor([4, 3, 2, 1, 0])
    with torch.no_grad():
        moved, straight = model.body(Tokens(x[:, order])).x, model.body(Tokens(x)).x[:, order]
    assert torch.allclose(moved, straight, atol=1e-5) == (positions == "none")
    ids = torch.randint(1, 2000, (1, 20))
    if positions == "none":
        assert model(input_ids=ids).last_hidden_state.shape == (1, 20, 64)
    else:
        with pytest.raises(MixlabError, match="reads at most 16"):
            model(input_ids=ids)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(MixlabError, match="intermediate_size is 0"):
        mixlab.config("gram-tiny", intermediate_size=0)
    with pytest.raises(MixlabError, match="positions"):
        mixlab.config("gram-tiny", positions="some")
    with pytest.raises(MixlabError, match="max_position_embeddings is missing"):
        mixlab.config("gram-tiny", max_position_embeddings=None)
    with pytest.raises(MixlabError, match="has no attention to output"):
        mixlab.create("gram-tiny", task="features")(torch.ones(1, 3, dtype=torch.long), output_attentions=True)
