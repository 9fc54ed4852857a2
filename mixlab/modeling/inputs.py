"""What a model may be given. Every refusal is one line; checks that read values are skipped while a graph is traced."""

from __future__ import annotations

import torch
from jaxtyping import Bool
from torch import Tensor

from mixlab.errors import MixlabError
from mixlab.modeling.config import MixerConfig


def tracing() -> bool:
    """Whether values must not be looked at because torch.compile or torch.export is recording."""
    return torch.compiler.is_compiling() or torch.compiler.is_exporting()


def check_ids(ids: Tensor, size: int, what: str) -> None:
    """Token or segment ids: b n whole numbers below `size`."""
    if ids.dim() != 2 or ids.is_floating_point():
        raise MixlabError(f"{what} must be whole numbers of shape (batch, tokens), got {ids.dtype} {tuple(ids.shape)}")
    if ids.numel() and not tracing():
        low, high = int(ids.min()), int(ids.max())
        if low < 0 or high >= size:
            raise MixlabError(f"{what} hold {low if low < 0 else high}, outside 0..{size - 1}; does the tokenizer belong to this model?")


def check_length(config: MixerConfig, total: int) -> None:
    if config.max_position_embeddings is not None and total > config.length:
        raise MixlabError(
            f"{total} tokens, but this {config.model_type} reads at most {config.length}; truncate the text or call resize_length({total})"
        )
    if total < 1:
        raise MixlabError("the sequence has no token; give at least one")


def check_pixels(config: MixerConfig, pixels: Tensor) -> None:
    expected = (config.num_channels, config.image_size, config.image_size)
    if pixels.dim() != 4 or tuple(pixels.shape[1:]) != expected:
        raise MixlabError(
            f"pixel_values of shape {tuple(pixels.shape)}, expected (batch, {', '.join(map(str, expected))}); "
            "resize the images, or the model with resize_length"
        )


def read_mask(config: MixerConfig, mask: Tensor | None, batch: int, total: int) -> Bool[Tensor, "b t"] | None:
    """The mask as booleans, or None where it hides nothing."""
    if mask is None:
        return None
    if tuple(mask.shape) != (batch, total):
        raise MixlabError(f"attention_mask of shape {tuple(mask.shape)}, expected ({batch}, {total}): 0 or 1 per token, past included")
    mask = mask.bool()
    if tracing():
        return mask
    if bool(mask.all()):
        return None
    if not config.traits.masks:
        raise MixlabError(f"{config.model_type} mixes every token with every other and cannot hide padding; batch texts of equal length")
    empty = (~mask.any(1)).nonzero()
    if len(empty):
        raise MixlabError(f"row {int(empty[0])} of attention_mask hides every token; leave empty texts out")
    return mask


def padded_behind(mask: Bool[Tensor, "b t"]) -> bool:
    """Whether all padding is known to stand behind the tokens; not known while a graph is traced."""
    return not tracing() and not bool((mask[:, 1:] & ~mask[:, :-1]).any())
