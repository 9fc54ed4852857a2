"""Expressions of layers whose weights are matrices: fully connected ones, the two ways to simplify them, and what is made of them."""

from __future__ import annotations

from itertools import pairwise

from mixlab.accounting.account import Line, Mixing
from mixlab.accounting.layer import Fact, Layer, expanded
from mixlab.accounting.parts import activation, embedding, layer_norm, linear
from mixlab.accounting.reader import Reader, Size


def tokens_and_channels(size: Size) -> tuple[int, int]:
    """The last side is the channels, and a single side has one."""
    *tokens, last = size.sides
    return (size.product // last, last) if tokens else (last, 1)


def dense(read: Reader) -> Layer:
    """Every number that goes out reads every number that comes in."""
    takes = read.size("what comes in, such as 1024x64")
    read.arrow("what goes out, such as 100x64")
    gives = read.size("what goes out, such as 100x64")
    bias = "bias" in read.options({"bias": "flag"})
    (n, d), (m, e) = tokens_and_channels(takes), tokens_and_channels(gives)
    symbols = {"n": n, "d": d, "m": m, "e": e}
    weight = Line(
        "T",
        "m*e*n*d + m*e" if bias else "m*e*n*d",
        "m*e*n*d",
        symbols,
        work="m*e" if bias else "0",
        kept="n*d",
        live="n*d + m*e",
        mixing=Mixing(1, "min(m*n, d*e)", "min(m*e, n*d)", "n"),
    )
    facts = expanded("m*e", "n*d", "m*e*n*d", "m*e*n*d", symbols)
    return Layer(read.expression, "vec(Y) = T vec(X): all channels of all tokens, mixed at will", takes.text, gives.text, (weight,), facts)


def mlp(read: Reader) -> Layer:
    """Fully connected layers with an activation between each two."""
    sizes = [read.number("the input, such as 1024")]
    while read.take("arrow"):
        sizes.append(read.number("the width of a layer, such as 2048"))
    if len(sizes) < 3:
        raise read.error("expected -> and another width: an mlp has a hidden layer; use dense for one without")
    bias = "bias" in read.options({"bias": "flag"})
    lines: list[Line] = []
    for place, (i, o) in enumerate(pairwise(sizes), 1):
        lines += [linear(f"W_{place}", i, o, 1, bias=bias), *([activation("relu", o, 1)] if place < len(sizes) - 1 else [])]
    return Layer(read.expression, "fully connected layers, an activation between each two", str(sizes[0]), str(sizes[-1]), tuple(lines))


def tokens(read: Reader) -> Layer:
    """Simplification I: tokens are mixed, channels are not."""
    n = read.number("tokens in, such as 1024")
    read.arrow("tokens out")
    m = read.number("tokens out, such as 100")
    options = read.options({"d": "number", "per-channel": "flag", "bias": "flag"})
    d, each, bias = options.number("d", "channels of a token", 1), "per-channel" in options, "bias" in options
    symbols = {"n": n, "m": m, "d": d}
    weights, biases = ("d*m*n", "d*m") if each else ("m*n", "m")
    matrix = Line(
        "M_c" if each else "M",
        f"{weights} + {biases}" if bias else weights,
        "m*n*d",
        symbols,
        work="m*d" if bias else "0",
        kept="n*d",
        live="n*d + m*d",
        mixing=Mixing(1, "min(d, m*n)" if each else "1", "min(m, n)*d", "n"),
    )
    about = (
        "Y[:, c] = M_c X[:, c]: tokens mixed, by a matrix for each channel"
        if each
        else "Y = M X: tokens mixed, by one matrix for all channels"
    )
    facts = expanded("m*d", "n*d", "m*n*d", weights, symbols)
    return Layer(read.expression, about, f"{n}x{d}", f"{m}x{d}", (matrix,), facts)


def pointwise(read: Reader) -> Layer:
    """Simplification II, the 1 x 1 convolution: channels are mixed, tokens are not."""
    i = read.number("channels in, such as 64")
    read.arrow("channels out")
    o = read.number("channels out, such as 64")
    options = read.options({"on": "sizes", "bias": "flag"})
    on = options.given["on"].sizes if "on" in options else ()
    if len(on) == 2 and on[0].sides != on[1].sides:
        raise options.refuse("on", unchanged(on[0], on[1]))
    n = on[0].product if on else 1
    where = on[0].text if on else "1"
    line = linear("W", i, o, n, bias="bias" in options)
    facts = expanded("n*o", "n*i", "n*i*o", "i*o", line.symbols)
    return Layer(read.expression, "Y = X W: channels mixed, each token on its own", f"{where}x{i}", f"{where}x{o}", (line,), facts)


def unchanged(before: Size, after: Size) -> str:
    kept = f"{before.text} tokens stay {before.text}, not {after.text}"
    return f"a 1x1 convolution reads one token for each that it writes, so {kept}; use dense or tokens"


def embedding_table(read: Reader) -> Layer:
    size = read.size("the table, such as 30522x768", [2])
    read.options({})
    line = embedding("table", *size.sides)
    return Layer(read.expression, "a row for each entry, looked up", size.text.split("x")[0], str(size.sides[1]), (line,))


def norm(read: Reader) -> Layer:
    d = read.number("channels, such as 768")
    n = read.options({"n": "number"}).number("n", "tokens", 1)
    return Layer(
        read.expression, "to mean 0 and deviation 1, then a scale and a shift", f"{n}x{d}", f"{n}x{d}", (layer_norm("norm", d, n),)
    )


def patches(read: Reader) -> Layer:
    """An image cut into squares."""
    image = read.size("the image, such as 224 or 224x224", [1, 2])
    read.keyword("by")
    square = read.size("the side of a patch, such as 16", [1])
    patch = square.product
    options = read.options({"channels": "number", "d": "number", "bias": "flag"})
    height, width = image.sides if len(image.sides) == 2 else image.sides * 2
    if patch > min(height, width):
        raise read.error_at(square.position, f"a patch of {patch} does not fit into {height} x {width}; use a smaller one")
    c = options.number("channels", "of a pixel", 3)
    symbols = {"s": height, "r": width, "p": patch, "c": c}
    facts = [
        Fact("patches", "(s//p)*(r//p)", symbols),
        Fact("numbers of a patch", "p*p*c", symbols),
        Fact("pixels that are left over", "s*r - (s//p)*(r//p)*p*p", symbols),
        Fact("patches, if the image is padded instead", "((s + p - 1)//p)*((r + p - 1)//p)", symbols),
    ]
    lines = []
    if "d" in options:
        symbols = {**symbols, "d": options.number("d", "")}
        biases = (" + d", "(s//p)*(r//p)*d") if "bias" in options else ("", "0")
        lines = [
            Line(
                "E",
                "p*p*c*d" + biases[0],
                "(s//p)*(r//p)*p*p*c*d",
                symbols,
                work=biases[1],
                kept="s*r*c",
                live="s*r*c + (s//p)*(r//p)*d",
            )
        ]
    gives = f"{facts[0].value}x{options.number('d', '', patch * patch * c)}"
    return Layer(
        read.expression, f"squares of {patch} x {patch} pixels as tokens", f"{height}x{width}x{c}", gives, tuple(lines), tuple(facts)
    )
