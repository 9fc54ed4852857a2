"""Generated languages with known entropy: the perplexity that no model can beat is computed, not measured.

Axes: s contexts (states), v symbols.
"""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Float

from mixlab.data import draws
from mixlab.errors import MixlabError

Array = np.ndarray
CONSONANTS, VOWELS = "bdfgklmnprst", "aeiou"


def word(symbol: int) -> str:
    """Symbol i as a word of its own: ba, be, bi, ..., from the 60th on with a consonant behind."""
    first, last = divmod(symbol, len(CONSONANTS) * len(VOWELS))
    consonant, vowel = divmod(last, len(VOWELS))
    return CONSONANTS[consonant] + VOWELS[vowel] + (CONSONANTS[first - 1] if first else "")


class Markov:
    """The next of v symbols depends on the `order` before it; texts start from the stationary distribution."""

    def __init__(self, seed: int, symbols: int, order: int, sharpness: float = 2.0) -> None:
        if order < 1 or symbols < 2 or symbols > 700 or symbols ** (order + 1) > 2**22:
            raise MixlabError(
                f"{symbols} symbols of order {order}; 2 to 700 symbols, order at least 1, and symbols^(order + 1) at most 2^22"
            )
        self.symbols, self.order, self.states = symbols, order, symbols**order
        u = draws.uniform(seed, draws.BUILTIN, 2**32, 0, self.states * symbols).reshape(self.states, symbols)
        weights = (-np.log1p(-u)) ** sharpness  # powers of exponentials: a few likely symbols, none impossible
        self.next: Float[Array, "s v"] = weights / weights.sum(1, keepdims=True)
        self.start: Float[Array, " s"] = self._stationary()

    def _stationary(self) -> Float[Array, " s"]:
        pi = np.full(self.states, 1.0 / self.states)
        for _ in range(10_000):
            after = self._step(pi)
            if np.abs(after - pi).sum() < 1e-14:
                return after
            pi = after
        return pi

    def _step(self, pi: Float[Array, " s"]) -> Float[Array, " s"]:
        """A state is its symbols as digits; the oldest is the highest digit and falls out."""
        return (pi[:, None] * self.next).reshape(self.symbols, -1, self.symbols).sum(0).reshape(-1)

    def entropy_rate(self) -> float:
        """Nats per symbol once `order` symbols are known."""
        return float((self.start * _entropy(self.next)).sum())

    def perplexity(self, length: int) -> float:
        """The least perplexity per word of texts of this length, their first words included."""
        if length <= self.order:
            raise MixlabError(f"length is {length}; it must be above the order, {self.order}")
        nats = float(_entropy(self.start[None]).item()) + (length - self.order) * self.entropy_rate()
        return math.exp(nats / length)

    def symbols_of(self, u: Float[Array, " n"]) -> list[int]:
        state = int(min(np.searchsorted(np.cumsum(self.start), u[0], side="right"), self.states - 1))
        out = [state // self.symbols**place % self.symbols for place in reversed(range(self.order))]
        for draw in u[self.order :]:
            symbol = int(min(np.searchsorted(np.cumsum(self.next[state]), draw, side="right"), self.symbols - 1))
            out.append(symbol)
            state = state % self.symbols ** (self.order - 1) * self.symbols + symbol
        return out

    def text(self, u: Float[Array, " n"]) -> str:
        return " ".join(word(symbol) for symbol in self.symbols_of(u))


class Brackets:
    """Nested brackets of several kinds, opened or closed with equal chance, never deeper than `depth`."""

    SHAPES = (("(", ")"), ("[", "]"), ("{", "}"), ("<", ">"), ("a", "A"), ("b", "B"), ("c", "C"), ("d", "D"))

    def __init__(self, kinds: int, depth: int) -> None:
        if not 1 <= kinds <= len(self.SHAPES) or depth < 1:
            raise MixlabError(f"{kinds} kinds to depth {depth}; 1 to {len(self.SHAPES)} kinds, and depth at least 1")
        self.kinds, self.depth = kinds, depth

    def perplexity(self, length: int) -> float:
        """The least perplexity per bracket of texts of this length, which start with nothing open."""
        at = np.zeros(self.depth + 1)  # the distribution of the depth
        at[0] = 1.0
        nats = 0.0
        for _ in range(length):
            opens = np.full(self.depth + 1, 0.5)
            opens[0], opens[-1] = 1.0, 0.0
            choice = _entropy(np.stack([opens, 1 - opens], axis=1))
            nats += float((at * (choice + opens * math.log(self.kinds))).sum())
            at = np.concatenate([[0.0], (at * opens)[:-1]]) + np.concatenate([(at * (1 - opens))[1:], [0.0]])
        return math.exp(nats / length)

    def text(self, u: Float[Array, " n"]) -> str:
        out, open_ = [], []
        for draw in u.tolist():
            opens = not open_ or (len(open_) < self.depth and draw < 0.5)
            if opens:
                share = draw if not open_ else draw * 2
                open_.append(int(share * self.kinds))
                out.append(self.SHAPES[open_[-1]][0])
            else:
                out.append(self.SHAPES[open_.pop()][1])
        return " ".join(out)


def _entropy(p: Float[Array, "*s v"]) -> Float[Array, "*s"]:
    return -(p * np.log(np.where(p > 0, p, 1.0))).sum(-1)
