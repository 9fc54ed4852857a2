"""What a model may be given. Every refusal is one line; checks that read values are skipped while a graph is traced."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Bool
from torch import Tensor

from mixlab.errors import MixlabError
from mixlab.modeling.config import MixerConfig

IGNORED = -100  # the label of a token that is not scored
WHOLE = (torch.long, torch.int)  # what tables of embeddings are indexed by


def tracing() -> bool:
    """Whether values must not be looked at because torch.compile or torch.export is recording."""
    return torch.compiler.is_compiling() or torch.compiler.is_exporting()


def check_kind(config: MixerConfig, given: Mapping[str, Tensor | None]) -> None:
    """Only what the model reads may be given: ids or embeddings of text, pixels, or frames of sound."""
    read = {"text": ("input_ids", "inputs_embeds"), "image": ("pixel_values",), "audio": ("input_features",)}[config.modality]
    for name in [name for name, value in given.items() if value is not None and name not in read]:
        raise MixlabError(f"this model reads {config.modality}: give {' or '.join(read)}, not {name}")


def check_tensor(given: object, what: str) -> None:
    if not isinstance(given, Tensor):
        raise MixlabError(f"{what} must be a tensor, got a {type(given).__name__}; wrap it in torch.tensor(...)")


def check_ids(ids: Tensor, size: int, what: str) -> None:
    """Token or segment ids: b n whole numbers below `size`."""
    if not isinstance(ids, Tensor) or ids.dim() != 2 or ids.dtype not in WHOLE:
        got = f"{ids.dtype} {tuple(ids.shape)}" if isinstance(ids, Tensor) else f"a {type(ids).__name__}"
        raise MixlabError(f"{what} must be a tensor of whole numbers (int64) of shape (batch, tokens), got {got}")
    if ids.numel() and not tracing():
        low, high = int(ids.min()), int(ids.max())
        if low < 0 or high >= size:
            raise MixlabError(f"{what} hold {low if low < 0 else high}, outside 0..{size - 1}; does the tokenizer belong to this model?")


def check_segments(config: MixerConfig, segments: Tensor, expected: torch.Size) -> None:
    check_ids(segments, max(config.type_vocab_size, 1), "token_type_ids")
    if segments.shape != expected:
        raise MixlabError(f"token_type_ids of shape {tuple(segments.shape)}, expected {tuple(expected)}: one per token")


def check_embedded(config: MixerConfig, embedded: Tensor) -> None:
    check_tensor(embedded, "inputs_embeds")
    if embedded.dim() != 3 or embedded.shape[-1] != config.stem_size:
        raise MixlabError(f"inputs_embeds of shape {tuple(embedded.shape)}, expected (batch, tokens, {config.stem_size})")


def check_labels(labels: Tensor, expected: torch.Size, classes: int) -> None:
    """A whole number below `classes` for each token or sample, or IGNORED. Only the loss would notice, and a GPU would abort."""
    check_tensor(labels, "labels")
    if labels.shape != expected:
        raise MixlabError(f"labels of shape {tuple(labels.shape)}, expected {tuple(expected)}, {IGNORED} where none is scored")
    if labels.dtype not in WHOLE:
        raise MixlabError(f"labels are {labels.dtype}, and classes are whole numbers; call labels.long()")
    if tracing():
        return
    wrong = (labels != IGNORED) & ((labels < 0) | (labels >= classes))
    if bool(wrong.any()):
        raise MixlabError(f"labels hold {int(labels[wrong][0])}, outside 0..{classes - 1}; {IGNORED} marks what is not scored")


def check_classes(config: MixerConfig, labels: Tensor, batch: int) -> None:
    """Labels of whole samples, for the loss that transformers chooses by `problem_type`, the number of labels and their type."""
    check_tensor(labels, "labels")
    classes = config.num_labels or 0
    single = config.problem_type == "single_label_classification" or (config.problem_type is None and classes > 1 and labels.dtype in WHOLE)
    if single:
        check_labels(labels.squeeze(1) if labels.dim() == 2 else labels, torch.Size([batch]), classes)
        return
    several = config.problem_type == "multi_label_classification" or (config.problem_type is None and classes > 1)
    expected = [(batch,), (batch, 1)] if classes == 1 and not several else [(batch, classes)]
    if tuple(labels.shape) not in expected:
        raise MixlabError(f"labels of shape {tuple(labels.shape)}, expected {expected[0]} for {config.problem_type or 'these labels'}")
    if several and not labels.is_floating_point():
        raise MixlabError(f"labels are {labels.dtype}, and several at once are told by floats, 0 or 1 for each; call labels.float()")


def check_length(config: MixerConfig, total: int) -> None:
    capped = config.max_position_embeddings is not None and config.traits.length in ("cap", "fixed")
    if capped and total > config.length:
        raise MixlabError(
            f"{total} tokens, but this {config.model_type} reads at most {config.length}; truncate the text or call resize_length({total})"
        )
    if total < 1:
        raise MixlabError("the sequence has no token; give at least one")


def check_pixels(config: MixerConfig, pixels: Tensor) -> None:
    check_tensor(pixels, "pixel_values")
    if not pixels.is_floating_point():
        raise MixlabError(f"pixel_values are {pixels.dtype}, expected floats; scale and normalise the image, as its processor does")
    if pixels.dim() != 4 or pixels.shape[1] != config.num_channels:
        raise MixlabError(f"pixel_values of shape {tuple(pixels.shape)}, expected (batch, {config.num_channels}, height, width)")
    height, width = pixels.shape[2:]
    if config.traits.length == "fixed" and (height, width) != (config.image_size, config.image_size):
        side = config.image_size
        raise MixlabError(f"an image of {height} x {width}; this model reads {side} x {side}: resize it, or the model with resize_length")
    if min(height, width) < 1 or height % config.image_multiple or width % config.image_multiple:
        raise MixlabError(f"an image of {height} x {width}; its sides must be multiples of {config.image_multiple}: crop or pad it")


def check_frames(config: MixerConfig, frames: Tensor, mask: Tensor | None) -> None:
    """Sound: b frames of num_mel_bins; padding stands behind, since the stem joins neighbours."""
    check_tensor(frames, "input_features")
    if frames.dim() != 3 or frames.shape[-1] != config.num_mel_bins or not frames.is_floating_point():
        raise MixlabError(
            f"input_features are {frames.dtype} {tuple(frames.shape)}, expected floats (batch, frames, {config.num_mel_bins})"
        )
    fewest = config.fewest_frames(1)
    if frames.shape[1] < fewest:
        raise MixlabError(f"a recording of {frames.shape[1]} frames; a token is made of {fewest} or more: add silence, or leave it out")
    if mask is not None and tuple(mask.shape) != tuple(frames.shape[:2]):
        raise MixlabError(f"attention_mask of shape {tuple(mask.shape)}, expected {tuple(frames.shape[:2])}: 0 or 1 per frame")
    if mask is not None and not tracing() and not padded_behind(mask.bool()):
        raise MixlabError("attention_mask hides frames before others; pad recordings behind their last frame")
    if mask is not None and not tracing() and len(mask) and int(shortest := mask.bool().sum(1).min()) < fewest:
        raise MixlabError(f"attention_mask leaves a recording {shortest} frames; a token is made of {fewest} or more: leave it out")


def read_mask(config: MixerConfig, mask: Tensor | None, batch: int, total: int) -> Bool[Tensor, "b t"] | None:
    """The mask as booleans, or None where it hides nothing."""
    if mask is None:
        return None
    check_tensor(mask, "attention_mask")
    if tuple(mask.shape) != (batch, total):
        raise MixlabError(f"attention_mask of shape {tuple(mask.shape)}, expected ({batch}, {total}): 0 or 1 per token, past included")
    given, mask = mask, mask.bool()
    if tracing():
        return mask
    wrong = given != mask
    if bool(wrong.any()):  # a mask to be added to logits has 0 where this one has 1
        raise MixlabError(f"attention_mask holds {given[wrong][0].item()}; give 1 where a token is and 0 where padding is")
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
