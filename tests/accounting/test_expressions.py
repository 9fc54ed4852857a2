"""Layer expressions against torch's own layers, numpy's ranks and matrices that are written out; errors by their characters."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from mixlab.accounting.expressions import RULES, parse
from mixlab.accounting.lexing import ExpressionError, tokens
from mixlab.analysis import decompose
from mixlab.errors import MixlabError
from mixlab.layers import FeedForward, SelfAttention, SpatialGate, Tokens


def counted(module: nn.Module, *inputs: torch.Tensor | Tokens) -> tuple[int, int]:
    """Parameters and multiply-adds of a real layer, on no memory."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        module(*inputs)
    return sum(p.numel() for p in module.parameters()), counter.get_total_flops() // 2


@pytest.mark.parametrize(
    ("expression", "build", "shape"),
    [
        ("conv 3x3 64->48 on 32x20", lambda: nn.Conv2d(64, 48, 3, padding=1, bias=False), (1, 64, 32, 20)),
        ("conv 3x5 6->4 on 9x11 valid bias", lambda: nn.Conv2d(6, 4, (3, 5)), (1, 6, 9, 11)),
        ("conv 3 6->4 on 9 full", lambda: nn.Conv1d(6, 4, 3, padding=2, bias=False), (1, 6, 9)),
        ("conv 16x16 3->768 on 224x224 stride 16 bias", lambda: nn.Conv2d(3, 768, 16, 16), (1, 3, 224, 224)),
        ("conv 7 2->4 on 30 stride 3 valid", lambda: nn.Conv1d(2, 4, 7, 3, bias=False), (1, 2, 30)),
        ("depthwise 3x3 8 on 10x10 bias", lambda: nn.Conv2d(8, 8, 3, padding=1, groups=8), (1, 8, 10, 10)),
        (
            "separable 3x3 8->16 on 10x10",
            lambda: nn.Sequential(nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False), nn.Conv2d(8, 16, 1, bias=False)),
            (1, 8, 10, 10),
        ),
        ("pointwise 8->5 on 12 bias", lambda: nn.Linear(8, 5), (1, 12, 8)),
        ("dense 12 -> 5 bias", lambda: nn.Linear(12, 5), (1, 12)),
        ("dense 3x4 -> 5x2", lambda: nn.Sequential(nn.Flatten(), nn.Linear(12, 10, bias=False)), (1, 3, 4)),
        ("mlp 12 -> 20 -> 5 bias", lambda: nn.Sequential(nn.Linear(12, 20), nn.ReLU(), nn.Linear(20, 5)), (1, 12)),
        ("tokens 7 -> 5 d=3", lambda: nn.Linear(7, 5, bias=False), (1, 3, 7)),
        ("ffn n=6 d=8 f=20 bias", lambda: FeedForward(8, 20), (1, 6, 8)),
        ("norm 8", lambda: nn.LayerNorm(8), (1, 8)),
    ],
)
def test_a_layer_counts_as_torch_does(expression: str, build: type[nn.Module], shape: tuple[int, ...]) -> None:
    layer = parse(expression)
    with torch.device("meta"):
        assert counted(build(), torch.empty(shape)) == (layer.account.params, layer.account.macs)


@pytest.mark.parametrize(("n", "d", "a", "h"), [(512, 768, 768, 12), (10, 8, 4, 2)])
def test_attention_counts_as_the_real_one_does(n: int, d: int, a: int, h: int) -> None:
    layer = parse(f"attention n={n} d={d} a={a} h={h} bias")
    with torch.device("meta"):
        real = SelfAttention(d, d, a, heads=h)
        assert counted(real, Tokens(torch.empty(1, n, d))) == (layer.account.params, layer.account.macs)


@pytest.mark.parametrize("options", ["toeplitz", "dense", "dense heads=2", "toeplitz causal"])
def test_a_gate_counts_as_the_real_one_does(options: str) -> None:
    layer = parse(f"sgu n=12 d_ffn=16 {options} bias")
    words = options.split()
    with torch.device("meta"):
        real = SpatialGate(
            16, 12, structure="dense" if "dense" in words else "toeplitz", heads=2 if "heads=2" in words else 1, causal="causal" in words
        )
        assert counted(real, torch.empty(1, 12, 16)) == (layer.account.params, layer.account.macs)


def written_out(module: nn.Module, shape: tuple[int, ...]) -> np.ndarray:
    """The matrix of a linear layer: what each number of the input does."""
    size = int(np.prod(shape))
    with torch.no_grad():
        return module(torch.eye(size).unflatten(1, shape)).flatten(1).numpy().T


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 5), st.integers(1, 5), st.integers(5, 8), st.integers(5, 8), st.sampled_from(["same", "full", "valid"]))
def test_the_matrix_of_a_convolution_is_the_one_written_out(k: int, l: int, n: int, w: int, padding: str) -> None:
    layer = parse(f"conv {k}x{l} 2->3 on {n}x{w} {padding}")
    pad = {"same": [(k - 1) // 2, k // 2, (l - 1) // 2, l // 2], "full": [k - 1, k - 1, l - 1, l - 1], "valid": [0, 0, 0, 0]}[padding]
    convolution = nn.Conv2d(2, 3, (k, l), bias=False)
    nn.init.uniform_(convolution.weight, 1, 2)
    matrix = written_out(nn.Sequential(nn.ZeroPad2d((pad[2], pad[3], pad[0], pad[1])), convolution), (2, n, w))
    assert matrix.shape == (layer.fact("rows of its matrix"), layer.fact("columns of its matrix"))
    assert (matrix != 0).sum() == layer.fact("entries that are not zero")
    assert len(np.unique(matrix[matrix != 0])) == layer.fact("different numbers among them")


@pytest.mark.parametrize(
    ("expression", "build", "shape", "tokens"),
    [
        ("dense 4x3 -> 2x5", lambda: nn.Sequential(nn.Flatten(), nn.Linear(12, 10, bias=False), nn.Unflatten(1, (2, 5))), (4, 3), 4),
        ("conv 3 2->3 on 6", lambda: nn.Conv1d(2, 3, 3, padding=1, bias=False), (6, 2), 6),
        ("depthwise 3 2 on 6", lambda: nn.Conv1d(2, 2, 3, padding=1, groups=2, bias=False), (6, 2), 6),
        ("pointwise 2->3 on 6", lambda: nn.Linear(2, 3, bias=False), (6, 2), 6),
    ],
)
def test_ranks_of_random_layers_reach_the_bounds(expression: str, build: type[nn.Module], shape: tuple[int, int], tokens: int) -> None:
    torch.manual_seed(0)
    found, layer = build().double(), parse(expression)
    parts = decompose(found, *shape)
    bounds = layer.account.mixings()[0] if layer.account.mixings() else {"terms": 1, "rank": tokens * min(2, 3)}
    assert parts.rank == bounds["terms"]
    m, e = parts.terms[0].M.shape[0], parts.terms[0].W.shape[1]
    operator = sum(torch.einsum("mn,de->mend", term.M, term.W) for term in parts.terms)
    assert isinstance(operator, torch.Tensor)
    assert torch.linalg.matrix_rank(operator.reshape(m * e, -1)) == bounds["rank"]


def test_logits_of_attention_and_the_gram_have_the_rank_of_their_heads() -> None:
    x = torch.randn(20, 12, dtype=torch.float64)
    q, k = torch.randn(12, 3, dtype=torch.float64), torch.randn(12, 3, dtype=torch.float64)
    assert torch.linalg.matrix_rank(x @ q @ (x @ k).T) == parse("attention n=20 d=12 h=4").account.mixings()[0]["logits"]
    assert torch.linalg.matrix_rank(x @ x.T @ x) == parse("gram n=20 d=12").fact("rank of what comes out, at the most")


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_examples_are_read_and_say_what_goes_in_and_out(rule: object) -> None:
    layer = parse(rule.example)  # pyright: ignore[reportAttributeAccessIssue]
    assert layer.takes
    assert layer.gives
    assert layer.about


@pytest.mark.parametrize(
    ("expression", "position", "said"),
    [
        ("conv 3x3 64-> on 256x256", 15, "channels out"),
        ("conv 3x3 64 64", 13, "expected ->"),
        ("conv 1x1 64->64 on 1024 -> 100", 28, "1024 tokens stay 1024"),
        ("pointwise 64->64 on 1024 -> 100", 29, "use dense"),
        ("conv 3x3 64->64 on 9x9 -> 7x7", 27, "become 9x9"),
        ("conv 3x3 64->64 on 256", 20, "2 axes"),
        ("conv 3x3 6->6 on 2x2 valid", 18, "does not fit"),
        ("conv 3x3 64->64 full", 21, "on how many"),
        ("conv 3x3 64 ->64 strid 2", 18, "did you mean 'stride'"),
        ("conv 3x3 64->64 on 8x8 same full", 29, "exclude"),
        ("dense 0x3 -> 4", 7, "the least is 1"),
        ("dense -3 -> 4", 7, "whole numbers from 1"),
        ("dense 1.5 -> 4", 8, "whole numbers"),
        ("dense 4 -> " + "9" * 31, 12, "at most 30 digits"),
        ("dense 4 = 3", 9, "expected ->"),
        ("dense 4 → 3 ¾", 13, "only words"),
        ("dense ٣ -> 4", 7, "only words"),
        ("attention n=5 d=7 h=2", 21, "use a divisor"),
        ("attention d=3", 14, "n= is missing"),
        ("attention n=5 n=6 d=4", 15, "twice"),
        ("attention n=4x4 d=4", 13, "write it as n"),
        ("sgu n=4 d_ffn=3", 15, "odd"),
        ("patches 2 by 3", 14, "does not fit"),
        ("patches 256 in 3", 13, "expected 'by'"),
        ("mlp 3 -> 4", 11, "hidden layer"),
        ("depthwise 3x3 4->5", 18, "use separable"),
        ("denes 3 -> 4", 1, "did you mean 'dense'"),
        ("", 1, "expected a layer"),
    ],
)
def test_an_error_points_at_its_character(expression: str, position: int, said: str) -> None:
    with pytest.raises(ExpressionError, match="cannot read") as caught:
        parse(expression)
    assert caught.value.position == position
    assert f"character {position}" in str(caught.value)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.sampled_from([*RULES, "3", "64", "x", "->", "=", "n", "d", "h", "on", "by", "full", "stride", "-", "0", " "]), max_size=9)
)
def test_whatever_is_written_is_read_or_refused_in_one_line(words: list[str]) -> None:
    try:
        layer = parse("".join(f"{word} " if len(word) > 1 else word for word in words))
    except MixlabError as error:
        said = str(error)
    else:
        said = ""
        assert layer.account.params >= 0
        assert layer.account.macs >= 0
    assert "\n" not in said


def test_numbers_beyond_any_float_stay_exact() -> None:
    n = 10**29 + 7
    layer = parse(f"dense {n}x{n} -> {n}x{n}")
    assert layer.account.params == n**4
    assert layer.account.flops == 2 * n**4
    assert f"{n**4:,}" in layer.account.lines[0].explain("params")


def test_too_long_an_expression_is_refused() -> None:
    with pytest.raises(MixlabError, match="at most 500 characters"):
        parse("mlp 1" + " -> 1" * 500)


@given(st.text(max_size=30))
def test_words_know_where_they_stand(text: str) -> None:
    try:
        found = tokens(text)
    except ExpressionError as error:
        found, refused = [], error.position
    else:
        refused = 1
    assert 1 <= refused <= max(1, len(text))
    assert all(text[token.position - 1 :].startswith(token.text) for token in found)
