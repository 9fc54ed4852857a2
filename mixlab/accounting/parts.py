"""Lines of the parts that many models share.

Work on single numbers is 6 a number for a norm, 5 for a softmax, 3 for a curved activation and 1 for a sum or a product: the convention
that comes nearest to the paper's Table 5. What is kept for the backward pass is what a part reads, where no other keeps it already.
"""

from __future__ import annotations

from mixlab.accounting.account import Line, Mixing


def linear(name: str, inputs: int, outputs: int, tokens: int, *, bias: bool = True, shared: bool = False) -> Line:
    """A projection of `i` to `o` channels at `n` tokens; `shared` where another part has kept what it reads."""
    return Line(
        name,
        "i*o + o" if bias else "i*o",
        "n*i*o",
        {"n": tokens, "i": inputs, "o": outputs},
        work="n*o" if bias else "0",
        kept="0" if shared else "n*i",
        live="n*i + n*o",
    )


def layer_norm(name: str, channels: int, tokens: int = 1) -> Line:
    """Scale and shift per channel; mean and deviation of each token are kept. A batch norm has as many parameters."""
    return Line(name, "2*d", "0", {"d": channels, "n": tokens}, work="6*n*d", kept="n*d + 2*n", live="2*n*d")


def batch_norm(name: str, channels: int, tokens: int) -> Line:
    """Scale and shift per channel, whose mean and deviation are kept."""
    return Line(name, "2*d", "0", {"d": channels, "n": tokens}, work="6*n*d", kept="n*d + 2*d", live="2*n*d")


def scale_norm(name: str, channels: int, tokens: int = 1) -> Line:
    """A norm with a scale per channel and no shift."""
    return Line(name, "d", "0", {"d": channels, "n": tokens}, work="6*n*d", kept="n*d + n", live="2*n*d")


def scale(name: str, channels: int, tokens: int) -> Line:
    """A product with a number per channel."""
    return Line(name, "d", "0", {"d": channels, "n": tokens}, work="n*d", kept="n*d", live="2*n*d")


def activation(name: str, channels: int, tokens: int) -> Line:
    """A function of every single number."""
    work = "n*f" if name.startswith("relu") else "3*n*f"
    return Line(name, "0", "0", {"n": tokens, "f": channels}, work=work, kept="n*f", live="2*n*f")


def addition(name: str, channels: int, tokens: int) -> Line:
    """A sum of two inputs, as of a branch and what it is a branch of. The backward pass needs neither."""
    return Line(name, "0", "0", {"n": tokens, "d": channels}, work="n*d", live="3*n*d")


def convolution(
    name: str, kernel: int, inputs: int, outputs: int, places: int, *, groups: int = 1, bias: bool = True, read: int = 0
) -> Line:
    """A k x k convolution that writes `n` places; of `i` channels each output reads i // groups. `p` places are read."""
    symbols = {"k": kernel, "i": inputs // groups, "o": outputs, "n": places, "p": read or places, "c": inputs}
    weights = "k*k*i*o"
    return Line(
        name,
        f"{weights} + o" if bias else weights,
        f"n*{weights}",
        symbols,
        work="n*o" if bias else "0",
        kept="p*c",
        live="p*c + n*o",
        mixing=None if kernel == 1 else Mixing(1, "min(k*k, i*o)", "min(p*c, n*o)", "k*k"),
    )


def convolution_1d(name: str, kernel: int, inputs: int, outputs: int, tokens: int, *, groups: int = 1, bias: bool = True) -> Line:
    """The same along a sequence of `n` tokens."""
    symbols = {"k": kernel, "i": inputs // groups, "o": outputs, "n": tokens, "c": inputs}
    return Line(
        name,
        "k*i*o + o" if bias else "k*i*o",
        "n*k*i*o",
        symbols,
        work="n*o" if bias else "0",
        kept="n*c",
        live="n*c + n*o",
        mixing=None if kernel == 1 else Mixing(1, "min(k, i*o)", "min(n*c, n*o)", "k"),
    )


def attention(n_to: int, n_from: int, width: int, heads: int = 1, *, channels: int = 0) -> Line:
    """q k^T and the product of the weights with v, over all `h` heads together; the weights themselves are not kept."""
    symbols = {"m": n_to, "t": n_from, "a": width, "h": heads, "d": channels or width}
    return Line(
        "q k^T and its product with v",
        "0",
        "2*m*t*a",
        symbols,
        work="5*h*m*t",
        kept="m*a + 2*t*a + h*m",
        live="2*m*a + 2*t*a",
        state="2*a",
        mixing=Mixing(3, "h", "min(m, t)*min(a, d)", "t", "min(t, a//h)"),
    )


def embedding(name: str, entries: int, channels: int) -> Line:
    """A table that is looked up, which costs no multiply-adds."""
    return Line(name, "V*d", "0", {"V": entries, "d": channels}, kind="embedding")


def tied_logits(vocabulary: int, channels: int, tokens: int) -> Line:
    """Logits from the transposed embedding table, whose parameters are counted once, there."""
    symbols = {"n": tokens, "d": channels, "V": vocabulary}
    return Line("logits (tied)", "0", "n*d*V", symbols, kept="n*d", live="n*d + n*V")


def patch_projection(image: int, patch: int, channels_in: int, channels: int) -> Line:
    """A convolution with stride = kernel = patch."""
    symbols = {"g": image // patch, "p": patch, "c": channels_in, "d": channels}
    return Line("patches", "p*p*c*d + d", "g*g*p*p*c*d", symbols, work="g*g*d", kept="g*g*p*p*c", live="g*g*p*p*c + g*g*d")


def attention_pool(n: int, channels: int, hidden: int, norm: Line, heads: int = 1) -> list[Line]:
    """A probe that reads `n` tokens, and a feed-forward network on what it read."""
    return [
        embedding("probe", 1, channels),
        linear("W_q of the probe", channels, channels, 1),
        linear("W_kv", channels, 2 * channels, n),
        attention(1, n, channels, heads),
        linear("W_o", channels, channels, 1),
        norm,
        linear("W_1", channels, hidden, 1),
        activation("gelu", hidden, 1),
        linear("W_2", hidden, channels, 1),
    ]
