"""The account of a whole model: the stem's lines, the body's (from the architecture's file), the head's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mixlab import registry
from mixlab.accounting import FULL, Account, Convention, Line, in_group
from mixlab.accounting.parts import activation, embedding, layer_norm, linear, patch_projection, tied_logits
from mixlab.errors import MixlabError, unknown
from mixlab.modeling.architecture import Architecture, find_preset, task_overrides
from mixlab.modeling.config import MixerConfig
from mixlab.modeling.tasks import TASK_HEADS
from mixlab.modeling.traits import IMAGE_TASKS

COUNTED = 512  # tokens, where a model reads any number of them and none is given


def account_of_preset(name: str, length: int | None, task: str | None, overrides: Mapping[str, Any]) -> Account:
    architecture, preset = find_preset(name)
    task = task or preset.task
    return account(architecture, preset.config(architecture, task_overrides(task, overrides)), task, length)


def account(
    architecture: Architecture, config: MixerConfig, task: str, length: int | None = None, convention: Convention = FULL
) -> Account:
    """Of one sequence of `length` tokens (by default the longest; `COUNTED` of a model that reads any number), or of one image."""
    if task not in tuple(TASK_HEADS):  # a tuple also says no to what cannot be hashed
        raise unknown("task", task, TASK_HEADS)
    if task not in config.traits.tasks:
        raise MixlabError(f"this {config.model_type} cannot do {task!r}; it can do: {', '.join(config.traits.tasks)}")
    n = (config.max_position_embeddings or COUNTED) if length is None else length
    if type(n) is not int or n < 1 or (config.traits.length != "any" and n > config.length):
        last = "" if config.traits.length == "any" else config.max_position_embeddings
        raise MixlabError(f"length {n!r} is outside 1..{last}, what this {config.model_type} reads")
    if config.modality == "image" and n != config.length:
        raise MixlabError(f"length {n}: an image of this model has {config.length} tokens; set image_size instead")
    drops = task == "masked-image-modeling" and config.masking == "drop"
    lines = [
        *in_group("stem", [] if architecture.stem else _stem(config, n)),
        *in_group("body", architecture.account(config, _visible(config) if drops else n)),
        *in_group("head", _image_head(architecture, config, task) if task in IMAGE_TASKS else _head(config, task, n, convention)),
    ]
    return convention.apply(Account(tuple(lines), n))


def _visible(config: MixerConfig) -> int:
    """Tokens of an image that are left when hidden patches are dropped."""
    patches = config.length - config.prefix_tokens
    return config.prefix_tokens + max(1, int(patches * (1 - config.mask_ratio)))


def _stem(config: MixerConfig, n: int) -> list[Line]:
    if config.modality == "audio":
        return [linear("frames", config.frame_stride * config.num_mel_bins, config.stem_size, n)]
    if config.modality == "image":
        patches = patch_projection(config.image_size, config.patch_size, config.num_channels, config.stem_size)
        cls = [embedding("cls token", 1, config.stem_size)] if config.prefix_tokens else []
        return [patches, *cls]
    segments = [embedding("segments", config.type_vocab_size, config.stem_size)] if config.type_vocab_size else []
    return [embedding("tokens", config.vocab_size, config.stem_size), *segments]


def _head(config: MixerConfig, task: str, n: int, convention: Convention) -> list[Line]:
    d = config.hidden_size
    if task == "features":
        return []
    if task in ("masked-lm", "causal-lm"):
        scored = convention.logit_tokens(n) if task == "masked-lm" else n
        transform = [linear("transform", d, d, scored), activation("gelu", d, scored), layer_norm("transform norm", d, scored)]
        transform = transform if config.head_transform else []
        if not config.tie_word_embeddings:
            return [*transform, linear("logits", d, config.vocab_size, scored, bias=config.head_bias)]
        bias = [embedding("logits bias", config.vocab_size, 1)] if config.head_bias else []
        return [*transform, tied_logits(config.vocab_size, d, scored), *bias]
    if task == "ctc":
        return [linear("symbols", d, config.vocab_size, n)]
    if task == "question-answering":
        return [linear("start and end", d, 2, n)]
    scored = n if task == "token-classification" else 1
    return [linear("classifier", d, config.num_labels or 0, scored)]


def _image_head(architecture: Architecture, config: MixerConfig, task: str) -> list[Line]:
    d, patch, channels = config.hidden_size, config.final_patch, config.num_channels
    final = (config.image_size // patch) ** 2  # tokens that leave the body, the cls token aside
    if task == "image-classification":
        pooler = architecture.pooler_for(config)
        return [*(pooler.account(config) if pooler else []), linear("classifier", d, config.num_labels or 0, 1)]
    if task == "image-restoration":
        return [linear("residual", d, (patch * config.upscale) ** 2 * channels, final)]
    if task == "masked-image-modeling" and config.masking == "drop":
        e = config.decoder_hidden_size
        embed = linear("decoder embedding", d, e, _visible(config))
        body = in_group("decoder", architecture.account(config.of_decoder(), config.length))
        return [embed, embedding("mask token", 1, e), *body, linear("pixels", e, patch * patch * channels, final)]
    if task == "masked-image-modeling":
        return [embedding("mask token", 1, config.stem_size), linear("pixels", d, patch * patch * channels, final)]
    return []


def preset_table() -> list[dict[str, Any]]:
    """Every preset that a publication gives a count for: ours, theirs as printed, and how far apart they are."""
    rows = []
    for name in registry.presets():
        architecture, preset = find_preset(name)
        counted = account(architecture, preset.config(architecture, {}), preset.task)
        rows.append(
            {
                "preset": name,
                "source": preset.source,
                "task": preset.task,
                "params": counted.params,
                "published": preset.published,
                "difference": difference(counted.params, preset.published),
                "note": preset.note,
                "macs": counted.macs,
                "length": counted.length,
            }
        )
    return rows


def difference(count: int, published: str | None) -> str:
    """`none` where the count rounds to what is printed, else the difference in percent."""
    if published is None:
        return ""
    printed = published.removesuffix("M")
    decimals = len(printed.partition(".")[2])
    if f"{count / 1e6:.{decimals}f}" == printed:
        return "none"
    return f"{100 * (count / 1e6 / float(printed) - 1):+.1f}%"
