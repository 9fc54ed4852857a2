"""The spatial gate of gMLP, in all four forms of the paper's Table 3.

    f(v) = W norm(v) + b           W mixes tokens (n x n, per head), b has one number per token

    linear           s(z) = f(z)
    additive         s(z) = z + f(z)
    multiplicative   s(z) = z * f(z)
    split            s([u, v]) = u * f(v)

Axes: b batch, n tokens, t tokens seen so far, f channels in, e channels out (f / 2 for split, else f), H heads (different W).
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mixlab.errors import MixlabError, unknown
from mixlab.layers.tokens import Tokens, without_padding
from mixlab.maps import DenseMap, DenseWeight, StaticWeight, ToeplitzWeight, TokenMap

GateKind = Literal["linear", "additive", "multiplicative", "split"]
GateActivation = Literal["identity", "tanh"]
Structure = Literal["dense", "toeplitz"]
WEIGHTS: dict[str, type[DenseWeight] | type[ToeplitzWeight]] = {"dense": DenseWeight, "toeplitz": ToeplitzWeight}
# The multiplicative gates open as the identity on u. For the other two the paper is silent; 0 keeps f(v) near 0 as well.
BIAS_INIT = {"linear": 0.0, "additive": 0.0, "multiplicative": 1.0, "split": 1.0}


class SpatialGate(nn.Module):
    """Gates each token by a learned mixture of all tokens; plain torch, for any model.

    `width` is the number of channels that come in, `length` the longest sequence. Shorter ones use the matching corner of W and b.
    The linear gate without its norm is W v + b, the plainest static mixing.
    """

    def __init__(
        self,
        width: int,
        length: int,
        *,
        gate: GateKind = "split",
        structure: Structure = "dense",
        heads: int = 1,
        causal: bool = False,
        init_std: float = 1e-3,
        bias_init: float | None = None,
        eps: float = 1e-6,
        activation: GateActivation = "identity",
        norm: bool = True,
    ) -> None:
        super().__init__()
        if gate not in get_args(GateKind):
            raise unknown("gate", gate, get_args(GateKind))
        if structure not in WEIGHTS:
            raise unknown("structure", structure, WEIGHTS)
        if activation not in get_args(GateActivation):
            raise unknown("gate activation", activation, get_args(GateActivation))
        if width < 1 or length < 1:
            raise MixlabError(f"a gate of {width} channels for {length} tokens; give at least 1 of both")
        if gate == "split" and width % 2:
            raise MixlabError(f"the split gate halves its channels, and {width} is odd; choose an even width or another gate")
        self.gate, self.width, self.length, self.activation = gate, width, length, activation
        self.out_width = width // 2 if gate == "split" else width
        if heads < 1 or self.out_width % heads:
            raise MixlabError(f"{self.out_width} gated channels cannot be shared by {heads} gate heads; choose a divisor")
        self.bias_init = BIAS_INIT[gate] if bias_init is None else bias_init
        self.norm = nn.LayerNorm(self.out_width, eps=eps) if norm else nn.Identity()
        self.spatial: StaticWeight = WEIGHTS[structure](length, heads, causal=causal, init_std=init_std)
        self.bias = nn.Parameter(torch.empty(heads, length))
        self.reset_parameters()

    @property
    def order(self) -> int:
        """The degree of the mixing in its input."""
        return 2 if self.gate in ("multiplicative", "split") else 1

    def reset_parameters(self) -> None:
        nn.init.constant_(self.bias, self.bias_init)

    def forward(
        self,
        z: Float[Tensor, "b n f"],
        tokens: Tokens | None = None,
        extra: Float[Tensor, "b n e"] | None = None,
    ) -> Float[Tensor, "b n e"]:
        """`tokens` tells about padding, positions and the past; `extra` is added to f(v) (the tiny attention of aMLP)."""
        if z.dim() != 3 or z.shape[-1] != self.width:
            raise MixlabError(f"z of shape {tuple(z.shape)}, expected (batch, tokens, {self.width})")
        u, v = z.chunk(2, dim=-1) if self.gate == "split" else (z, z)
        f = self.project(v, Tokens(z) if tokens is None else tokens)
        if extra is not None:
            f = f + extra
        if self.activation == "tanh":
            f = f.tanh()
        if self.gate == "linear":
            return f
        return u + f if self.gate == "additive" else u * f

    def project(self, v: Float[Tensor, "b n e"], tokens: Tokens) -> Float[Tensor, "b n e"]:
        """f(v) = W norm(v) + b. Padding is zeroed after the norm, which would otherwise give it a value that W reads."""
        n, past = v.shape[1], tokens.past
        if past + n > self.length:
            raise MixlabError(f"{past + n} tokens, but this gate reads at most {self.length}; shorten them, or resize it")
        v = without_padding(self.norm(v), tokens.mask)
        if tokens.cache is not None:
            v = tokens.cache.append("gate", v)  # b t e
        mix = self.token_map(tokens, n, past)
        tokens.keep("maps", mix.dense)
        return mix(v) + self.spread_bias(tokens)

    def token_map(self, tokens: Tokens, n: int, past: int) -> TokenMap:
        """W for the tokens of this call: the corner, or rows gathered by position when they are not simply 0..n-1."""
        if tokens.positions is not None:
            return DenseMap(self.spatial.between(tokens.positions[:, -n:], tokens.positions))
        if past:
            frm = torch.arange(past + n, device=tokens.x.device)
            return DenseMap(self.spatial.between(frm[past:], frm))
        return self.spatial.at(n)

    def spread_bias(self, tokens: Tokens) -> Float[Tensor, "#b n #e"]:
        """b by position, each head's over its own channels."""
        bias = self.bias[:, tokens.places()].movedim(0, -1)  # #b n H
        return bias if bias.shape[-1] == 1 else bias.repeat_interleave(self.out_width // bias.shape[-1], dim=-1)

    def resize(self, length: int, grids: tuple[int, int] | None = None, prefix: int = 0) -> str:
        """Change the longest sequence in place and say what was done. `grids` are the old and new side of an image."""
        if grids is not None and length != prefix + grids[1] ** 2:
            raise MixlabError(f"{length} tokens are not {prefix} and an image of {grids[1]} x {grids[1]}")
        if grids is not None:
            self.spatial, said = self.spatial.interpolated(*grids, prefix)
        else:
            self.spatial, said = self.spatial.resized(length)
        bias, kept = self.bias.detach(), min(length, self.length)
        new = bias.new_full((bias.shape[0], length), self.bias_init)
        if grids is not None:
            new[:, :prefix] = bias[:, :prefix]
            square = bias[:, prefix:].unflatten(1, (grids[0], grids[0]))[None]
            scaled = nn.functional.interpolate(square, size=(grids[1], grids[1]), mode="bilinear", align_corners=False)
            new[:, prefix:] = scaled[0].flatten(1)
        else:
            new[:, :kept] = bias[:, :kept]
        self.bias = nn.Parameter(new)
        self.length = length
        return said

    def make_causal(self) -> str:
        """Forget, in place, what reads later tokens, and say what was dropped."""
        self.spatial, said = self.spatial.causal_half()
        return said
