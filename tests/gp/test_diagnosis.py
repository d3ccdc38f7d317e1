"""Spectral basis functions and norms of errors against dense formulas."""

from __future__ import annotations

import pytest
import torch

import lapwing as lw
from lapwing.gp import KernelMatrix, Matern
from lapwing.gp.diagnosis import error_norms, spectral_basis
from lapwing.metrics import gaussian_wasserstein
from tests.posterior_cases import normal

X, NEW, KERNEL = normal(30, 2), normal(5, 2, seed=1), Matern(0.9)
K = KERNEL(X, X)


def test_basis_functions_are_orthonormal_in_the_rkhs() -> None:
    basis = spectral_basis(KERNEL, X, 6)
    coefficients = basis.vectors / basis.values.sqrt()
    torch.testing.assert_close(coefficients.mT @ K @ coefficients, torch.eye(6).double(), rtol=0, atol=1e-7)
    torch.testing.assert_close(basis(NEW), KERNEL(NEW, X) @ coefficients)
    torch.testing.assert_close(basis.values, torch.linalg.eigvalsh(K).flip(0)[:6])


def test_projections_add_up_to_the_norm_of_the_rkhs() -> None:
    basis, alpha = spectral_basis(KERNEL, X, 30), normal(30, 2, seed=2)
    torch.testing.assert_close(basis.projections(alpha).square().sum(0), (alpha * (K @ alpha)).sum(0))
    direct = torch.linalg.solve(K, basis(X)).mT @ K @ alpha
    torch.testing.assert_close(basis.projections(alpha), direct, rtol=1e-6, atol=1e-6)


def test_norms_are_those_of_the_dense_matrix() -> None:
    found, exact = normal(30, 1, seed=3), normal(30, 1, seed=4)
    norms = error_norms(KernelMatrix(KERNEL, X), found, exact)
    for power, value in ((0, norms.euclidean), (1, norms.kernel), (2, norms.squared)):
        weight = torch.linalg.matrix_power(K, power)
        off, whole = (v.mT @ weight @ v for v in (found - exact, exact))
        assert value == pytest.approx(float((off / whole).sqrt()), rel=1e-9)


def test_the_distance_of_marginals_is_that_of_means_and_deviations() -> None:
    y = normal(30, seed=5)
    one, other = (lw.GP(KERNEL, lw.Gaussian(rho)).fit((X, y)).outputs(NEW) for rho in (3.0, 40.0))
    apart = (one.mean - other.mean).square() + (one.std - other.std).square()
    torch.testing.assert_close(gaussian_wasserstein(one.marginal(), other.marginal()), apart[:, 0].sqrt())
