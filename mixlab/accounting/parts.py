"""Lines of the parts that many models share.

Work on single numbers is 6 a number for a norm, 5 for a softmax, 3 for a curved activation and 1 for a sum or a product: the convention
that comes nearest to the paper's Table 5. What is kept for the backward pass is what a part reads, where no other keeps it already.
"""

from __future__ import annotations

from dataclasses import replace

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


def layer_norm(name: str, channels: int, tokens: int) -> Line:
    """Scale and shift per channel; mean and deviation of each token are kept. A batch norm has as many parameters."""
    return Line(name, "2*d", "0", {"d": channels, "n": tokens}, work="6*n*d", kept="n*d + 2*n", live="2*n*d")


def batch_norm(name: str, channels: int, tokens: int) -> Line:
    """Scale and shift per channel, whose mean and deviation are kept."""
    return Line(name, "2*d", "0", {"d": channels, "n": tokens}, work="6*n*d", kept="n*d + 2*d", live="2*n*d")


def scale_norm(name: str, channels: int, tokens: int) -> Line:
    """A norm with a scale per channel and no shift."""
    return Line(name, "d", "0", {"d": channels, "n": tokens}, work="6*n*d", kept="n*d + n", live="2*n*d")


def scale(name: str, channels: int, tokens: int) -> Line:
    """A product with a number per channel."""
    return Line(name, "d", "0", {"d": channels, "n": tokens}, work="n*d", kept="n*d", live="2*n*d")


def activation(name: str, channels: int, tokens: int) -> Line:
    """A function of every single number. What a relu needs is its result, which the next part keeps."""
    work = "n*f" if name.startswith("relu") else "3*n*f"
    return Line(name, "0", "0", {"n": tokens, "f": channels}, work=work, kept="0" if name == "relu" else "n*f", live="2*n*f")


def sums(channels: int, tokens: int, many: int = 1) -> Line:
    """`s` sums of a branch and what it is a branch of; the backward pass needs neither."""
    return Line("sums with branches", "0", "0", {"n": tokens, "d": channels, "s": many}, work="s*n*d", live="3*n*d")


def feed_forward(
    channels: int, hidden: int, tokens: int, *, names: tuple[str, str] = ("W_1", "W_2"), act: str = "gelu", shared: bool = False
) -> list[Line]:
    """Wider, an activation, and back."""
    return [
        linear(names[0], channels, hidden, tokens, shared=shared),
        activation(act, hidden, tokens),
        linear(names[1], hidden, channels, tokens),
    ]


def token_matrix(
    name: str, tokens: int, length: int, channels: int, *, heads: int = 1, structure: str = "dense", causal: bool = False
) -> Line:
    """W v for `n` of `N` tokens, with a matrix for each of `H` groups of channels; toeplitz: a number for each offset, written out as W."""
    symbols = {"N": length, "n": tokens, "H": heads, "e": channels}
    toeplitz = structure == "toeplitz"
    weights = ("H*N" if causal else "H*(2*N - 1)") if toeplitz else "H*N*N"
    matrix = "2*H*n*n" if toeplitz else "H*n*n"  # rows of twice the length, cut out of which W is
    return Line(
        name,
        weights,
        "n*n*e",
        symbols,
        kept=f"n*e + {matrix}",
        live=f"2*n*e + {matrix}",
        state="e",
        kind="toeplitz" if toeplitz else "",
        mixing=Mixing(1, "min(H, n*n)", "n*e", "n"),
    )


def gate(
    tokens: int, length: int, channels: int, *, kind: str = "split", structure: str = "dense", heads: int = 1, causal: bool = False
) -> list[Line]:
    """The spatial gate: W and b, and what is done with their result."""
    weight = token_matrix("W", tokens, length, channels, heads=heads, structure=structure, causal=causal)
    b = Line("b", "H*N", "0", weight.symbols, work="n*e")
    if kind == "linear":
        return [weight, b]
    if kind == "additive":
        return [weight, b, replace(sums(channels, tokens), name="z + f(z)")]
    # z itself is kept by the norm in front of W; of [u, v] it has seen v alone.
    names, kept = ("u * f(v)", "2*n*e") if kind == "split" else ("z * f(z)", "n*e")
    product = Line(names, "0", "0", weight.symbols, work="n*e", kept=kept, live="3*n*e")
    return [replace(weight, mixing=Mixing(2, "min(H, n*n)", "n*e", "n")), b, product]


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


def normed_convolution(name: str, kernel: int, inputs: int, outputs: int, places: int, *, groups: int = 1, read: int = 0) -> list[Line]:
    """Without a bias, which the batch norm behind it brings; then a relu that stops at 6."""
    line = convolution(name, kernel, inputs, outputs, places, groups=groups, bias=False, read=read)
    return [line, batch_norm(f"{name} norm", outputs, places), activation("relu6", outputs, places)]


def convolution_1d(name: str, kernel: int, inputs: int, outputs: int, tokens: int, *, groups: int = 1, bias: bool = True) -> Line:
    """The same along a sequence of `n` tokens, with zeros before and behind."""
    symbols = {"k": kernel, "i": inputs // groups, "o": outputs, "n": tokens, "c": inputs}
    return Line(
        name,
        "k*i*o + o" if bias else "k*i*o",
        "n*k*i*o",
        symbols,
        work="n*o" if bias else "0",
        kept="(n + k - 1)*c",
        live="(n + k - 1)*c + n*o",
        mixing=None if kernel == 1 else Mixing(1, "min(k, i*o)", "min(n*c, n*o)", "k"),
    )


def attention(n_to: int, n_from: int, width: int, heads: int, *, channels: int = 0, biased: bool = False, order: int = 3) -> Line:
    """q k^T and the product of the weights with v, over all `h` heads. The weights are not kept, unless a bias is learned."""
    symbols = {"m": n_to, "t": n_from, "a": width, "h": heads, "d": channels or width}
    return Line(
        "q k^T and its product with v",
        "0",
        "2*m*t*a",
        symbols,
        work="5*h*m*t",
        # With a learned bias, q and k are kept again as they were scaled.
        kept="2*m*a + 3*t*a + h*m*t" if biased else "m*a + 2*t*a + h*m",
        live="2*m*a + 2*t*a",
        state="2*a",
        mixing=Mixing(order, "min(h, m*t)", "min(m, t)*min(a, d)", "t", "min(t, a//h)"),
    )


def window_attention(tokens: int, window: int, width: int, heads: int, *, channels: int = 0, biased: bool = False) -> Line:
    """Each token reads the `t` of its window; a window is a block on the diagonal, with weights of its own."""
    line = attention(tokens, window, width, heads, channels=channels, biased=biased)
    kept = "3*m*a + h*m*t" if biased else "3*m*a + h*m"
    mixing = Mixing(3, "h*(m//t)", "m*min(a, d)", "t", "min(t, a//h)")
    return replace(line, kept=kept, live="4*m*a", mixing=mixing)


def gram(tokens: int, channels: int) -> Line:
    """X X^T X, with the products of all pairs written out."""
    return Line(
        "X X^T, and its product with X",
        "0",
        "2*n*n*d",
        {"n": tokens, "d": channels},
        work="n*n",
        kept="n*d + n*n",
        live="2*n*d + n*n",
        state="d",
        mixing=Mixing(3, "1", "min(n, d)*d", "n", "min(n, d)"),
    )


def fourier(tokens: int, channels: int) -> Line:
    """A fast transform, which is no product of matrices and counts no multiply-adds."""
    symbols = {"n": tokens, "d": channels}
    return Line("Re(F_n X F_d)", "0", "0", symbols, live="2*n*d", kind="fourier", mixing=Mixing(1, "2", "n*d", "n"))


def pooling(side: int, channels: int, tokens: int) -> Line:
    """The mean of k x k places less the place itself; no weights, and no multiply-adds."""
    symbols = {"k": side, "d": channels, "n": tokens}
    mixing = Mixing(1, "1", "n*d", "k*k")
    return Line("P - I", "0", "0", symbols, work="(k*k + 1)*n*d", kept="n*d", live="2*n*d", mixing=mixing)


def largest(channels: int, places: int) -> Line:
    """The largest of 2 x 2 places. Which it was is kept as well, but not as a number with a point."""
    return Line("pool", "0", "0", {"d": channels, "n": places}, work="n*d", kept="n*d", live="n*d + n*d//4")


def gated_linear(channels: int, tokens: int, *, fused: bool = False) -> Line:
    """a * sigmoid(g), where a and g are two halves of what came in; sigmoid(g) is kept as well, unless both are one operation."""
    kept = "2*n*d" if fused else "3*n*d"
    return Line("a * sigmoid(g)", "0", "0", {"n": tokens, "d": channels}, work="4*n*d", kept=kept, live="3*n*d")


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


def attention_pool(n: int, channels: int, hidden: int, norm: Line, heads: int) -> list[Line]:
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
