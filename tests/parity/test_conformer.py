"""Conformer: torchaudio's halves, transformers' block and sums that are written out, with the same weights, say the same."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from transformers.models.parakeet import modeling_parakeet

import mixlab
from mixlab import MixlabError
from mixlab.accounting import Account
from mixlab.archs.conformer import Block, ConformerConfig, Subsampling
from mixlab.cli.show import facts
from mixlab.layers import Tokens
from mixlab.modeling.convert_back import foreign_state
from tests.modeling.tiny import randomise
from tests.parity.images import moved
from tests.reference import conformer as reference
from tests.reference.compare import randomised

ROWS = {
    "Conformer: a block with relative attention, padded or not [transformers ParakeetEncoderBlock]": "test_a_block_is_parakeets",
    "Conformer: convolution module, in evaluation and in training [torchaudio]": "test_the_convolution_module_is_torchaudios",
    "Conformer: both halves of the feed-forward network [torchaudio]": "test_the_feed_forward_halves_are_torchaudios",
    "Conformer: relative logits and their gradients [loop]": "test_relative_logits",
    "Conformer: depthwise convolution, odd and even kernels [loop]": "test_depthwise_convolution",
    "Conformer: subsampling stem, 2, 4 and 8 frames to a token [loop]": "test_subsampling",
    "Conformer: exact parameters of S, M and L and of their blocks [closed form]": "test_counts",
    "Conformer: padding is in no statistic and no token, in training too": "test_more_padding_changes_nothing_in_training",
    "Conformer: one tap more ahead, where an even kernel is asked for": "test_an_even_kernel_reads_one_token_more_ahead",
    "Conformer: even kernels, heads that do not divide, too few frames or features are refused": "test_bad_settings_are_refused",
}

D, HEADS, F, KERNEL = 24, 3, 40, 5
SIZES = {"hidden_size": D, "num_attention_heads": HEADS, "intermediate_size": F, "layer_norm_eps": 1e-5}
# preset: parameters of the encoder, of one block, and what the paper prints.
COUNTS = {
    "conformer-s": (8_692_416, 506_880, "10.3M"),
    "conformer-m": (27_266_048, 1_589_248, "30.7M"),
    "conformer-l": (114_857_984, 6_324_224, "118.8M"),
}


def block(**more: Any) -> Block:
    return Block(ConformerConfig(**{**SIZES, "conv_kernel_size": KERNEL, **more}), 0).eval()


def of_convolution(theirs: dict[str, Tensor], names: dict[str, str]) -> dict[str, Tensor]:
    """Convolutions of width 1 are our projections."""
    found = {}
    for name, tensor in theirs.items():
        module, _, kind = name.rpartition(".")
        if module in names:
            ours = names[module]
            found[f"{ours}.{kind}"] = tensor.squeeze(-1) if ours in ("widen", "narrow") and kind == "weight" else tensor
    return found


PARAKEET = {
    "norm_feed_forward1": "ffn_norm_1",
    "feed_forward1.linear1": "ffn_1.widen",
    "feed_forward1.linear2": "ffn_1.narrow",
    "norm_self_att": "attention_norm",
    "self_attn.relative_k_proj": "attention.logit_bias.projection",
    "self_attn.o_proj": "attention.out",
    "norm_conv": "convolution_norm",
    "norm_feed_forward2": "ffn_norm_2",
    "feed_forward2.linear1": "ffn_2.widen",
    "feed_forward2.linear2": "ffn_2.narrow",
    "norm_out": "norm",
}
CONVOLUTION = {"pointwise_conv1": "widen", "depthwise_conv": "depthwise.taps", "norm": "norm", "pointwise_conv2": "narrow"}


def from_parakeet(theirs: nn.Module) -> Block:
    state = theirs.state_dict()
    ours: dict[str, Tensor] = {}
    for name, tensor in state.items():
        module, _, kind = name.rpartition(".")
        if module in PARAKEET:
            ours[f"{PARAKEET[module]}.{kind}"] = tensor
    for kind in ("weight", "bias"):
        ours[f"attention.qkv.{kind}"] = torch.cat([state[f"self_attn.{part}_proj.{kind}"] for part in "qkv"])
    for letter in "uv":
        ours[f"attention.logit_bias.{letter}"] = state[f"self_attn.bias_{letter}"][:, None]
    inner = {name.removeprefix("conv."): tensor for name, tensor in state.items() if name.startswith("conv.")}
    ours |= {f"convolution.{name}": tensor for name, tensor in of_convolution(inner, CONVOLUTION).items()}
    made = block()
    made.load_state_dict(ours, strict=True)
    return made


@torch.no_grad()
@pytest.mark.parametrize("real", [None, 7], ids=["whole", "padded"])
def test_a_block_is_parakeets(real: int | None) -> None:
    sizes = {name: SIZES[name] for name in ("hidden_size", "num_attention_heads", "intermediate_size")}
    config = transformers.ParakeetEncoderConfig(**sizes, conv_kernel_size=KERNEL, num_hidden_layers=1, attn_implementation="eager")
    theirs = moved(modeling_parakeet.ParakeetEncoderBlock(config, 0), scale=0.2)
    ours = from_parakeet(theirs)
    x = torch.randn(2, 11, D)
    places = modeling_parakeet.ParakeetEncoderRelPositionalEncoding(config)(x)
    mask = None if real is None else torch.arange(11) < torch.tensor([[11], [real]])
    both = None if mask is None else mask[:, None, :, None] & mask[:, None, None, :]
    expected = theirs(x, attention_mask=both, position_embeddings=places)
    found = ours(Tokens(x, mask)).x
    kept = torch.ones(2, 11, dtype=torch.bool) if mask is None else mask
    torch.testing.assert_close(found[kept], expected[kept], rtol=0, atol=1e-5)
    ours.attention.logit_bias.v.zero_()  # what says nothing of distances is seen
    assert (ours(Tokens(x, mask)).x[kept] - expected[kept]).abs().max() > 1e-3


@pytest.mark.parametrize("training", [False, True], ids=["evaluation", "training"])
def test_the_convolution_module_is_torchaudios(oracle_file: Any, training: bool) -> None:
    theirs = moved(oracle_file("torchaudio/models/conformer.py")._ConvolutionModule(D, D, KERNEL, bias=True), scale=0.2).train(training)
    ours = block().train(training)
    names = {"sequential.0": "widen", "sequential.2": "depthwise.taps", "sequential.3": "norm", "sequential.5": "narrow"}
    ours.convolution.load_state_dict(of_convolution(theirs.state_dict(), names), strict=True)
    ours.convolution_norm.load_state_dict(theirs.layer_norm.state_dict())
    x = torch.randn(3, 11, D)
    torch.testing.assert_close(ours.convolution(Tokens(ours.convolution_norm(x))), theirs(x), rtol=0, atol=1e-5)
    statistics = ("running_mean", "running_var", "num_batches_tracked")
    for name in statistics:
        torch.testing.assert_close(getattr(ours.convolution.norm, name), getattr(theirs.sequential[3], name))


@torch.no_grad()
@pytest.mark.parametrize("half", [1, 2])
def test_the_feed_forward_halves_are_torchaudios(oracle_file: Any, half: int) -> None:
    """What the block adds is one half of what torchaudio's module says: all else in the block is silenced."""
    theirs = randomise(oracle_file("torchaudio/models/conformer.py")._FeedForwardModule(D, F)).eval()
    ours = block()
    for branch in (ours.ffn_1.narrow, ours.ffn_2.narrow, ours.attention.out, ours.convolution.narrow):
        nn.init.zeros_(branch.weight)
        nn.init.zeros_(branch.bias)
    norm, ffn = (ours.ffn_norm_1, ours.ffn_1) if half == 1 else (ours.ffn_norm_2, ours.ffn_2)
    for mine, other in ((norm, 0), (ffn.widen, 1), (ffn.narrow, 4)):
        mine.load_state_dict(theirs.sequential[other].state_dict())
    x = torch.randn(2, 7, D)
    torch.testing.assert_close(ours(Tokens(x)).x, ours.norm(x + 0.5 * theirs(x)), rtol=0, atol=1e-5)


def test_relative_logits() -> None:
    """In double precision, up to the sines, which are made in single."""
    relative: Any = randomised(block().attention.logit_bias)
    q, k = (torch.randn(2, HEADS, 6, D // HEADS, dtype=torch.float64, requires_grad=True) for _ in range(2))
    places = torch.arange(6)[None]
    found = q @ k.mT / (D // HEADS) ** 0.5 + relative(q, k, places, places)
    W_r = relative.projection.weight.unflatten(0, (HEADS, -1))
    of_heads = [(q[i, h], k[i, h], relative.u[h, 0], relative.v[h, 0], W_r[h]) for i in range(2) for h in range(HEADS)]
    expected = torch.stack([reference.relative_logits(*given) for given in of_heads]).unflatten(0, (2, HEADS))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    weights = torch.randn_like(found)
    wanted = [q, k, *relative.parameters()]
    ours, theirs = (torch.autograd.grad((said * weights).sum(), wanted) for said in (found, expected))
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("kernel", [1, 2, 5, 6, 15])
def test_depthwise_convolution(kernel: int) -> None:
    ours: Any = randomised(block(conv_kernel_size=kernel, conv_uneven=kernel % 2 == 0).convolution.depthwise)
    x = torch.randn(2, 7, D, dtype=torch.float64)
    mask = torch.arange(7) < torch.tensor([[7], [4]])
    weight, bias = ours.taps.weight[:, 0], ours.taps.bias
    torch.testing.assert_close(ours(x, None), torch.stack([reference.depthwise(row, weight, bias) for row in x]))
    torch.testing.assert_close(ours(x, mask)[1, :4], reference.depthwise(x[1, :4], weight, bias))


@torch.no_grad()
@pytest.mark.parametrize("stride", [2, 4, 8])
def test_subsampling(stride: int) -> None:
    """Every token, and how many there are; a recording of one frame less than another token needs has one token less."""
    config = ConformerConfig(**{**SIZES, "hidden_size": 6}, num_mel_bins=19, frame_stride=stride)
    stem: Any = randomised(Subsampling(config).eval())
    for frames, tokens in ((config.fewest_frames(3), 3), (config.fewest_frames(3) - 1, 2), (config.fewest_frames(1), 1)):
        x = torch.randn(1, frames, 19, dtype=torch.float64)
        expected = x
        for convolution in stem.convolutions:
            expected = reference.subsampled(expected, convolution.weight, convolution.bias)
        expected = torch.stack([stem.projection(expected[:, i].flatten()) for i in range(expected.shape[1])])
        assert expected.shape[0] == tokens
        torch.testing.assert_close(stem(x)[0], expected)
        assert stem.shorten(torch.ones(1, frames, dtype=torch.bool)).shape == (1, tokens)


@pytest.mark.parametrize("preset", COUNTS)
def test_counts(preset: str) -> None:
    whole, of_block, published = COUNTS[preset]
    counted = mixlab.account(preset)
    config = mixlab.config(preset)
    with torch.device("meta"):
        model = mixlab.create(preset)
    assert counted.params == sum(p.numel() for p in model.parameters()) == whole
    assert sum(p.numel() for p in model.body.blocks[0].parameters()) == of_block
    d = config.hidden_size
    assert of_block == 24 * d * d + (config.conv_kernel_size + 32) * d
    assert sum(line.param_count for line in counted.lines if line.times > 1) == config.num_hidden_layers * of_block
    shown, note = facts(preset, None, None), "printed with the LSTM decoder of its transducer; this is the encoder"
    assert (shown["published"], shown["published_note"]) == (published, note)


def test_more_tokens_cost_more_and_weigh_the_same() -> None:
    short, long = (mixlab.account("conformer-s", length=n) for n in (500, 2000))  # any length is counted
    assert isinstance(long, Account)
    assert short.params == long.params
    assert long.macs > 4 * short.macs


@torch.no_grad()
def test_more_padding_changes_nothing_in_training() -> None:
    """Real tokens and the statistics of the batch norms, whatever stands in padding and however much there is of it."""
    torch.manual_seed(0)
    start = randomise(mixlab.create("conformer-tiny", task="ctc", num_hidden_layers=2), scale=0.05).train()
    frames = torch.randn(2, 60, start.config.num_mel_bins)
    real = torch.tensor([[60], [37]])
    runs = []
    for length in (60, 61, 95):
        model = copy.deepcopy(start)
        padded = torch.full((2, length, frames.shape[2]), float("nan"))
        padded[:, :60] = frames
        mask = (torch.arange(length) < real).long()
        labels = torch.tensor([[1, 2, 3], [4, 4, -100]])
        output = model(input_features=padded.where(mask[..., None].bool(), torch.nan), attention_mask=mask, labels=labels)
        kept = model.model.token_mask(mask)
        assert kept.sum(1).tolist() == [14, 8]
        runs.append((output.logits[kept], output.loss, dict(model.named_buffers())))
    for logits, loss, statistics in runs[1:]:
        torch.testing.assert_close(logits, runs[0][0], rtol=0, atol=1e-5)
        torch.testing.assert_close(loss, runs[0][1])
        torch.testing.assert_close(statistics, runs[0][2])
    assert any(not torch.equal(a, b) for a, b in zip(runs[0][2].values(), start.buffers(), strict=True))


def test_an_even_kernel_reads_one_token_more_ahead() -> None:
    depthwise = block(conv_kernel_size=4, conv_uneven=True).convolution.depthwise
    x = torch.zeros(1, 9, D, requires_grad=True)
    read = torch.autograd.grad(depthwise(x, None)[0, 4].sum(), x)[0][0].abs().sum(-1)
    assert (read > 0).nonzero().flatten().tolist() == [3, 4, 5, 6]


BAD = {
    "conv_kernel_size 32 is even and has no middle; use 33, or conv_uneven=True": {"conv_kernel_size": 32},
    "conv_kernel_size 31 is odd; leave conv_uneven out": {"conv_kernel_size": 31, "conv_uneven": True},
    "conv_kernel_size is 0": {"conv_kernel_size": 0},
    "hidden_size 64 cannot be split into num_attention_heads=5": {"num_attention_heads": 5},
    "num_attention_heads is 0": {"num_attention_heads": 0},
    "hidden_size 63 is odd": {"hidden_size": 63, "num_attention_heads": 3},
    "frame_stride is 6": {"frame_stride": 6},
    "frame_stride is 1": {"frame_stride": 1},
    "num_mel_bins is 6": {"num_mel_bins": 6},
    "attention_dropout is 1": {"attention_dropout": 1.0},
    "reads audio, not text": {"modality": "text"},
    "set pooling='mean' for sound": {"pooling": "cls"},
    "causal=True is for text": {"causal": True},
}


@pytest.mark.parametrize("message", BAD)
def test_bad_settings_are_refused(message: str) -> None:
    with pytest.raises(MixlabError) as refused:
        mixlab.config("conformer-tiny", **BAD[message])
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_bad_sound_is_refused() -> None:
    model = mixlab.create("conformer-tiny").eval()
    with pytest.raises(MixlabError, match=r"a recording of 6 frames; a token is made of 7 or more"):
        model(input_features=torch.randn(2, 6, 40))
    mask = torch.ones(2, 20, dtype=torch.long)
    mask[1, 5:] = 0
    with pytest.raises(MixlabError, match="leaves a recording 5 frames"):
        model(input_features=torch.randn(2, 20, 40), attention_mask=mask)
    with pytest.raises(MixlabError, match=r"expected floats \(batch, frames, 40\)"):
        model(input_features=torch.randn(2, 20, 80))
    with pytest.raises(MixlabError, match="a batch norm cannot learn from a single token"):
        model.train()(input_features=torch.randn(1, 7, 40))
    with pytest.raises(MixlabError, match="no layout of another library is known"):
        foreign_state(model, "transformers")
