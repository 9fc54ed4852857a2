"""What other implementations of gMLP and aMLP get wrong.

Each entry of BUGS is a check and a way to put the bug in. The check must pass on the code as it is, and fail on the code with the
bug: a check that nothing can fail is worth nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import mixlab
from mixlab.archs import amlp, gmlp
from mixlab.layers import DropPath, GMLPBlock, SelfAttention, SpatialGate, Stack, Tokens
from mixlab.layers import gate as gate_file
from mixlab.maps import DenseMap, SoftmaxMap, ToeplitzMap, ToeplitzWeight
from mixlab.maps.base import merge_heads, split_heads
from mixlab.modeling import backbone
from tests.reference.attention import attention as reference_attention

Patch = pytest.MonkeyPatch
N = 12


def model_of(preset: str, task: str | None = None, *, strong: bool = True, **settings):
    """A tiny model in float64, in evaluation; `strong`: W, b and the attention far from their start, so that no leak drowns in rounding."""
    torch.manual_seed(0)
    model = mixlab.create(preset, task, **{"num_hidden_layers": 2, "hidden_size": 16, "intermediate_size": 32, **settings}).double().eval()
    if strong:
        for name, p in model.named_parameters():
            if ".spatial." in name or ".attention." in name or name.endswith("gate.bias"):
                nn.init.normal_(p, std=0.5)
    return model


def ids(batch: int = 1, n: int = N) -> Tensor:
    return torch.randint(2000, (batch, n), generator=torch.Generator().manual_seed(1))


def blocks_of(model) -> list[nn.Module]:
    return list(model.model.body.blocks)


def influence(model) -> Tensor:
    """How much the logits of each token (rows) depend on the embedding of each token (columns)."""
    embedded = model.get_input_embeddings()(ids()).detach()
    weights = torch.randn(model.config.vocab_size, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(lambda x: model(inputs_embeds=x).logits[0] @ weights, embedded)  # n 1 n d
    return jacobian[:, 0].abs().sum(-1)


# The checks.


def blocks_are_distinct() -> None:
    parameters = [id(p) for block in blocks_of(model_of("gmlp-tiny", num_hidden_layers=3)) for p in block.parameters()]
    assert len(parameters) == len(set(parameters)), "blocks share parameters"


def attention_is_over_tokens() -> None:
    """What a model says about a text does not depend on the others in the batch."""
    model, texts = model_of("amlp-tiny"), ids(4)
    together = model(texts).logits
    for text, logits in zip(texts, together, strict=True):
        torch.testing.assert_close(model(text[None]).logits[0], logits)


def attention_is_scaled() -> None:
    """By 1 / sqrt(d_attn)."""
    torch.manual_seed(0)
    attend = SelfAttention(8, 4, 16).double()
    nn.init.normal_(attend.qkv.weight)
    x = torch.randn(1, 5, 8, dtype=torch.float64)
    wanted = reference_attention(x[0], attend.qkv.weight, attend.qkv.bias, attend.out.weight, attend.out.bias)
    torch.testing.assert_close(attend(Tokens(x))[0], wanted)


def attention_reads_the_normalised_input() -> None:
    model = model_of("amlp-tiny")
    entered, read = [], []
    for block in blocks_of(model):
        nn.init.normal_(block.norm.weight)
        block.register_forward_pre_hook(lambda block, args: entered.append(block.norm(args[0].x)))
        block.attention.register_forward_pre_hook(lambda _, args: read.append(args[0].x))
    model(ids())
    assert [x.shape for x in read] == [x.shape for x in entered], "the attention reads another width than d"
    for x, normalised in zip(read, entered, strict=True):
        torch.testing.assert_close(x, normalised)


def every_token_reads_every_token(preset: str = "gmlp-tiny", **settings) -> None:
    """Also at the start, when W is merely near 0."""
    assert (influence(model_of(preset, strong=False, num_hidden_layers=1, **settings)) > 0).all(), "a token is not read"


def no_token_reads_later_ones(preset: str, **settings) -> None:
    matrix = influence(model_of(preset, "causal-lm", **settings))
    assert torch.equal(matrix.triu(1), torch.zeros_like(matrix)), "a token reads a later one"
    assert (matrix.diagonal() > 0).all()


def gmlp_is_causal() -> None:
    no_token_reads_later_ones("gmlp-tiny")


def dense_gmlp_is_causal() -> None:
    no_token_reads_later_ones("gmlp-tiny", spatial_structure="dense")


def amlp_is_causal() -> None:
    no_token_reads_later_ones("amlp-tiny")


def residual_is_untouched() -> None:
    """With V = 0 a block hands on its input."""
    for preset in ("gmlp-tiny", "amlp-tiny"):
        block = blocks_of(model_of(preset))[0]
        nn.init.zeros_(block.V.weight)
        nn.init.zeros_(block.V.bias)
        x = torch.randn(2, 5, 16, dtype=torch.float64)
        assert torch.equal(block(Tokens(x)).x, x), "the residual is not the input"


def branches(training: bool) -> tuple[Tensor, Tensor]:
    """What a block with stochastic depth 0.5 adds to each of 64 equal samples, and what its whole branch is."""
    block = blocks_of(model_of("gmlp-tiny", drop_path=0.5))[0]
    x = torch.randn(1, 5, 16, dtype=torch.float64).expand(64, -1, -1)
    rate, block.drop_path.rate = block.drop_path.rate, 0.0
    whole = block(Tokens(x)).x - x
    block.drop_path.rate = rate
    block.train(training)
    return block(Tokens(x)).x - x, whole


def samples_are_dropped_one_by_one() -> None:
    branch, _ = branches(training=True)
    dropped = (branch == 0).flatten(1).all(1)
    assert dropped.any(), "no sample of the batch is dropped"
    assert not dropped.all(), "the whole batch is dropped"


def kept_samples_are_rescaled() -> None:
    branch, whole = branches(training=True)
    kept = (branch != 0).flatten(1).any(1)
    torch.testing.assert_close(branch[kept], 2 * whole[kept])


def nothing_is_dropped_in_evaluation() -> None:
    torch.testing.assert_close(*branches(training=False))


def padding_changes_nothing() -> None:
    for preset in ("gmlp-tiny", "amlp-tiny"):
        model, text = model_of(preset), ids()
        alone = model(text).logits[0]
        for before, after in ((0, 3), (3, 0), (2, 2)):
            padded, mask = F.pad(text, (before, after)), F.pad(torch.ones_like(text), (before, after))
            torch.testing.assert_close(model(padded, attention_mask=mask).logits[0, before : before + N], alone)


def any_length_is_read() -> None:
    """Shorter texts by the same numbers: a causal model says the same about the beginning of a text."""
    model, text = model_of("gmlp-tiny", "causal-lm"), ids()
    whole = model(text).logits
    for n in (1, 5, N):
        torch.testing.assert_close(model(text[:, :n]).logits, whole[:, :n])


def new_gate_is_open() -> None:
    """f(v) is 1 + something near 0 in every gate of a new model: one part in a hundred for 128 tokens and a W of 1e-3."""
    for preset in ("gmlp-tiny", "amlp-tiny"):
        for block in blocks_of(model_of(preset, strong=False)):
            f = block.gate.project(torch.randn(2, N, 16, dtype=torch.float64), Tokens(torch.zeros(2, N, 16)))
            assert (f - 1).abs().max() < 0.05, "a new gate is not open"
            assert (f - 1).abs().max() > 0, "a new gate is closed to training: W is exactly 0"


# The bugs, put in.


def share_one_block(patch: Patch) -> None:
    """nn.Sequential(*[block] * layers)"""
    init = Stack.__init__
    patch.setattr(Stack, "__init__", lambda self, blocks, norm: init(self, [(blocks := list(blocks))[0]] * len(blocks), norm))


def attend_with(patch: Patch, weights: Callable[[SoftmaxMap, Tensor], Tensor]) -> None:
    """Another way from the raw logits q k^T to the attention's weights."""

    def call(self: SoftmaxMap, v: Tensor) -> Tensor:
        logits = self.q @ self.k.mT
        return merge_heads(weights(self, logits) @ split_heads(v, self.q.shape[1]))

    patch.setattr(SoftmaxMap, "__call__", call)


def softmax_over_the_batch(patch: Patch) -> None:
    attend_with(patch, lambda self, logits: (logits / self.q.shape[-1] ** 0.5).softmax(0))


def no_scale(patch: Patch) -> None:
    attend_with(patch, lambda _, logits: logits.softmax(-1))


def mask_logits_with_zero(patch: Patch) -> None:
    attend_with(patch, lambda self, logits: (logits / self.q.shape[-1] ** 0.5).tril().softmax(-1))


def attend_to(patch: Patch, what: Callable[[amlp.Block, Tensor, Tensor], Tensor], width: Callable[[amlp.AMLPConfig], int]) -> None:
    """Another input of the tiny attention, `what(block, x, z)`, of another width."""
    init = amlp.Block.__init__

    def initialise(self: amlp.Block, config: amlp.AMLPConfig, layer: int) -> None:
        init(self, config, layer)
        self.attention = SelfAttention(width(config), config.gated_size, config.attention_size)

    def forward(self: amlp.Block, tokens: Tokens) -> Tokens:
        z = self.activation(self.U(self.norm(tokens.x)))
        extra = self.attention(tokens.with_x(what(self, tokens.x, z)))
        return tokens.with_x(self.add(tokens.x, self.V(self.gate(z, tokens, extra=extra))))

    patch.setattr(amlp.Block, "__init__", initialise)
    patch.setattr(amlp.Block, "forward", forward)


def attend_to_expanded(patch: Patch) -> None:
    attend_to(patch, lambda block, x, z: z, lambda config: config.intermediate_size)


def attend_to_unnormalised(patch: Patch) -> None:
    attend_to(patch, lambda block, x, z: x, lambda config: config.hidden_size)


def one_sided_circulant(patch: Patch) -> None:
    """A "circulant" W that is the lower triangle of one."""
    dense = ToeplitzMap.dense
    patch.setattr(ToeplitzMap, "dense", lambda self: dense(self).tril())


def unmasked_kernel(patch: Patch) -> None:
    """The causal mask is computed, and the kernel without it used."""
    patch.setattr(gmlp.GMLPBlock, "__init__", _without("causal", GMLPBlock.__init__))


def _without(name: str, call: Callable[..., None]) -> Callable[..., None]:
    return lambda *args, **settings: call(*args, **{key: value for key, value in settings.items() if key != name})


def mirrored_taps(patch: Patch) -> None:
    """A Toeplitz W from |to - from|, whatever the direction."""

    def at(self: ToeplitzWeight, n: int) -> DenseMap:
        place = torch.arange(n)
        return DenseMap(self.taps[:, (place[:, None] - place).abs()])

    patch.setattr(ToeplitzWeight, "at", at)


def normalised_residual(patch: Patch) -> None:
    """x = norm(x); return x + branch"""
    patch.setattr(GMLPBlock, "add", lambda self, x, branch: self.norm(x) + branch)


def drop_path_of(patch: Patch, forward: Callable[[DropPath, Tensor], Tensor]) -> None:
    patch.setattr(DropPath, "forward", forward)


def layer_drop_per_batch(patch: Patch) -> None:
    drop_path_of(patch, lambda self, branch: branch * (torch.rand(()) > self.rate) / (1 - self.rate) if self.training else branch)


def _each(branch: Tensor) -> Tensor:
    return torch.arange(len(branch)).remainder(2)[:, None, None]


def drop_without_rescaling(patch: Patch) -> None:
    drop_path_of(patch, lambda self, branch: branch * _each(branch) if self.rate and self.training else branch)


def drop_in_evaluation(patch: Patch) -> None:
    drop_path_of(patch, lambda self, branch: branch * _each(branch) / (1 - self.rate) if self.rate else branch)


def no_spatial_projection(patch: Patch) -> None:
    """A gate over channels alone."""
    patch.setattr(SpatialGate, "project", lambda self, v, tokens: self.norm(v) + 1)


def zero_weight(patch: Patch) -> None:
    """init_eps = False, which is 0."""
    patch.setattr(ToeplitzWeight, "reset_parameters", lambda self: nn.init.zeros_(self.taps))


def default_weight(patch: Patch) -> None:
    """A linear layer's own start of W."""
    patch.setattr(ToeplitzWeight, "reset_parameters", lambda self: nn.init.xavier_uniform_(self.taps))


def zero_bias(patch: Patch) -> None:
    patch.setattr(SpatialGate, "reset_parameters", lambda self: nn.init.zeros_(self.bias))


def padding_into_the_gate(patch: Patch) -> None:
    patch.setattr(gate_file, "without_padding", lambda x, mask: x)


def padding_into_the_attention(patch: Patch) -> None:
    patch.setattr(SelfAttention, "allowed", lambda self, tokens, seen, explicit=False: None)


def places_from_the_padding(patch: Patch) -> None:
    """W and b of the place in the padded row, not of that in the text."""
    patch.setattr(backbone, "front_slots", lambda mask: torch.arange(mask.shape[1]).expand_as(mask))


def last_numbers(patch: Patch) -> None:
    """A short text gets the end of b."""
    patch.setattr(SpatialGate, "spread_bias", lambda self, tokens: self.bias[:, -tokens.x.shape[1] :].mT[None])


@dataclass(frozen=True)
class Bug:
    name: str
    check: Callable[[], None]
    mutate: Callable[[Patch], None]


BUGS = [
    Bug("one block shared by all layers", blocks_are_distinct, share_one_block),
    Bug("softmax over the batch", attention_is_over_tokens, softmax_over_the_batch),
    Bug("attention without its scale", attention_is_scaled, no_scale),
    Bug("attention of the expanded channels", attention_reads_the_normalised_input, attend_to_expanded),
    Bug("attention of the unnormalised input", attention_reads_the_normalised_input, attend_to_unnormalised),
    Bug("one-sided circulant", every_token_reads_every_token, one_sided_circulant),
    Bug("no spatial mixing", every_token_reads_every_token, no_spatial_projection),
    Bug("W exactly zero", every_token_reads_every_token, zero_weight),
    Bug("causal W mirrored", gmlp_is_causal, mirrored_taps),
    Bug("causal mask made and not used", dense_gmlp_is_causal, unmasked_kernel),
    Bug("attention logits masked with 0", amlp_is_causal, mask_logits_with_zero),
    Bug("normalised residual", residual_is_untouched, normalised_residual),
    Bug("layers dropped per batch", samples_are_dropped_one_by_one, layer_drop_per_batch),
    Bug("layers dropped without rescaling", kept_samples_are_rescaled, drop_without_rescaling),
    Bug("layers dropped in evaluation", nothing_is_dropped_in_evaluation, drop_in_evaluation),
    Bug("W not near zero", new_gate_is_open, default_weight),
    Bug("W exactly zero, untrained", new_gate_is_open, zero_weight),
    Bug("b = 0", new_gate_is_open, zero_bias),
    Bug("padding read by the gate", padding_changes_nothing, padding_into_the_gate),
    Bug("padding read by the attention", padding_changes_nothing, padding_into_the_attention),
    Bug("places counted from the padding", padding_changes_nothing, places_from_the_padding),
    Bug("short texts by other numbers", any_length_is_read, last_numbers),
]
every_bug = pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)


@every_bug
def test_we_do_not_have_it(bug):
    bug.check()


@every_bug
def test_we_would_notice(bug, monkeypatch):
    bug.mutate(monkeypatch)
    with pytest.raises(AssertionError):
        bug.check()
