"""What a model has learned, as pure functions of its weights and outputs."""

from mixlab.analysis.schmidt import Decomposition, Term, decompose, schmidt_rank
from mixlab.analysis.toeplitz import ToeplitzFit, best_toeplitz, toeplitz_fit

__all__ = ["Decomposition", "Term", "ToeplitzFit", "best_toeplitz", "decompose", "schmidt_rank", "toeplitz_fit"]
