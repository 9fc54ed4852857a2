"""Plain torch modules that can be dropped into anyone's own model. They know no transformers."""

from mixlab.layers.attention import DistanceAttention, SelfAttention
from mixlab.layers.drop_path import DropPath
from mixlab.layers.gate import SpatialGate
from mixlab.layers.glu import GLU
from mixlab.layers.gmlp import GMLPBlock
from mixlab.layers.highway import Highway
from mixlab.layers.lightconv import DynamicConv, LightConv
from mixlab.layers.linear import ScaledLinear
from mixlab.layers.metaformer import MetaFormerBlock
from mixlab.layers.mlp import FeedForward
from mixlab.layers.pooling import AttentionPool, MeanPool
from mixlab.layers.positions import LearnedPositions, WavePositions
from mixlab.layers.relative import RelativeBias, RelativeKeys
from mixlab.layers.se import SqueezeExcite
from mixlab.layers.stack import Stack
from mixlab.layers.stems import FrameStem, PatchStem, TextStem
from mixlab.layers.tokens import Tokens
from mixlab.layers.transformer import ParallelBlock, PreNormBlock
from mixlab.layers.windows import PatchMerging, WindowAttention

__all__ = [
    "GLU",
    "AttentionPool",
    "DistanceAttention",
    "DropPath",
    "DynamicConv",
    "FeedForward",
    "FrameStem",
    "GMLPBlock",
    "Highway",
    "LearnedPositions",
    "LightConv",
    "MeanPool",
    "MetaFormerBlock",
    "ParallelBlock",
    "PatchMerging",
    "PatchStem",
    "PreNormBlock",
    "RelativeBias",
    "RelativeKeys",
    "ScaledLinear",
    "SelfAttention",
    "SpatialGate",
    "SqueezeExcite",
    "Stack",
    "TextStem",
    "Tokens",
    "WavePositions",
    "WindowAttention",
]
