"""Expressions of layers that mix tokens by more than a fixed kernel: attention, gates, transforms, and blocks of them."""

from __future__ import annotations

from mixlab.accounting import parts
from mixlab.accounting.account import Line
from mixlab.accounting.layer import Fact, Layer
from mixlab.accounting.parts import activation, attention, gate, layer_norm, linear, sums, window_attention
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
    window = options.number("window", "", n)
    products = window_attention(n, window, a, h, channels=d) if "window" in options else attention(n, n, a, h, channels=d)
    return [linear("W_qkv", d, 3 * a, n, bias=bias), products, linear("W_o", a, d, n, bias=bias)]


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
    lines = [*norms[0], *attending(options, n, d, d, h, bias), sums(d, n)]
    lines += [*norms[1], *network(n, d, f, bias), sums(d, n)]
    return Layer(
        read.expression, "attention, then a feed-forward network, each added to X", f"{n}x{d}", f"{n}x{d}", tuple(lines), (), WHOLE
    )


def gram(read: Reader) -> Layer:
    """Attention without a weight."""
    options = read.options({"n": "number", "d": "number"})
    n, d = options.number("n", "the tokens"), options.number("d", "the channels")
    symbols = {"n": n, "d": d}
    line = parts.gram(n, d)
    facts = (
        Fact("rank of what comes out, at the most", "min(n, d)", symbols),
        Fact("MACs in the other order, X (X^T X)", "2*n*d*d", symbols),
    )
    return Layer(
        read.expression, "X X^T X: the same singular vectors as X, the singular values cubed", f"{n}x{d}", f"{n}x{d}", (line,), facts
    )


def fourier(read: Reader) -> Layer:
    options = read.options({"n": "number", "d": "number"})
    n, d = options.number("n", "the tokens"), options.number("d", "the channels")
    symbols = {"n": n, "d": d}
    facts = (Fact("MACs as products with matrices, C X C - S X S", "2*n*d*d + 2*n*n*d", symbols),)
    about = "Re(F_n X F_d), by a fast transform, which is no product of matrices"
    return Layer(read.expression, about, f"{n}x{d}", f"{n}x{d}", (parts.fourier(n, d),), facts)


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
    weight, b, product = gate(n, n, f // 2, structure=structure, causal="causal" in options, heads=heads)
    lines = (layer_norm("gate norm", f // 2, n), weight, b, product) if "bias" in options else (weight, product)
    about = "u * (W norm(v) + b), [u, v] = Z"
    return Layer(read.expression, about, f"{n}x{f}", f"{n}x{f // 2}", lines, (), WHOLE)
