"""The cache of a causal model: per layer, the named sequences that its layers need of past tokens.

transformers' own layers keep keys and values of attention. A gate keeps its normalised v instead, and aMLP keeps both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers.cache_utils import CacheLayerMixin

from mixlab.errors import MixlabError
from mixlab.modeling.config import MixerConfig


def check_cache_implementation(kind: str | None) -> None:
    """transformers' static, offloaded and quantised caches know keys and values only."""
    if kind is not None and not kind.startswith("dynamic"):
        raise MixlabError(f"cache_implementation={kind!r} keeps keys and values alone; leave it out, this model's cache is dynamic")


class SequenceCacheLayer(CacheLayerMixin):
    """Grows by concatenation; rows are samples, so that beams can be reordered."""

    _layer_type = MixerConfig.layer_type
    is_sliding = False
    is_croppable = True
    supports_early_init = False

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.sequences: dict[str, Tensor] = {}

    def append(self, name: str, new: Float[Tensor, "b n c"]) -> Float[Tensor, "b t c"]:
        past = self.sequences.get(name)
        self.sequences[name] = new if past is None else torch.cat([past, new], dim=1)
        self.is_initialized = True
        return self.sequences[name]

    def _change(self, change: Callable[[Tensor], Tensor]) -> None:
        self.sequences = {name: change(sequence) for name, sequence in self.sequences.items()}

    def get_seq_length(self) -> int:
        return next((sequence.shape[1] for sequence in self.sequences.values()), 0)

    def get_max_length(self) -> int:
        return -1

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.get_seq_length() + query_length, 0

    def reset(self) -> None:
        self.sequences, self.is_initialized = {}, False

    def reorder_cache(self, beam_idx: Int[Tensor, " b"]) -> None:
        self._change(lambda sequence: sequence.index_select(0, beam_idx.to(sequence.device)))

    def crop(self, tokens_to_remove: int) -> None:
        """Forget the last tokens; the count is negative, as transformers passes it."""
        if tokens_to_remove > 0:
            raise MixlabError(f"crop({tokens_to_remove}) of a cache; pass the number of tokens to forget as a negative number")
        if tokens_to_remove:
            self._change(lambda sequence: sequence[:, :tokens_to_remove])

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._change(lambda sequence: sequence.repeat_interleave(repeats, dim=0))

    def batch_select_indices(self, indices: Int[Tensor, " b"]) -> None:
        self._change(lambda sequence: sequence[indices])

    def offload(self) -> None:
        self._change(lambda sequence: sequence.to("cpu", non_blocking=True))

    def prefetch(self) -> None:
        raise MixlabError("an offloaded cache is not supported; generate without cache_implementation='offloaded'")

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        raise MixlabError("this cache holds named sequences; use append")

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        raise MixlabError("this cache holds named sequences; use append")
