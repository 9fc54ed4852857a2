"""The configuration that every architecture shares: typed fields, unknown names refused, values cross-checked."""

import copy
import inspect
import math
from dataclasses import fields
from functools import wraps
from typing import Any, ClassVar, Literal

from huggingface_hub.dataclasses import strict
from huggingface_hub.errors import StrictDataclassError
from transformers import PreTrainedConfig

from mixlab.errors import MixlabError, one_line, unknown
from mixlab.modeling.traits import Traits

Number = float | int
FORMAT = 1  # of checkpoints; raised when an older mixlab would misread a new one
LARGEST, MOST_LAYERS, MOST_LABELS = 2**24, 1000, 2**20  # a damaged or hostile config.json must not fill the memory
DTYPES = ("float16", "bfloat16", "float32", "float64")
PROBLEM_TYPES = ("regression", "single_label_classification", "multi_label_classification")

AT_LEAST_ONE = (
    *("hidden_size", "num_hidden_layers", "vocab_size", "image_size", "patch_size", "num_channels", "num_mel_bins", "frame_stride"),
    *("upscale", "decoder_hidden_size", "decoder_num_layers", "decoder_intermediate_size", "decoder_num_attention_heads"),
    *("intermediate_size", "attention_size", "num_attention_heads"),  # where there are such
)
RATES = ("hidden_dropout", "classifier_dropout", "mask_ratio", "attention_dropout", "drop_path")

# What transformers writes into, or passes through, a configuration besides its fields. Anything else is a mistake or an attack.
_PASSED_BY_TRANSFORMERS = frozenset(
    ["model_type", "name_or_path", "_name_or_path", "num_labels", "torch_dtype", "output_attentions", "attn_implementation", "_commit_hash"]
)


class MixerConfig(PreTrainedConfig):
    """Fields of the shell: sizes, input, pooling, head. An architecture's own configuration adds its own."""

    hierarchical: ClassVar[bool] = False  # stages whose number of tokens and width change; the number of layers follows from them
    poolings: ClassVar[tuple[str, ...]] = ("cls", "mean", "last")
    layer_type: ClassVar[str] = "mixlab_sequences"  # how a causal model's cache keeps one layer's past

    hidden_size: int = 512
    num_hidden_layers: int = 6
    modality: Literal["text", "image", "audio"] = "text"
    mixlab_format: int = FORMAT  # in which the checkpoint was written

    vocab_size: int = 32000
    max_position_embeddings: int | None = None  # the longest sequence; an image sets it itself; where any is read, the one counted for
    type_vocab_size: int = 0  # number of segments; 0: none are read
    image_size: int = 224
    patch_size: int = 16
    num_channels: int = 3
    num_mel_bins: int = 80  # features of a frame of sound
    frame_stride: int = 4  # frames that the stem makes one token of

    causal: bool = False
    pooling: Literal["cls", "mean", "last", "map"] = "cls"
    tie_word_embeddings: bool = True
    head_bias: bool = False  # a bias on the vocabulary logits
    head_transform: bool = False  # BERT's dense, gelu and norm before the logits
    null_threshold: Number | None = None  # a question has no answer when that is likelier than the best span by more than this (log)
    labelled_logits_only: bool = False  # with labels, logits only where a label is; their shape is then (labelled, vocabulary)
    upscale: int = 1  # how much larger a restored image is

    # Masked image modelling: hidden patches are dropped, to be put back by a decoder, or covered by a token.
    masking: Literal["drop", "token"] = "token"
    mask_ratio: Number = 0.75
    normalized_targets: bool = True
    decoder_hidden_size: int = 512
    decoder_num_layers: int = 8
    decoder_intermediate_size: int = 2048
    decoder_num_attention_heads: int = 16

    hidden_dropout: Number = 0.0
    classifier_dropout: Number = 0.0
    initializer_range: Number = 0.02
    layer_norm_eps: Number = 1e-6
    final_norm: bool = True  # a norm after the last block
    use_cache: bool = True
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None

    def __init_subclass__(cls, *args: Any, **kwargs: Any) -> None:
        # Annotations that are text (a future import in the file) would pass @strict unchecked.
        own = inspect.get_annotations(cls, eval_str=True)
        # `modality = "image"` in an architecture gives an inherited field another default; what the field is was said once.
        inherited = {name: field.type for name, field in cls.__dataclass_fields__.items() if name in vars(cls) and name not in own}
        cls.__annotations__ = {**own, **inherited}
        super().__init_subclass__(*args, **kwargs)
        strict(cls)
        cls.__init__ = _with_one_line_errors(cls.__init__)

    def __post_init__(self, **kwargs: Any) -> None:
        if self.mixlab_format > FORMAT:
            raise MixlabError(f"format {self.mixlab_format} is newer than {FORMAT}, the newest that this version reads; upgrade mixlab")
        if self.mixlab_format < 1:
            raise MixlabError(f"mixlab_format is {self.mixlab_format}; the first is 1, so the configuration is damaged")
        known = {f.name for f in fields(self)} | _PASSED_BY_TRANSFORMERS
        for name in kwargs:
            if name not in known:
                raise unknown(f"{type(self).__name__} field", name, [k for k in known if not k.startswith("_")])
        if kwargs.pop("model_type", self.model_type) != self.model_type:
            raise MixlabError(f"this configuration is not of model_type {self.model_type!r}; load it with AutoConfig")
        if kwargs.get("attn_implementation") not in (None, "eager", "sdpa"):  # any other may be the name of a kernel to download
            raise MixlabError(f"attn_implementation {kwargs['attn_implementation']!r} is not supported; use 'sdpa', or leave it out")
        self._check_sizes()
        self._check_inherited(kwargs.get("torch_dtype"), kwargs.get("num_labels"))
        if self.modality == "image":
            self.max_position_embeddings = self._image_length()
        elif self.max_position_embeddings is None:
            if self.traits.length != "any":
                raise MixlabError("max_position_embeddings is missing; give the longest sequence that the model shall read")
        elif self.max_position_embeddings < 1:
            raise MixlabError(f"max_position_embeddings is {self.max_position_embeddings}; it must be at least 1")
        self._check_pooling()
        super().__post_init__(**kwargs)

    def _check_sizes(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if type(value) is int and value > LARGEST:
                raise MixlabError(f"{field.name} is {value}; it must be at most {LARGEST}")
            if type(value) is float and not math.isfinite(value):
                raise MixlabError(f"{field.name} is {value}; it must be a finite number")
            if field.name.endswith(("_eps", "_std", "_range")) and value < 0:
                raise MixlabError(f"{field.name} is {value}; it must be at least 0")
        for name in AT_LEAST_ONE:
            if getattr(self, name, 1) < 1:
                raise MixlabError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.num_hidden_layers > MOST_LAYERS:
            raise MixlabError(f"num_hidden_layers is {self.num_hidden_layers}; it must be at most {MOST_LAYERS}")
        if self.type_vocab_size < 0:
            raise MixlabError(f"type_vocab_size is {self.type_vocab_size}; use 0 for no segments")
        for name in RATES:
            self.check_rate(name)
        for name in ("pad_token_id", "bos_token_id", "eos_token_id") if self.modality == "text" else ():
            value = getattr(self, name)
            for token in value if isinstance(value, list) else [value]:
                if token is not None and not 0 <= token < self.vocab_size:
                    raise MixlabError(f"{name} is {token}, outside 0..{self.vocab_size - 1}; it must be a token of the vocabulary")

    def _check_inherited(self, torch_dtype: object, num_labels: object) -> None:
        """transformers' own fields, which it reads without looking."""
        for dtype in (self.dtype, torch_dtype):
            if dtype is not None and str(dtype).removeprefix("torch.") not in DTYPES:
                raise MixlabError(f"dtype {dtype!r} is not a type of weights; known: {', '.join(DTYPES)}")
        if self.problem_type not in (None, *PROBLEM_TYPES):
            raise unknown("problem_type", self.problem_type, PROBLEM_TYPES)
        if num_labels is not None and not (type(num_labels) is int and 0 <= num_labels <= MOST_LABELS):
            raise MixlabError(f"num_labels is {num_labels}; it must be a whole number up to {MOST_LABELS}")
        if not isinstance(self.architectures or [], list) or not all(isinstance(name, str) for name in self.architectures or []):
            raise MixlabError(f"architectures is {self.architectures!r}; it must be a list of names of classes")

    def check_rate(self, name: str) -> None:
        if not 0.0 <= getattr(self, name, 0.0) < 1.0:
            raise MixlabError(f"{name} is {getattr(self, name)}; it must be at least 0 and below 1")

    def derive(self, name: str, value: int, origin: str) -> None:
        """Set a field that follows from another; anything but that value, or the default, contradicts it."""
        given = getattr(self, name)
        if given not in (getattr(MixerConfig, name), value):
            raise MixlabError(f"{name} is {given}, but {origin} makes it {value}; leave {name} out")
        setattr(self, name, value)

    def require(self, **fixed: object) -> None:
        """That fields have the only values that an architecture knows."""
        for name, value in fixed.items():
            if getattr(self, name) != value:
                raise MixlabError(f"{name} is {getattr(self, name)}, and a {self.model_type} has {value}; leave {name} out")

    def check_split(self, size: str, parts: str) -> None:
        """That a width can be split into heads."""
        width, heads = getattr(self, size), getattr(self, parts)
        if heads < 1 or width % heads:
            raise MixlabError(f"{size} {width} cannot be split into {parts}={heads}; use a divisor of {width}")

    def _image_length(self) -> int:
        if self.image_size % self.patch_size:
            raise MixlabError(f"image_size {self.image_size} is not a multiple of patch_size {self.patch_size}")
        if self.image_size % self.image_multiple:
            raise MixlabError(f"image_size {self.image_size} is not a multiple of {self.image_multiple}, as the stages need; choose one")
        length = self.grid * self.grid + self.prefix_tokens
        if self.max_position_embeddings not in (None, length):
            raise MixlabError(f"max_position_embeddings is {self.max_position_embeddings}, but the image has {length} tokens; leave it out")
        return length

    def _check_pooling(self) -> None:
        if self.modality not in self.traits.modalities:
            raise MixlabError(f"{self.model_type} reads {' or '.join(self.traits.modalities)}, not {self.modality}; set modality")
        if self.pooling not in self.poolings:
            raise MixlabError(f"{self.model_type} has no pooling {self.pooling!r}; choose among {', '.join(self.poolings)}")
        if self.modality == "audio" and self.pooling != "mean":
            raise MixlabError(f"pooling={self.pooling!r} is for text and images; set pooling='mean' for sound")
        if self.masking == "drop" and not self.traits.drops:
            raise MixlabError(f"{self.model_type} cannot leave patches out; set masking='token', which covers them")
        if self.pooling == "cls" and self.causal:
            raise MixlabError("pooling='cls' reads the first token, which sees only itself in a causal model; use 'last' or 'mean'")
        if self.pooling == "last" and not self.causal:
            raise MixlabError("pooling='last' is for causal models; use 'cls' or 'mean'")
        if self.causal and self.modality != "text":
            raise MixlabError(f"causal=True is for text; this model reads {self.modality}")
        if self.causal and not self.traits.causal:
            raise MixlabError(f"{self.model_type} cannot be causal; choose an architecture that can (mixlab list archs)")

    @property
    def grid(self) -> int:
        """Patches along one side of the image."""
        return self.image_size // self.patch_size

    @property
    def image_multiple(self) -> int:
        """What the sides of an image must be multiples of, where they are not fixed."""
        return self.patch_size

    @property
    def final_patch(self) -> int:
        """Pixels along one side that a final token stands for; more than a patch in a hierarchy."""
        return self.patch_size

    def of_decoder(self) -> "MixerConfig":
        """The same architecture at the size of the decoder of masked image modelling."""
        decoder = copy.deepcopy(self)
        sizes = {"hidden_size": "", "num_hidden_layers": "num_layers", "intermediate_size": "", "num_attention_heads": ""}
        for name, ours in sizes.items():
            if hasattr(decoder, name):
                setattr(decoder, name, getattr(self, f"decoder_{ours or name}"))
        return decoder

    @property
    def stem_size(self) -> int:
        """Channels that enter the body; a hierarchy whose width grows gives its own."""
        return self.hidden_size

    @property
    def stem_dropout(self) -> float:
        """Dropout at the end of the stem; 0 where the body adds something first."""
        return self.hidden_dropout

    @property
    def transform_act(self) -> str:
        """The activation of the dense layer before the vocabulary, if there is one; an architecture may have another."""
        return "gelu"

    @property
    def prefix_tokens(self) -> int:
        """Tokens before the patches of an image."""
        return 1 if self.modality == "image" and self.pooling == "cls" else 0

    @property
    def length(self) -> int:
        """The longest sequence, as a plain number."""
        if self.max_position_embeddings is None:
            raise MixlabError(f"this {self.model_type} reads any length, so none is known; give a length")
        return self.max_position_embeddings

    def fewest_frames(self, tokens: int) -> int:
        """Frames of sound that it takes to make so many tokens."""
        return (tokens - 1) * self.frame_stride + 1

    @property
    def layer_types(self) -> list[str]:
        """Lets `DynamicCache(config=...)` build the right layers."""
        return [self.layer_type] * self.num_hidden_layers

    def validate_layer_type(self) -> None:
        """transformers checks layer types against its own list, which cannot know ours."""

    @property
    def traits(self) -> Traits:
        """What this configuration can do."""
        raise NotImplementedError


def _with_one_line_errors(init: Any) -> Any:
    """Type errors of `@strict` fields span lines and name no class, and transformers trips over odd values; say both as ours."""

    @wraps(init)
    def wrapped(self: MixerConfig, *args: Any, **kwargs: Any) -> None:
        try:
            init(self, *args, **kwargs)
        except MixlabError:
            raise
        except (StrictDataclassError, TypeError, ValueError, AttributeError, KeyError, OverflowError) as error:
            raise MixlabError(f"{type(self).__name__}: {one_line(error)}; correct the value") from error

    return wrapped
