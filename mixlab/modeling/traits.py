"""What an architecture declares that it can do. The conformance suite checks every declaration; what is not declared is refused."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

LengthPolicy = Literal["any", "cap", "grid", "fixed"]
Equivariance = Literal["none", "shift", "permutation"]

TEXT_TASKS = (
    "features",
    "masked-lm",
    "causal-lm",
    "sequence-classification",
    "token-classification",
    "question-answering",
)
IMAGE_TASKS = ("features", "image-classification", "masked-image-modeling", "image-restoration")
AUDIO_TASKS = ("features", "audio-classification", "ctc")
TASKS = {"text": TEXT_TASKS, "image": IMAGE_TASKS, "audio": AUDIO_TASKS}


@dataclass(frozen=True)
class Traits:
    """The abilities of one configuration of an architecture."""

    masks: bool  # padding is never read
    causal: bool  # can be built so that no token reads a later one
    length: LengthPolicy  # any; up to a cap; any grid of allowed sides; one length only
    modalities: tuple[str, ...]  # "text", "image", "audio"
    tasks: tuple[str, ...]
    order: tuple[int, ...]  # degree of each token-mixing term in its input, normalisers aside
    attention: bool  # has attention maps to show
    equivariance: Equivariance = "none"  # of the body: moving tokens by one, or in any order, moves what comes out (away from the borders)
    reach: int | None = None  # how many tokens away (an image: rows or columns) a token reads at the most; None: any
    maps: bool = True  # has token maps to show
    drops: bool = False  # patches of an image can be left out

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)
