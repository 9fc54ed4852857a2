"""The claims of the notes that this project began with, in the order of the text. Every number beside them is counted when asked for."""

from __future__ import annotations

from fractions import Fraction

from mixlab.accounting.claims import Check, Claim, bound, count, layer, weights

IMAGE, LARGE = "256x256x3", "4096x4096x3"
HEADS = "attention n=512 d=768 h=12"
FULL_1D, FULL_2D, FULL_64 = "conv 3 1->1 on 256 full", "conv 3x3 1->1 on 256x256 full", "conv 3x3 64->64 on 256x256 full"
ALL = "dense 512x768 -> 512x768"
SQUARE, NETWORK, BLOCK = "pointwise 768->768", "ffn d=768", "transformer d=768"


def fact(expression: str, name: str) -> int:
    return layer(expression).fact(name)


def gpt2(d: int, layers: int) -> int:
    """Blocks, the table of tokens and that of positions, a norm."""
    block = weights(f"transformer d={d} bias")
    return layers * block + weights(f"embedding 50257x{d}") + weights(f"embedding 1024x{d}") + weights(f"norm {d}")


def bert_tables() -> int:
    """Of tokens, positions and segments, and the norm behind them."""
    return sum(weights(f"embedding {entries}x768") for entries in (30522, 512, 2)) + weights("norm 768")


def bert() -> int:
    return 12 * weights(f"{BLOCK} bias") + bert_tables() + weights(f"{SQUARE} bias")


def vit() -> int:
    """Patches, the cls token, positions, blocks, a norm, a thousand labels."""
    tables = weights("embedding 1x768") + weights("embedding 197x768")
    ends = weights("patches 224 by 16 d=768 bias") + weights("norm 768") + weights("pointwise 768->1000 bias")
    return tables + ends + 12 * weights(f"{BLOCK} bias")


CLAIMS = (
    Claim(
        1,
        "The highest rank of a product of an m x n with an n x p matrix is min(m, n, p)",
        (Check("min(512, 64, 512)", "rank of q k^T, 512 x 64 by 64 x 512", lambda: bound(HEADS, "logits")),),
        "a bound, which generic matrices reach and special ones do not",
    ),
    Claim(
        2,
        "From 1024 numbers to 100: a 100 x 1024 matrix of rank about 100",
        (
            Check("100*1024", "weights", lambda: weights("dense 1024 -> 100")),
            Check("~100", "rank at the most", lambda: bound("dense 1024 -> 100", "rank")),
        ),
    ),
    Claim(
        3,
        "Fully connected from 1024 x 64 to 100 x 64",
        (Check("419M", "weights", lambda: weights("dense 1024x64 -> 100x64")),),
    ),
    Claim(
        4,
        "... of which rank?",
        (
            Check("", "rank as one matrix, at the most", lambda: bound("dense 1024x64 -> 100x64", "rank")),
            Check("", "terms M X W, at the most (operator-Schmidt rank)", lambda: bound("dense 1024x64 -> 100x64", "terms")),
        ),
    ),
    Claim(
        5,
        "Simplification I: 100 x 1024 weights, times 64?",
        (
            Check("100*1024", "weights, shared by the channels", lambda: weights("tokens 1024 -> 100 d=64")),
            Check("", "weights, a matrix for each channel", lambda: weights("tokens 1024 -> 100 d=64 per-channel")),
        ),
        "the text says that channels share them, so not times 64",
    ),
    Claim(
        6,
        "Simplification II: 64 x 64 weights, not applicable here",
        (
            Check("64*64", "weights", lambda: weights("pointwise 64->64")),
            Check(
                "1024",
                "tokens that leave it, which therefore are not 100",
                lambda: int(layer("pointwise 64->64 on 1024").gives.split("x")[0]),
            ),
        ),
        "channels are mixed token by token, so the number of tokens stays",
    ),
    Claim(
        7,
        "Fully connected from 512 x 768 to 512 x 768",
        (Check("155B", "weights", lambda: weights(ALL)),),
        "154B, further on, is the same number cut off",
    ),
    Claim(
        8,
        "Simplification I: 512 x 512 weights, times 768?",
        (
            Check("512*512", "weights, shared by the channels", lambda: weights("tokens 512 -> 512 d=768")),
            Check("", "weights, a matrix for each channel", lambda: weights("tokens 512 -> 512 d=768 per-channel")),
        ),
    ),
    Claim(9, "Simplification II: 768 x 768, less than a million", (Check("< 1M", "weights", lambda: weights(SQUARE)),)),
    Claim(
        10,
        "A multilayer perceptron 1024-2048-100",
        (
            Check("", "weights", lambda: weights("mlp 1024 -> 2048 -> 100")),
            Check("", "with biases", lambda: weights("mlp 1024 -> 2048 -> 100 bias")),
        ),
        "no figure is given",
    ),
    Claim(
        11,
        "A kernel of 3 on 256 places as a matrix: 256 x 258, 258 = 256 + 3 - 1",
        (
            Check("256 + 3 - 1", "rows", lambda: fact(FULL_1D, "rows of its matrix")),
            Check("256", "columns", lambda: fact(FULL_1D, "columns of its matrix")),
        ),
        "it is 258 x 256, as the line below it in the text has it",
    ),
    Claim(
        12,
        "... of which 3 x 258 entries are not zero",
        (Check("3*258", "entries that are not zero", lambda: fact(FULL_1D, "entries that are not zero")),),
        "every column holds the 3 taps; rows at the borders hold fewer",
    ),
    Claim(
        13,
        "... in 258 repeated columns",
        (Check("258", "columns, each the one before it moved by a row", lambda: fact(FULL_1D, "columns of its matrix")),),
    ),
    Claim(14, "A kernel of 3 from 64 channels to 64", (Check("3*64*64", "weights", lambda: weights("conv 3 64->64")),)),
    Claim(
        15,
        "Depthwise: 1 x 3 x 64 weights, which all channels share",
        (
            Check("1*3*64", "weights, a kernel for each channel", lambda: weights("depthwise 3 64")),
            Check("1*3*64", "weights, if channels shared one kernel", lambda: weights("depthwise 3 1")),
        ),
        "the count is that of one kernel for each channel, the sentence is not",
    ),
    Claim(16, "Pointwise: 64 x 64", (Check("64*64", "weights", lambda: weights("pointwise 64->64")),)),
    Claim(
        17,
        "A kernel of 3 x 3 on 256 x 256 places: 3 x 3 x 258 x 258 entries are not zero",
        (Check("3*3*258*258", "for each pair of channels", lambda: fact(FULL_2D, "entries that are not zero")),),
        "nine taps for each place that is read, not for each that is written",
    ),
    Claim(
        18,
        "... with 64 channels, a matrix of (258 x 64) x (256 x 64)",
        (Check("(258*64)*(256*64)", "entries", lambda: fact(FULL_64, "entries of its matrix")),),
        "the line for sequences, repeated: an image has a second axis",
    ),
    Claim(19, "3 x 3 from 64 channels to 64", (Check("36.9K", "weights", lambda: weights("conv 3x3 64->64")),)),
    Claim(
        20,
        "... as depthwise and pointwise",
        (
            Check("4.7K", "weights", lambda: weights("separable 3x3 64->64")),
            Check(None, "share of the full ones", lambda: Fraction(weights("separable 3x3 64->64"), weights("conv 3x3 64->64")), "%"),
            Check(None, "1 / channels out + 1 / taps", lambda: Fraction(1, 64) + Fraction(1, 9), "%"),
        ),
    ),
    Claim(
        21,
        "The fully connected layer computes 154 T operations",
        (
            Check("154T", "MACs", lambda: count(ALL).macs),
            Check(None, "FLOPs", lambda: count(ALL).flops),
        ),
        "every weight is used once: as many MACs as weights, a thousand times fewer",
    ),
    Claim(22, "Three matrices of 768 x 768: 2M", (Check("2M", "weights", lambda: 3 * weights(SQUARE)),)),
    Claim(23, "One of them: less than a million", (Check("< 1M", "weights", lambda: weights(SQUARE)),)),
    Claim(
        24,
        "X X^T X keeps the shape of X, with rank min(m, n)",
        (
            Check("min(512, 768)", "rank at the most", lambda: fact("gram n=512 d=768", "rank of what comes out, at the most")),
            Check(None, "MACs", lambda: count("gram n=512 d=768").macs),
            Check(None, "MACs as X (X^T X)", lambda: fact("gram n=512 d=768", "MACs in the other order, X (X^T X)")),
        ),
        "the rank is that of X itself; the singular values are cubed, the vectors stay",
    ),
    Claim(
        25,
        "The attention matrix is much smaller than 768, therefore of low rank",
        (Check("512", "rank of the logits of a head, at the most", lambda: bound(HEADS, "logits")),),
        "512 is not much smaller than 768; the channels of a head are the bottleneck, and the softmax lifts it",
    ),
    Claim(
        26,
        "V, K and Q: 3 x 768 x 768",
        (
            Check("3*768*768", "weights", lambda: count(HEADS).lines[0].param_count),
            Check(None, "and W_o, which is left out", lambda: count(HEADS).lines[2].param_count),
        ),
    ),
    Claim(27, "The network behind it: 768^2 x 4 x 2? = 5M", (Check("5M", "weights", lambda: weights(NETWORK)),)),
    Claim(
        28,
        "A block: 2M + 5M = 7.1M",
        (
            Check("7.1M", "weights of the whole block", lambda: weights(BLOCK)),
            Check("7.1M", "the terms that the text adds", lambda: 3 * weights(SQUARE) + weights(NETWORK)),
            Check(None, "with biases and norms", lambda: weights(f"{BLOCK} bias")),
            Check(None, "W_o, which is missing", lambda: weights(SQUARE)),
        ),
        "the total is right, its derivation lacks W_o",
    ),
    Claim(
        29,
        "BERT's 12 blocks: about 85M",
        (
            Check("~85M", "parameters", lambda: 12 * weights(f"{BLOCK} bias")),
            Check(None, "the terms that the text adds", lambda: 12 * (3 * weights(SQUARE) + weights(NETWORK))),
        ),
    ),
    Claim(
        30,
        "... and 25M for the embedding of tokens",
        (
            Check("25M", "the table of tokens", lambda: weights("embedding 30522x768")),
            Check(None, "all tables, and their norm", bert_tables),
        ),
    ),
    Claim(
        31,
        "... 512 x 768 = 0.39M??",
        (Check("0.39M", "the table of positions", lambda: weights("embedding 512x768")),),
        "the number is right, and it is that of the positions",
    ),
    Claim(32, "So BERT-base has, in all", (Check("", "parameters, with the pooler", bert),)),
    Claim(
        33,
        "GPT-2 = ?",
        (
            Check("", "small", lambda: gpt2(768, 12)),
            Check("", "medium", lambda: gpt2(1024, 24)),
            Check("", "large", lambda: gpt2(1280, 36)),
            Check("", "XL", lambda: gpt2(1600, 48)),
        ),
        "a block is as large as BERT's, to the digit",
    ),
    Claim(
        34,
        "Images of 256, moved by up to 16 either way: 224",
        (Check("2*16 + 1", "places for a window of 224", lambda: int(layer("depthwise 224 1 on 256 valid").gives.split("x")[0])),),
    ),
    Claim(
        35,
        "Fully connected over 256 x 256 x 3",
        (Check("38B", "weights", lambda: weights(f"dense {IMAGE} -> {IMAGE}")),),
        "cut off, where 39 is nearer",
    ),
    Claim(
        36,
        "With 4K x 4K, parameters grow 16 times",
        (
            Check("16", "times as many", lambda: weights(f"dense {LARGE} -> {LARGE}") // weights(f"dense {IMAGE} -> {IMAGE}")),
            Check(None, "weights", lambda: weights(f"dense {LARGE} -> {LARGE}")),
        ),
        "16 times the side is 256 times the pixels, which are squared",
    ),
    Claim(
        37,
        "Depthwise and pointwise: (256 x 256)^2 x 3 + 3 x 3 = 12.9B",
        (
            Check(
                "12.9B",
                "tokens per channel, and pointwise",
                lambda: weights("tokens 65536 -> 65536 d=3 per-channel") + weights("pointwise 3->3"),
            ),
            Check("12.9B", "a depthwise 3 x 3 and pointwise", lambda: weights("separable 3x3 3->3")),
            Check(
                None,
                "tokens, shared by the channels, and pointwise",
                lambda: weights("tokens 65536 -> 65536 d=3") + weights("pointwise 3->3"),
            ),
        ),
        "the number is right; it is simplification I with a matrix for each channel, and no depthwise convolution",
    ),
    Claim(
        38,
        "A first layer of 3 x 3 from 3 channels to 64: 1.7K, and much more computation than parameters",
        (
            Check("1.7K", "weights", lambda: weights("conv 3x3 3->64")),
            Check(None, "with biases", lambda: weights("conv 3x3 3->64 bias")),
            Check(None, "MACs on 256 x 256", lambda: count("conv 3x3 3->64 on 256x256").macs),
            Check(None, "MACs for each weight", lambda: count("conv 3x3 3->64 on 256x256").macs // weights("conv 3x3 3->64")),
        ),
    ),
    Claim(39, "3 x 3 from 512 channels to 1024", (Check("4.7M", "weights", lambda: weights("conv 3x3 512->1024")),)),
    Claim(40, "20 such layers: about 80M", (Check("~80M", "weights", lambda: 20 * weights("conv 3x3 512->1024")),), "if all were so large"),
    Claim(
        41,
        "With 4K x 4K, its parameters grow linearly",
        (
            Check(
                "256",
                "times the parameters",
                lambda: Fraction(weights("conv 3x3 3->64 on 4096x4096"), weights("conv 3x3 3->64 on 256x256")),
            ),
            Check(None, "times the MACs", lambda: count("conv 3x3 3->64 on 4096x4096").macs // count("conv 3x3 3->64 on 256x256").macs),
        ),
        "they do not grow at all; the computation grows with the pixels",
    ),
    Claim(
        42,
        "Depthwise and pointwise from 512 to 1024: 529K, 11%",
        (
            Check("529K", "weights", lambda: weights("separable 3x3 512->1024")),
            Check("11%", "share", lambda: Fraction(weights("separable 3x3 512->1024"), weights("conv 3x3 512->1024")), "%"),
        ),
    ),
    Claim(
        43,
        "256 x 256 in patches of 3 x 3: 7281",
        (
            Check("7281", "patches that fit", lambda: fact("patches 256 by 3", "patches")),
            Check(None, "patches, padded", lambda: fact("patches 256 by 3", "patches, if the image is padded instead")),
        ),
        "3 does not divide 256",
    ),
    Claim(44, "In patches of 16 x 16: 256", (Check("256", "patches", lambda: fact("patches 256 by 16", "patches")),)),
    Claim(
        45,
        "12 layers of 7.1M: 84M pixels",
        (
            Check("84M", "weights of 12 blocks", lambda: 12 * weights(BLOCK)),
            Check("84M", "pixels of the image", lambda: fact("patches 256 by 1", "patches")),
        ),
        "these are parameters, not pixels",
    ),
    Claim(
        46,
        "A patch is 16 x 16 x 3 = 768 numbers, and 224 x 224 has 196, less than 512",
        (
            Check("16*16*3", "numbers of a patch", lambda: fact("patches 224 by 16", "numbers of a patch")),
            Check("196", "patches", lambda: fact("patches 224 by 16", "patches")),
            Check("< 512", "tokens, with cls", lambda: fact("patches 224 by 16", "patches") + 1),
        ),
    ),
    Claim(
        47,
        "ViT needs one convolution, whose weights all patches share",
        (
            Check(
                "(16*16*3 + 1)*768", "parameters of kernel = stride = 16", lambda: weights("conv 16x16 3->768 on 224x224 stride 16 bias")
            ),
            Check(None, "the whole ViT-B/16", vit),
        ),
    ),
    Claim(
        48,
        "ViT-22B: 224 in patches of 14 gives 256 tokens",
        (
            Check("256", "tokens", lambda: fact("patches 224 by 14", "patches")),
            Check("22B", "weights of its blocks", lambda: 48 * weights("transformer d=6144 f=24576")),
        ),
    ),
    Claim(49, "Parallel branches are 15% faster, no biases use 3% more of the machine, training diverged at 8B", (), "measured by others"),
    Claim(
        50,
        "Swin has 16 times the tokens of ViT",
        (
            Check("16", "times at 256", lambda: Fraction(fact("patches 256 by 4", "patches"), fact("patches 256 by 16", "patches"))),
            Check("16", "times at 224", lambda: Fraction(fact("patches 224 by 4", "patches"), fact("patches 224 by 16", "patches"))),
        ),
    ),
)
