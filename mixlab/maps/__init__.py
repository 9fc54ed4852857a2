"""Token maps: operators that mix tokens, one file per structure."""

from mixlab.maps.banded import BandedMap, BandedWeight, GridBandedMap
from mixlab.maps.base import StaticWeight, TokenMap
from mixlab.maps.dense import DenseMap, DenseWeight
from mixlab.maps.dynamic import DynamicBandedMap
from mixlab.maps.fourier import FourierMap
from mixlab.maps.identity import IdentityMap
from mixlab.maps.lowrank import LowRankMap, LowRankWeight
from mixlab.maps.pool import PoolMap
from mixlab.maps.selection import cutting, joining
from mixlab.maps.softmax import SoftmaxMap
from mixlab.maps.toeplitz import ToeplitzMap, ToeplitzWeight
from mixlab.maps.windows import BlockDiagonalMap, WindowBias, Windows

__all__ = [
    "BandedMap",
    "BandedWeight",
    "BlockDiagonalMap",
    "DenseMap",
    "DenseWeight",
    "DynamicBandedMap",
    "FourierMap",
    "GridBandedMap",
    "IdentityMap",
    "LowRankMap",
    "LowRankWeight",
    "PoolMap",
    "SoftmaxMap",
    "StaticWeight",
    "ToeplitzMap",
    "ToeplitzWeight",
    "TokenMap",
    "WindowBias",
    "Windows",
    "cutting",
    "joining",
]
