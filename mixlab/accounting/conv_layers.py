"""Expressions of convolutions: full, depthwise, separable; along a sequence or over an image."""

from __future__ import annotations

from dataclasses import dataclass, replace

from mixlab.accounting.account import Line, Mixing
from mixlab.accounting.dense_layers import unchanged
from mixlab.accounting.layer import Fact, Layer, expanded
from mixlab.accounting.parts import linear
from mixlab.accounting.reader import Kind, Options, Reader, Size

OPTIONS: dict[str, Kind] = {"on": "sizes", "stride": "number", "same": "flag", "full": "flag", "valid": "flag", "bias": "flag"}
SYMBOLS = (("k", "n", "m"), ("l", "w", "u"))  # of each axis: taps, places read, places written


@dataclass(frozen=True)
class Places:
    """Where a convolution reads and writes; along no axis at all when no size was given, which means at one place."""

    read: tuple[int, ...]
    written: tuple[int, ...]
    padding: str
    stride: int

    def symbols(self) -> dict[str, int]:
        found = {}
        for (_, n, m), before, after in zip(SYMBOLS, self.read, self.written, strict=False):
            found |= {n: before, m: after}
        return found

    @property
    def one(self) -> bool:
        return not self.read

    def text(self, which: tuple[int, ...]) -> str:
        return "x".join(map(str, which)) if which else "1"

    def read_formula(self, kernel: str) -> str:
        """One place reads as many as the kernel has taps."""
        return "*".join(n for (_, n, _), _ in zip(SYMBOLS, self.read, strict=False)) or kernel

    def written_formula(self) -> str:
        return "*".join(m for (_, _, m), _ in zip(SYMBOLS, self.written, strict=False)) or "1"


def written(n: int, k: int, padding: str, stride: int) -> int:
    """Places along an axis."""
    if padding == "same":
        return -(-n // stride)
    return ((n + k - 1 if padding == "full" else n - k + 1) - 1) // stride + 1


def fitted(kernel: Size, options: Options) -> Size:
    """A kernel of 1 x 1 has as many axes as it is asked to."""
    on = options.size("on")
    return replace(kernel, sides=(1,) * min(len(on.sides), 2)) if on and set(kernel.sides) == {1} else kernel


def places(read: Reader, kernel: Size, options: Options) -> Places:
    padding, stride = options.choice("same", "full", "valid"), options.number("stride", "", 1)
    if "on" not in options:
        if {"stride", "full", "valid"} & set(options.given):
            raise read.error("stride and padding change how many places there are; say on how many, such as `on 256x256`")
        return Places((), (), padding, stride)
    on = options.given["on"].sizes
    for size in on:
        if len(size.sides) != len(kernel.sides):
            raise read.error_at(
                size.position, f"a kernel of {kernel.text} has {len(kernel.sides)} axes; give as many places, not {size.text}"
            )
    if set(kernel.sides) == {1} and stride == 1 and on[0].sides != on[-1].sides:
        raise read.error_at(on[1].position, unchanged(on[0], on[1]))
    sides = list(zip(on[0].sides, kernel.sides, strict=True))
    if padding == "valid" and any(n < k for n, k in sides):
        raise read.error_at(on[0].position, f"a kernel of {kernel.text} does not fit into {on[0].text} without padding; use same or full")
    after = tuple(written(n, k, padding, stride) for n, k in sides)
    if len(on) == 2 and on[1].sides != after:
        became = "x".join(map(str, after))
        raise read.error_at(on[1].position, f"{on[0].text} places become {became} (padding {padding}, stride {stride}), not {on[1].text}")
    return Places(on[0].sides, after, padding, stride)


def taps(kernel: Size) -> str:
    return "*".join(k for (k, _, _), _ in zip(SYMBOLS, kernel.sides, strict=False))


def nonzeros(kernel: Size, at: Places) -> str:
    """Of the matrix of one pair of channels: every tap for every place, without those that hang over a border."""
    formulas = []
    for (k, n, m), side in zip(SYMBOLS, kernel.sides, strict=False):
        lost = f"({k}//2)*(({k} + 1)//2)"  # 1 + 2 + ... over one border and over the other
        formulas.append({"full": f"{k}*{n}", "valid": f"{k}*{m}", "same": f"{k}*{n} - {lost}" if side > 1 else n}[at.padding])
    return "*".join(f"({formula})" if len(formulas) > 1 else formula for formula in formulas)


def matrix(kernel: Size, at: Places, symbols: dict[str, int], channels: tuple[str, str, str]) -> tuple[Fact, ...]:
    """The convolution as a matrix; `channels` are factors of its rows, of its columns and of what is not zero."""
    fits = at.padding != "same" or all((k - 1) // 2 < n and k // 2 < n for k, n in zip(kernel.sides, at.read, strict=False))
    if at.one or at.stride > 1 or not fits:
        return ()
    out, into, both = channels
    rows, columns = f"{at.written_formula()}*{out}", f"{at.read_formula('1')}*{into}"
    return expanded(rows, columns, f"({nonzeros(kernel, at)})*{both}", f"{taps(kernel)}*{both}", symbols)


def start(read: Reader) -> Size:
    return read.size("the kernel, such as 3x3 or, along a sequence, 3", [1, 2])


def spatial(name: str, kernel: Size, at: Places, channels: dict[str, int], bias: bool) -> Line:
    """Channels are {"i": in, "o": out}, or {"d": both} where each sees itself alone."""
    symbols = {**{k: side for (k, _, _), side in zip(SYMBOLS, kernel.sides, strict=False)}, **at.symbols(), **channels}
    into, out, both = ("d", "d", "d") if "d" in channels else ("i", "o", "i*o")
    k, outside = taps(kernel), at.written_formula()
    reads, writes = f"{at.read_formula(k)}*{into}", f"{outside}*{out}"
    weights = f"{k}*{both}"
    return Line(
        name,
        f"{weights} + {out}" if bias else weights,
        weights if at.one else f"{outside}*{weights}",
        symbols,
        work=writes if bias else "0",
        kept=reads,
        live=f"{reads} + {writes}",
        mixing=Mixing(1, f"min({k}, {both})", f"min({reads}, {writes})", k),
    )


def conv(read: Reader) -> Layer:
    """Every channel out reads every channel in, near by."""
    kernel = start(read)
    i = read.number("channels in, such as 64")
    read.arrow("channels out")
    o = read.number("channels out, such as 64")
    options = read.options(OPTIONS)
    kernel = fitted(kernel, options)
    at = places(read, kernel, options)
    line = spatial("W_o", kernel, at, {"i": i, "o": o}, "bias" in options)
    facts = matrix(kernel, at, dict(line.symbols), ("o", "i", "i*o"))
    about = "Y = sum_o shift_o(X) W_o: a matrix of channels for each tap o" + (", at one place" if at.one else "")
    return Layer(read.expression, about, f"{at.text(at.read)}x{i}", f"{at.text(at.written)}x{o}", (line,), facts)


def depthwise(read: Reader) -> Layer:
    """Every channel reads itself alone, near by."""
    kernel = start(read)
    d = read.number("channels, such as 64")
    if read.take("arrow") and read.number("channels out") != d:
        raise read.error_at(
            read.tokens[read.place - 1].position, f"a depthwise convolution leaves as many channels as come in, {d}; use separable"
        )
    options = read.options(OPTIONS)
    kernel = fitted(kernel, options)
    at = places(read, kernel, options)
    line = spatial("w_o", kernel, at, {"d": d}, "bias" in options)
    facts = matrix(kernel, at, dict(line.symbols), ("d", "d", "d"))
    about = "Y = sum_o shift_o(X) diag(w_o): taps for each channel" + (", at one place" if at.one else "")
    return Layer(read.expression, about, f"{at.text(at.read)}x{d}", f"{at.text(at.written)}x{d}", (line,), facts)


def separable(read: Reader) -> Layer:
    """Depthwise, then pointwise."""
    kernel = start(read)
    i = read.number("channels in, such as 64")
    read.arrow("channels out")
    o = read.number("channels out, such as 64")
    options = read.options(OPTIONS)
    kernel = fitted(kernel, options)
    at = places(read, kernel, options)
    bias = "bias" in options
    outside = 1
    for side in at.written:
        outside *= side
    lines = (spatial("depthwise", kernel, at, {"d": i}, bias), linear("pointwise", i, o, outside, bias=bias))
    symbols = {"k": kernel.product, "i": i, "o": o}
    facts = (Fact("weights of the full convolution", "k*i*o", symbols), Fact("weights here", "k*i + i*o", symbols))
    about = "taps for each channel, then a matrix of channels" + (", at one place" if at.one else "")
    return Layer(read.expression, about, f"{at.text(at.read)}x{i}", f"{at.text(at.written)}x{o}", lines, facts)
