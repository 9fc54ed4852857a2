"""The fit of a Toeplitz matrix, against least squares and against what it must be in known cases."""

import numpy as np
import pytest
import scipy.linalg
import torch

from mixlab.analysis.toeplitz import best_toeplitz, toeplitz_fit, toeplitz_r2


def test_the_best_fit_is_that_of_least_squares() -> None:
    matrix = torch.randn(6, 6, dtype=torch.float64)
    columns = [np.eye(6, k=k).flatten() for k in range(-5, 6)]
    weights, *_ = np.linalg.lstsq(np.stack(columns, 1), matrix.numpy().flatten(), rcond=None)
    expected = (np.stack(columns, 1) @ weights).reshape(6, 6)
    np.testing.assert_allclose(best_toeplitz(matrix).numpy(), expected, atol=1e-12)


def test_a_toeplitz_matrix_fits_itself_and_its_permutation_does_not() -> None:
    matrix = torch.tensor(scipy.linalg.toeplitz(np.exp(-np.arange(32) / 3), np.exp(-np.arange(32) / 5)))
    fit = toeplitz_fit(matrix)
    assert fit.r2 == pytest.approx(1.0)
    assert fit.permuted < 0.15


def test_noise_fits_by_chance_alone() -> None:
    fit = toeplitz_fit(torch.randn(64, 64))
    assert fit.r2 == pytest.approx(2 / 64, abs=0.02)
    assert fit.permuted == pytest.approx(fit.r2, abs=0.02)


def test_a_constant_matrix_is_a_toeplitz_matrix() -> None:
    assert toeplitz_r2(torch.ones(4, 4)) == 1.0
