"""Random numbers without a state: the same (seed, stream, epoch, index) gives the same numbers, in any process and any order.

Philox is a counter-based generator: its output is a function of a key and a counter. Only its raw bits are used, which numpy promises
never to change; the ways from bits to permutations and choices are written here.
"""

from __future__ import annotations

import numpy as np

from mixlab.errors import MixlabError

ORDER, MASKING, PREFIX, BUILTIN = 1, 2, 3, 4  # streams: decisions of one kind never share numbers with those of another
LARGEST = 2**63 - 1


def uniform(seed: int, stream: int, epoch: int, index: int, count: int) -> np.ndarray:
    """`count` float64 numbers in [0, 1)."""
    return (_bits(seed, stream, epoch, index, count) >> np.uint64(11)) * 2.0**-53


def permutation(seed: int, stream: int, epoch: int, index: int, count: int) -> np.ndarray:
    """The numbers 0 .. count - 1 in random order."""
    return np.argsort(_bits(seed, stream, epoch, index, count), kind="stable")


def _bits(seed: int, stream: int, epoch: int, index: int, count: int) -> np.ndarray:
    for name, value in (("seed", seed), ("epoch", epoch), ("index", index)):
        if not 0 <= value <= LARGEST:
            raise MixlabError(f"{name} is {value}; it must be a whole number from 0 to 2^63 - 1")
    # The two low words of the counter count draws, so (epoch, index) own 2^128 numbers each.
    key, counter = np.array([seed, stream], np.uint64), np.array([0, 0, epoch, index], np.uint64)
    return np.random.Philox(key=key, counter=counter).random_raw(count)
