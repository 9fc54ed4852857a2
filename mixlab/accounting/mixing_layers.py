"""Expressions of layers that mix tokens by more than a fixed kernel: attention, gates, transforms, and blocks of them."""

from __future__ import annotations

from dataclasses import replace

from mixlab.accounting.account import Line, Mixing
from mixlab.accounting.layer import Fact, Layer
from mixlab.accounting.parts import activation, addition, attention, layer_norm, linear
from mixlab.accounting.reader import Options, Reader

WHOLE = "matrices alone: add `bias` for biases and norms; MACs of one input"


def network(n: int, d: int, f: int, bias: bool) -> list[Line]:
    return [linear("W_1", d, f, n, bias=bias), activation("gelu", f, n), linear("W_2", f, d, n, bias=bias)]


def ffn(read: Reader) -> Layer:
    """The feed-forward network of a Transformer."""
    options = read.options({"n": "number", "d": "number", "f": "number", "bias": "flag"})
    n, d = options.number("n", "", 1), options.number("d", "the channels")
    f = options.number("f", "", 4 * d)
    return Layer(
        read.expression, "gelu(X W_1) W_2, each token on its own", f"{n}x{d}", f"{n}x{d}", tuple(network(n, d, f, "bias" in options))
    )


def attending(options: Options, n: int, d: int, a: int, h: int, bias: bool) -> list[Line]:
    """The three lines of attention, in windows of tokens if it is so."""
    options.divides("h", a, f"the width of attention, {'a' if 'a' in options else 'd'} =")
    options.divides("window", n, "n =")
    seen = options.number("window", "", n)
    products = attention(n, seen, a, h, channels=d)
    if "window" in options:  # each window is a block on the diagonal, with weights of its own
        products = replace(products, mixing=replace(_mixing(products), terms="h*(m//t)", rank="m*min(a, d)"))
    return [linear("W_qkv", d, 3 * a, n, bias=bias), products, linear("W_o", a, d, n, bias=bias)]


def _mixing(line: Line) -> Mixing:
    assert line.mixing is not None
    return line.mixing


def attention_layer(read: Reader) -> Layer:
    options = read.options({"n": "number", "d": "number", "h": "number", "a": "number", "window": "number", "bias": "flag"})
    n, d = options.number("n", "the tokens"), options.number("d", "the channels")
    a, h = options.number("a", "", d), options.number("h", "the heads", 1)
    lines = attending(options, n, d, a, h, "bias" in options)
    facts = (Fact("weights of all pairs, in all heads", "h*m*t", lines[1].symbols),)
    about = "softmax(q k^T / sqrt(c)) v W_o, c = a / h channels of a head"
    return Layer(read.expression, about, f"{n}x{d}", f"{n}x{d}", tuple(lines), facts, WHOLE)


def transformer(read: Reader) -> Layer:
    """A block: attention and the feed-forward network, with their norms."""
    options = read.options({"n": "number", "d": "number", "h": "number", "f": "number", "bias": "flag"})
    n, d, bias = options.number("n", "", 1), options.number("d", "the channels"), "bias" in options
    h, f = options.number("h", "", 1), options.number("f", "", 4 * d)
    norms = [[layer_norm(name, d, n)] if bias else [] for name in ("attention norm", "feed-forward norm")]
    lines = [*norms[0], *attending(options, n, d, d, h, bias), addition("X + attention", d, n)]
    lines += [*norms[1], *network(n, d, f, bias), addition("X + feed-forward network", d, n)]
    return Layer(
        read.expression, "attention, then a feed-forward network, each added to X", f"{n}x{d}", f"{n}x{d}", tuple(lines), (), WHOLE
    )


def gram(read: Reader) -> Layer:
    """Attention without a weight."""
    options = read.options({"n": "number", "d": "number"})
    n, d = options.number("n", "the tokens"), options.number("d", "the channels")
    symbols = {"n": n, "d": d}
    line = gram_line(n, d)
    facts = (
        Fact("rank of what comes out, at the most", "min(n, d)", symbols),
        Fact("MACs in the other order, X (X^T X)", "2*n*d*d", symbols),
    )
    return Layer(
        read.expression, "X X^T X: the same singular vectors as X, the singular values cubed", f"{n}x{d}", f"{n}x{d}", (line,), facts
    )


def gram_line(n: int, d: int) -> Line:
    return Line(
        "X X^T, and its product with X",
        "0",
        "2*n*n*d",
        {"n": n, "d": d},
        work="n*n",
        kept="n*d + n*n",
        live="2*n*d + n*n",
        state="d",
        mixing=Mixing(3, "1", "min(n, d)*d", "n", "min(n, d)"),
    )


def fourier_line(n: int, d: int) -> Line:
    """A fast transform is no product of matrices; counted as one, it is a real one along each axis, cosines and sines."""
    return Line(
        "Re(F_n X F_d)",
        "0",
        "0",
        {"n": n, "d": d},
        live="2*n*d",
        kind="fourier",
        mixing=Mixing(1, "2", "n*d", "n"),
    )


def fourier(read: Reader) -> Layer:
    options = read.options({"n": "number", "d": "number"})
    n, d = options.number("n", "the tokens"), options.number("d", "the channels")
    symbols = {"n": n, "d": d}
    facts = (Fact("MACs as products with matrices, C X C - S X S", "2*n*d*d + 2*n*n*d", symbols),)
    about = "Re(F_n X F_d), by a fast transform, which is no product of matrices"
    return Layer(read.expression, about, f"{n}x{d}", f"{n}x{d}", (fourier_line(n, d),), facts)


def gate_lines(n: int, length: int, gated: int, *, toeplitz: bool, causal: bool, heads: int = 1, order: int = 2) -> list[Line]:
    """W and b of the spatial gate for n of `length` tokens; `gated` are the channels e that leave it."""
    symbols = {"N": length, "n": n, "H": heads, "e": gated}
    taps = ("H*N" if causal else "H*(2*N - 1)") if toeplitz else "H*N*N"
    weight = Line(
        "W",
        taps,
        "n*n*e",
        symbols,
        kept="n*e + H*n*n" if toeplitz else "n*e",
        live="2*n*e + H*n*n" if toeplitz else "2*n*e",
        state="e",
        kind="toeplitz" if toeplitz else "",
        mixing=Mixing(order, "H", "n*e", "n"),
    )
    return [weight, Line("b", "H*N", "0", symbols, work="n*e")]


def sgu(read: Reader) -> Layer:
    """The spatial gating unit of gMLP."""
    options = read.options(
        {"n": "number", "d_ffn": "number", "toeplitz": "flag", "dense": "flag", "causal": "flag", "heads": "number", "bias": "flag"}
    )
    n, f = options.number("n", "the tokens"), options.number("d_ffn", "the channels that come in")
    if f % 2:
        raise options.refuse("d_ffn", f"the gate halves its channels, and {f} is odd; use an even number")
    options.divides("heads", f // 2, "e =")
    structure = options.choice("dense", "toeplitz")
    heads = options.number("heads", "", 1)
    weight, b = gate_lines(n, n, f // 2, toeplitz=structure == "toeplitz", causal="causal" in options, heads=heads)
    product = Line("u * f(v)", "0", "0", weight.symbols, work="n*e", kept="2*n*e", live="3*n*e")
    whole = [layer_norm("gate norm", f // 2, n)] if "bias" in options else []
    lines = (*whole, weight, *([b] if whole else []), product)
    about = "u * (W norm(v) + b), [u, v] = Z"
    return Layer(read.expression, about, f"{n}x{f}", f"{n}x{f // 2}", lines, (), WHOLE)
