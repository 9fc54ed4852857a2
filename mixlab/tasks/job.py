"""A `Job`: everything that decides what a training run does, resolved and written into its run directory."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal

from mixlab.data.columns import Columns
from mixlab.data.files import Unit
from mixlab.data.labels import LabelKind
from mixlab.errors import MixlabError, unknown
from mixlab.modeling.architecture import read_settings
from mixlab.training.settings import TrainingSettings


@dataclass(frozen=True)
class Vocabulary:
    """The tokenizer to train when the run starts from nothing."""

    kind: Literal["wordpiece", "bpe", "unigram"] = "wordpiece"
    size: int = 2000


@dataclass(frozen=True)
class Masking:
    rate: float = 0.15
    unit: Literal["token", "word", "span"] = "token"


@dataclass(frozen=True)
class Spans:
    """Answers in long contexts, in tokens: what neighbouring windows share (None: a quarter of the length), and the longest answer."""

    stride: int | None = None
    longest: int = 30

    def __post_init__(self) -> None:
        if self.longest < 1:
            raise MixlabError(f"spans.longest is {self.longest}; an answer has at least 1 token")


@dataclass(frozen=True)
class Job:
    """`data` is anything that `mixlab.data.sources.read` reads; `start` a run or model folder whose weights and tokenizer are taken."""

    task: str
    preset: str
    data: str
    training: TrainingSettings
    validation: str | None = None  # rows to measure on, when `data` has no split of that name
    length: int = 64  # tokens of an example
    start: str | None = None
    model: Mapping[str, Any] = field(default_factory=dict)  # settings of the preset to replace
    vocabulary: Vocabulary = field(default_factory=Vocabulary)
    masking: Masking = field(default_factory=Masking)
    spans: Spans = field(default_factory=Spans)
    columns: Columns = field(default_factory=Columns)
    pairs: bool = False  # rows to classify hold two texts
    label_kind: LabelKind | None = None  # None: as the training labels look
    documents: Unit = "file"  # what one document of a plain text file is
    data_seed: int = 0  # of generated data
    epochs: float = 0  # passes over the training rows, which then decide the number of steps; 0: as many as the training settings say

    def __post_init__(self) -> None:
        for name in ("data", "validation", "start"):
            place = getattr(self, name)
            if not (isinstance(place, str) and place.strip()) and not (place is None and name != "data"):
                raise MixlabError(f"{name} is {place!r}; give a file, a folder (such as ./{place or 'texts'}) or a name")
        for name, value, least in (
            ("length", self.length, 1),
            ("data_seed", self.data_seed, 0),
            ("vocabulary.size", self.vocabulary.size, 1),
        ):
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise MixlabError(f"{name} is {value!r}; it must be a whole number of at least {least}")
        for name, value in (("epochs", self.epochs), ("masking.rate", self.masking.rate)):
            if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < math.inf:
                raise MixlabError(f"{name} is {value!r}; it must be a number of at least 0")
        if not isinstance(self.pairs, bool):
            raise MixlabError(f"pairs is {self.pairs!r}; it must be true or false")

    def with_steps_for(self, examples: int | None) -> Job:
        """With the steps that its epochs come to; None: examples that cannot be counted."""
        if not self.epochs:
            return self
        if examples is None:
            raise MixlabError(f"epochs is {self.epochs:g}, but a stream of examples has no known length; set steps and epochs=0")
        steps = max(1, round(self.epochs * (examples // self.training.batch_size)))
        return replace(self, training=replace(self.training, steps=steps))

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for the run directory; the training settings stand there under a name of their own."""
        described = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("training", "columns")}
        described |= {"model": dict(self.model), "vocabulary": asdict(self.vocabulary), "masking": asdict(self.masking)}
        described |= {"spans": asdict(self.spans)}
        usual = {"label_kind": None, "documents": "file"}  # left out, as in runs from before these could be set
        described = {name: value for name, value in described.items() if name not in usual or value != usual[name]}
        return {**described, "columns": self.columns.given()}

    def with_settings(self, pairs: list[str] | tuple[str, ...]) -> Job:
        """With `key=value` applied: a field of the job or its training, or `model.x`, or one of a group, as in `masking.rate`."""
        own = {f.name for f in fields(self)} - {"training", "model", *GROUPS}
        steering = {f.name for f in fields(TrainingSettings)}
        inside = {f"{group}.{f.name}" for group in GROUPS for f in fields(getattr(self, group))}
        changes: dict[str, dict[str, Any]] = {group: {} for group in ("job", "training", "model", *GROUPS)}
        for name, value in read_settings(pairs).items():
            group, _, inner = name.partition(".")
            if name in own:
                changes["job"][name] = value
            elif name in steering:
                changes["training"][name] = _as_tuple(name, value)
            elif group == "model" and inner:
                changes["model"][inner] = value
            elif name in inside:
                changes[group][inner] = value
            else:
                raise unknown("setting", name, own | steering | inside)
        try:  # together, since one value may only be right beside another
            groups = {group: replace(getattr(self, group), **changes[group]) for group in ("training", *GROUPS)}
            return replace(self, **changes["job"], **groups, model={**self.model, **changes["model"]})
        except TypeError as error:
            raise MixlabError(f"a setting among {', '.join(pairs)} is of the wrong kind: {error}") from error


GROUPS = ("vocabulary", "masking", "spans", "columns")


def _as_tuple(name: str, value: Any) -> Any:
    """Settings of several values come as lists; trackers also by their bare names, with commas between."""
    if name == "report_to" and isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return tuple(value) if name in ("betas", "report_to") and isinstance(value, list) else value


def job_from(described: Mapping[str, Any]) -> Job:
    """A job as a run directory holds it."""
    values = dict(described)
    training = dict(values.pop("settings"))
    training = {name: _as_tuple(name, value) for name, value in training.items()}
    known = {f.name for f in fields(Job)}
    kept = {name: value for name, value in values.items() if name in known}
    kinds = {"vocabulary": Vocabulary, "masking": Masking, "spans": Spans, "columns": Columns}
    kept |= {name: kind(**kept[name]) for name, kind in kinds.items() if name in kept}
    return Job(**kept, training=TrainingSettings(**training))
