"""Token maps: operators that mix tokens, one file per structure."""

from mixlab.maps.base import StaticWeight, TokenMap
from mixlab.maps.dense import DenseMap, DenseWeight
from mixlab.maps.softmax import SoftmaxMap
from mixlab.maps.toeplitz import ToeplitzMap, ToeplitzWeight

__all__ = ["DenseMap", "DenseWeight", "SoftmaxMap", "StaticWeight", "ToeplitzMap", "ToeplitzWeight", "TokenMap"]
