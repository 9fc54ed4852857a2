"""The backbone of every model: stem -> body, with padding moved behind the tokens on the way in and back on the way out.

Axes: b batch, n tokens of this call, t tokens seen so far (t = n without a cache), d channels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, DynamicCache
from transformers.utils.generic import can_return_tuple

from mixlab.errors import MixlabError
from mixlab.layers import FrameStem, PatchStem, Stack, TextStem, Tokens
from mixlab.layers.tokens import Record, from_front, front_slots, to_front
from mixlab.modeling import inputs
from mixlab.modeling.architecture import Architecture
from mixlab.modeling.cache import SequenceCacheLayer
from mixlab.modeling.config import LARGEST, MixerConfig
from mixlab.modeling.loading import StrictLoading
from mixlab.modeling.outputs import BackboneOutput

INPUTS = {"text": "input_ids", "image": "pixel_values", "audio": "input_features"}


class MixerPreTrainedModel(StrictLoading, PreTrainedModel):
    """What all models of all architectures have in common."""

    config: MixerConfig
    config_class = MixerConfig
    architecture: ClassVar[Architecture]
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = []  # noqa: RUF012 (transformers reads a plain list; each model tells those of its stacks)
    _supports_sdpa = True
    accepts_loss_kwargs = False

    def _init_weights(self, module: nn.Module) -> None:
        """transformers' rule for torch's own layers; all others know how they begin. Loaded tensors are not touched:

        transformers replaces the functions of torch.nn.init meanwhile by ones that skip them.
        """
        super()._init_weights(module)
        reset = getattr(module, "reset_parameters", None)
        if callable(reset) and not type(module).__module__.startswith("torch."):
            reset()

    def _set_gradient_checkpointing(
        self, enable: bool = True, gradient_checkpointing_func: Callable[..., Any] = checkpoint, every_n_layers: int = 1
    ) -> None:
        """transformers' switch; a stack of blocks is told itself which of them to checkpoint."""
        super()._set_gradient_checkpointing(enable, gradient_checkpointing_func, every_n_layers)
        for module in self.modules():
            if isinstance(module, Stack):
                module.checkpoint_every = every_n_layers

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        raise MixlabError(f"{type(self).__name__} cannot generate; build or load the model with task='causal-lm'")

    def resize_length(self, n: int) -> str:
        """Change, in place, how many tokens the model reads at most (an image: its patches), and say what was done."""
        config, grids, length = self.config, None, n
        if type(n) is not int or not 1 <= n <= LARGEST:
            raise MixlabError(f"resize_length({n!r}): give at least 1 and at most {LARGEST}, a whole number")
        if config.modality == "image":
            side = round(n**0.5)
            if side * side != n:
                raise MixlabError(f"resize_length({n}): an image model needs a square number of patches, such as {side * side}")
            if side * config.patch_size % config.image_multiple:
                raise MixlabError(f"resize_length({n}): the sides of an image must be multiples of {config.image_multiple} pixels")
            grids, length = (config.grid, side), n + config.prefix_tokens
        resizes: list[Any] = [m.resize for m in self.modules() if hasattr(m, "resize")]
        said = [resize(length, grids, config.prefix_tokens) for resize in resizes]
        config.max_position_embeddings = length
        if grids is not None:
            config.image_size = grids[1] * config.patch_size
        summary = "; ".join(f"{said.count(line)} layers: {line}" for line in dict.fromkeys(said))
        return summary or f"the longest sequence is now {length}; no weight depends on it"


class MixerModel(MixerPreTrainedModel):
    """Stem and body of an architecture, without a head."""

    def __init__(self, config: MixerConfig) -> None:
        super().__init__(config)
        self.main_input_name = INPUTS[config.modality]
        self.stem: Any = (self.architecture.stem or default_stem)(config)
        self.body = self.architecture.body(config)
        # What is spread over devices, or sharded, is split between blocks.
        stacks = [module for module in self.body.modules() if isinstance(module, Stack)]
        self._no_split_modules = sorted({type(block).__name__ for stack in stacks for block in stack.blocks})
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.stem.tokens if self.config.modality == "text" else self.stem.projection

    def set_input_embeddings(self, value: nn.Module) -> None:
        if self.config.modality != "text" or not isinstance(value, nn.Embedding):
            raise MixlabError("only a text model has token embeddings that can be replaced")
        self.stem.tokens = value

    @can_return_tuple
    def forward(
        self,
        input_ids: Int[Tensor, "b n"] | None = None,
        attention_mask: Int[Tensor, "b t"] | None = None,
        token_type_ids: Int[Tensor, "b n"] | None = None,
        pixel_values: Float[Tensor, "b c height width"] | None = None,
        input_features: Float[Tensor, "b t m"] | None = None,
        inputs_embeds: Float[Tensor, "b n d"] | None = None,
        past_key_values: Cache | None = None,
        use_cache: bool = False,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        output_maps: bool = False,
    ) -> BackboneOutput:
        """`output_maps` returns the static maps per layer, (H n n), or (b H n n) where they differ by sample."""
        grid = None
        given = {"input_ids": input_ids, "inputs_embeds": inputs_embeds, "pixel_values": pixel_values, "input_features": input_features}
        inputs.check_kind(self.config, given)
        if self.config.modality == "image":
            x, grid = self.embed_image(pixel_values)  # b n d
        elif self.config.modality == "audio":
            x = self.embed_frames(input_features, attention_mask)
            attention_mask = self.token_mask(attention_mask)
        else:
            x = self.embed_text(input_ids, inputs_embeds, token_type_ids)
        batch, n = x.shape[:2]
        past_key_values = self.open_cache(past_key_values, use_cache)
        past = 0 if past_key_values is None else past_key_values.get_seq_length()
        inputs.check_length(self.config, past + n)
        mask = inputs.read_mask(self.config, attention_mask, batch, past + n)

        record = self.record_of(output_hidden_states, output_attentions, output_maps)
        tokens = Tokens(x, mask, grid=grid, past=past, record=record)
        if past_key_values is not None:
            positions = None if mask is None else (mask.long().cumsum(1) - 1).clamp(min=0)
            tokens = Tokens(x, mask, positions, caches=past_key_values.layers, past=past, record=record)  # pyright: ignore
        slots, moves = None, False
        if mask is not None and past_key_values is None:
            slots = front_slots(mask)
            moves = not inputs.padded_behind(mask)  # where nothing moves, recorded hidden states stay on the gradient's path
            if moves:
                tokens = Tokens(to_front(x, slots), to_front(mask, slots), record=record)

        x = self.body(tokens).x
        kept = self.kept(record)
        if slots is not None and mask is not None:
            for kind, values in kept.items():
                if kind != "hidden":
                    kept[kind] = tuple(_maps_from_front(value, slots, mask) for value in values)
                elif moves:
                    kept[kind] = tuple(from_front(value, slots) for value in values)
            x = from_front(x, slots) if moves else x
        return BackboneOutput(
            last_hidden_state=x,
            past_key_values=past_key_values,
            hidden_states=kept.get("hidden"),
            attentions=kept.get("attention"),
            maps=kept.get("maps"),
        )

    def embed_text(self, ids: Tensor | None, embedded: Tensor | None, segments: Tensor | None) -> Float[Tensor, "b n d"]:
        if (ids is None) == (embedded is None):
            raise MixlabError("give either input_ids or inputs_embeds")
        if ids is not None:
            inputs.check_ids(ids, self.config.vocab_size, "input_ids")
            embedded = self.stem.embed(ids)
        assert embedded is not None
        inputs.check_embedded(self.config, embedded)
        if segments is not None:
            inputs.check_segments(self.config, segments, embedded.shape[:2])
        return self.stem(embedded, segments if self.stem.segments is not None else None)

    def embed_image(self, pixels: Tensor | None) -> tuple[Float[Tensor, "b n d"], tuple[int, int]]:
        """Tokens of an image (after the cls token, if there is one), and how many rows and columns of them."""
        if pixels is None:
            raise MixlabError("this model reads images: give pixel_values")
        inputs.check_pixels(self.config, pixels)
        patch = self.config.patch_size
        return self.stem(pixels.to(self.dtype)), (pixels.shape[2] // patch, pixels.shape[3] // patch)

    def embed_frames(self, frames: Tensor | None, mask: Tensor | None) -> Float[Tensor, "b n d"]:
        if frames is None:
            raise MixlabError("this model reads sound: give input_features")
        inputs.check_frames(self.config, frames, mask)
        return self.stem(frames.to(self.dtype), None if mask is None else mask.bool())

    def token_mask(self, mask: Int[Tensor, "b t"] | None) -> Bool[Tensor, "b n"] | None:
        """Which tokens are made of frames that the mask shows."""
        return None if mask is None else self.stem.shorten(mask.bool())

    def intermediates(self, **inputs: Any) -> dict[str, Tensor]:
        """Every intermediate by name: `hidden.0` (after the stem) to `hidden.L` (after the final norm), `maps.0`, `attention.0`, ..."""
        traits = self.config.traits
        output = self(**inputs, output_hidden_states=True, output_maps=traits.maps, output_attentions=traits.attention)
        kinds = {"hidden": output.hidden_states, "maps": output.maps or (), "attention": output.attentions or ()}
        return {f"{kind}.{layer}": value for kind, values in kinds.items() for layer, value in enumerate(values)}

    def open_cache(self, past: Cache | None, use_cache: bool) -> Cache | None:
        """The cache to append to: the given one, or a new one on request."""
        if past is None and not use_cache:
            return None
        if not self.config.causal:
            raise MixlabError("a cache needs a causal model; build or load it with task='causal-lm'")
        if self.is_activation_checkpointing and self.training:
            raise MixlabError("a cache cannot be filled under gradient checkpointing; call eval() or pass use_cache=False")
        cache = DynamicCache(config=self.config) if past is None else past
        layers = getattr(cache, "layers", None)
        if not layers or not all(isinstance(layer, SequenceCacheLayer) for layer in layers):
            raise MixlabError(f"{type(cache).__name__} is no cache of this model's layers; use DynamicCache(config=model.config)")
        return cache

    def record_of(self, hidden: bool | None, attentions: bool | None, maps: bool) -> Record:
        """Which intermediates to keep; what the architecture does not have is refused, not returned empty."""
        if maps and not self.config.traits.maps:
            raise MixlabError(
                f"{self.config.model_type} mixes tokens and channels at once and has no maps to output; leave output_maps out"
            )
        hidden = self.config.output_hidden_states if hidden is None else hidden
        attentions = self.config.output_attentions if attentions is None else attentions
        if attentions and not self.config.traits.attention:
            raise MixlabError(f"{self.config.model_type} has no attention to output; output_maps=True shows how it mixes tokens")
        wanted = {"hidden": hidden, "attention": attentions, "maps": maps}
        return Record(frozenset(kind for kind, yes in wanted.items() if yes))

    def kept(self, record: Record) -> dict[str, tuple[Tensor, ...]]:
        """What the body recorded of each kind that was asked for."""
        kept = {kind: record.of(kind) for kind in record.wanted}
        for kind in [kind for kind, values in kept.items() if not values]:
            raise MixlabError(f"{self.config.model_type} keeps no {kind} to output; ask for something else")
        return kept


def default_stem(config: MixerConfig) -> TextStem | PatchStem | FrameStem:
    """By the kind of input, for architectures that bring no stem of their own."""
    if config.modality == "image":
        cls = config.prefix_tokens == 1
        return PatchStem(config.patch_size, config.num_channels, config.stem_size, cls=cls, dropout=config.stem_dropout)
    if config.modality == "audio":
        return FrameStem(config.num_mel_bins, config.stem_size, config.frame_stride, dropout=config.stem_dropout)
    return TextStem(
        config.vocab_size,
        config.stem_size,
        segments=config.type_vocab_size,
        pad=config.pad_token_id,
        dropout=config.stem_dropout,
    )


def _maps_from_front(maps: Float[Tensor, "*b H n n"], slots: Int[Tensor, "b n"], mask: Bool[Tensor, "b n"]) -> Float[Tensor, "b H n n"]:
    """Rows and columns back in the order of the input; those of padding are zero."""
    rows = slots[:, None, :, None].expand(-1, maps.shape[-3], -1, maps.shape[-1])
    maps = maps.expand(len(slots), *maps.shape[-3:]).gather(2, rows).gather(3, rows.mT)
    return maps * (mask[:, None, :, None] & mask[:, None, None, :])
