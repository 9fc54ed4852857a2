"""FNet's mixing: the real part of the Fourier transform along tokens and channels (Lee-Thorp et al. 2021, arXiv:2105.03824).

    Re(F_n X F_d) = C_n X C_d - S_n X S_d          F = C - i S, without a factor

Axes: b batch, n tokens, d channels.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mixlab.layers.tokens import Tokens
from mixlab.maps.fourier import FourierMap, as_transformable


class FourierMixing(nn.Module):
    """No parameters. Every token reads every other, padding too: it must not be given any."""

    order = 1  # the degree of the mixing in its input

    def forward(self, tokens: Tokens) -> Float[Tensor, "b n d"]:
        x = tokens.x
        tokens.keep("maps", lambda: torch.cat([m for m, _ in self.terms(*x.shape[1:], dtype=x.dtype, device=x.device)]))
        return torch.fft.fftn(as_transformable(x), dim=(1, 2)).real.to(x.dtype)

    def terms(
        self, n: int, d: int, dtype: torch.dtype = torch.float32, device: torch.device | None = None
    ) -> list[tuple[Float[Tensor, "1 n n"], Float[Tensor, "d d"]]]:
        """What it is a sum of: token maps and the channel maps that belong to them, the sign with the latter."""
        (c_n, s_n), (c_d, s_d) = ([FourierMap(size, part, dtype, device).dense() for part in ("cosine", "sine")] for size in (n, d))
        return [(c_n, c_d[0]), (s_n, -s_d[0])]
