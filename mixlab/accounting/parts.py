"""Lines of the parts that many models share."""

from __future__ import annotations

from mixlab.accounting.account import Line


def linear(name: str, inputs: int, outputs: int, tokens: int, *, bias: bool = True) -> Line:
    """A projection of `i` to `o` channels at `n` tokens."""
    return Line(name, "i*o + o" if bias else "i*o", "n*i*o", {"n": tokens, "i": inputs, "o": outputs})


def layer_norm(name: str, channels: int) -> Line:
    """Scale and shift per channel."""
    return Line(name, "2*d", "0", {"d": channels})


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
