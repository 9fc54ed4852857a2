"""The gMLP block as a plain torch module, for anyone's own model."""

from __future__ import annotations

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from mixlab.errors import MixlabError, unknown
from mixlab.layers.activation import ACTIVATIONS, Activation
from mixlab.layers.drop_path import DropPath
from mixlab.layers.gate import GateActivation, GateKind, SpatialGate, Structure
from mixlab.layers.tokens import Tokens, from_front, front_slots, to_front


class GMLPBlock(nn.Module):
    """x + V s(gelu(U norm(x))): `d` channels, `d_ffn` expanded channels, at most `n` tokens.

    The options are those of `SpatialGate`. A mask may pad left, right or in between; padding is never read.
    """

    def __init__(
        self,
        d: int,
        d_ffn: int,
        n: int,
        *,
        gate: GateKind = "split",
        structure: Structure = "dense",
        heads: int = 1,
        causal: bool = False,
        init_std: float = 1e-3,
        bias_init: float | None = None,
        eps: float = 1e-6,
        gate_eps: float = 1e-6,
        gate_activation: GateActivation = "identity",
        activation: Activation = "gelu",
        dropout: float = 0.0,
        drop_path: float = 0.0,
    ) -> None:
        super().__init__()
        if activation not in ACTIVATIONS:
            raise unknown("activation", activation, ACTIVATIONS)
        if d < 1:
            raise MixlabError(f"a block of {d} channels; give at least 1")
        self.norm = nn.LayerNorm(d, eps=eps)
        self.U = nn.Linear(d, d_ffn)
        self.activation = ACTIVATIONS[activation]
        self.gate = SpatialGate(
            d_ffn,
            n,
            gate=gate,
            structure=structure,
            heads=heads,
            causal=causal,
            init_std=init_std,
            bias_init=bias_init,
            eps=gate_eps,
            activation=gate_activation,
        )
        self.V = nn.Linear(self.gate.out_width, d)
        self.dropout = nn.Dropout(dropout)
        self.drop_path = DropPath(drop_path)

    def forward(self, x: Float[Tensor, "b n d"], mask: Bool[Tensor, "b n"] | Int[Tensor, "b n"] | None = None) -> Float[Tensor, "b n d"]:
        if x.dim() != 3 or x.shape[-1] != self.U.in_features:
            raise MixlabError(f"x of shape {tuple(x.shape)}, expected (batch, tokens, {self.U.in_features})")
        if mask is None:
            return self.residual(Tokens(x))
        if mask.shape != x.shape[:2]:
            raise MixlabError(f"mask of shape {tuple(mask.shape)}, expected {tuple(x.shape[:2])}: true where a token is")
        mask = mask.bool()
        slots = front_slots(mask)
        tokens = Tokens(to_front(x, slots), to_front(mask, slots))
        return from_front(self.residual(tokens), slots)

    def residual(self, tokens: Tokens) -> Float[Tensor, "b n d"]:
        z = self.activation(self.U(self.norm(tokens.x)))  # b n d_ffn
        return self.add(tokens.x, self.V(self.gate(z, tokens)))

    def add(self, x: Float[Tensor, "b n d"], branch: Float[Tensor, "b n d"]) -> Float[Tensor, "b n d"]:
        """The branch joins the residual stream, in training after dropout and stochastic depth."""
        return x + self.drop_path(self.dropout(branch))
