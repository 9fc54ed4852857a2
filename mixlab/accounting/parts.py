"""Lines of the parts that many models share."""

from __future__ import annotations

from mixlab.accounting.account import Line


def linear(name: str, inputs: int, outputs: int, tokens: int, *, bias: bool = True) -> Line:
    """A projection of `i` to `o` channels at `n` tokens."""
    return Line(name, "i*o + o" if bias else "i*o", "n*i*o", {"n": tokens, "i": inputs, "o": outputs})


def layer_norm(name: str, channels: int) -> Line:
    """Scale and shift per channel; a batch norm has as many."""
    return Line(name, "2*d", "0", {"d": channels})


def scale_norm(name: str, channels: int) -> Line:
    """A norm with a scale per channel and no shift."""
    return Line(name, "d", "0", {"d": channels})


def convolution(name: str, kernel: int, inputs: int, outputs: int, places: int, *, groups: int = 1, bias: bool = True) -> Line:
    """A k x k convolution that writes `n` places; of `i` channels each output reads i // groups."""
    symbols = {"k": kernel, "i": inputs // groups, "o": outputs, "n": places}
    return Line(name, "k*k*i*o + o" if bias else "k*k*i*o", "n*k*k*i*o", symbols)


def convolution_1d(name: str, kernel: int, inputs: int, outputs: int, tokens: int, *, groups: int = 1, bias: bool = True) -> Line:
    """The same along a sequence of `n` tokens."""
    symbols = {"k": kernel, "i": inputs // groups, "o": outputs, "n": tokens}
    return Line(name, "k*i*o + o" if bias else "k*i*o", "n*k*i*o", symbols)


def attention(n_to: int, n_from: int, width: int) -> Line:
    """q k^T and the product of the weights with v, over all heads together."""
    return Line("q k^T and its product with v", "0", "2*m*t*a", {"m": n_to, "t": n_from, "a": width})


def embedding(name: str, entries: int, channels: int) -> Line:
    """A table that is looked up, which costs no multiply-adds."""
    return Line(name, "V*d", "0", {"V": entries, "d": channels})


def tied_logits(vocabulary: int, channels: int, tokens: int) -> Line:
    """Logits from the transposed embedding table, whose parameters are counted once, there."""
    return Line("logits (tied)", "0", "n*d*V", {"n": tokens, "d": channels, "V": vocabulary})


def patch_projection(image: int, patch: int, channels_in: int, channels: int) -> Line:
    """A convolution with stride = kernel = patch."""
    symbols = {"g": image // patch, "p": patch, "c": channels_in, "d": channels}
    return Line("patches", "p*p*c*d + d", "g*g*p*p*c*d", symbols)


def attention_pool(n: int, channels: int, hidden: int, norm: Line) -> list[Line]:
    """A probe that reads `n` tokens, and a feed-forward network on what it read."""
    return [
        embedding("probe", 1, channels),
        linear("W_q of the probe", channels, channels, 1),
        linear("W_kv", channels, 2 * channels, n),
        attention(1, n, channels),
        linear("W_o", channels, channels, 1),
        norm,
        linear("W_1", channels, hidden, 1),
        linear("W_2", hidden, channels, 1),
    ]
