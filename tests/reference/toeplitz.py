"""W[to, from] = w[to - from + N - 1]: 2N - 1 taps for N tokens. Causal: W[to, from] = w[to - from], N taps, 0 where from > to.

Section 4 and appendix C of "Pay Attention to MLPs" (arXiv:2105.08050). Shorter texts use the corner of the full matrix.
"""

from __future__ import annotations

import torch
from torch import Tensor


def two_sided(taps: Tensor, n: int) -> Tensor:
    """The corner for n tokens of the matrix that the 2N - 1 taps of one head stand for."""
    cap = (len(taps) + 1) // 2
    return torch.stack([torch.stack([taps[to - frm + cap - 1] for frm in range(n)]) for to in range(n)])


def causal(taps: Tensor, n: int) -> Tensor:
    """The same for the N taps that look back."""
    nothing = taps.new_zeros(())
    return torch.stack([torch.stack([taps[to - frm] if frm <= to else nothing for frm in range(n)]) for to in range(n)])
