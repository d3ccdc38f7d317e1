"""Deflated descents against dense algebra: as long a step where a few eigenvalues are far above the others."""

from __future__ import annotations

import torch

from lapwing.linalg import Diagonal
from lapwing.linear.problem import Problem
from lapwing.linear.solvers import SDD
from lapwing.linear.solvers.stochastic.deflation import Deflation
from lapwing.linear.solvers.stochastic.dual import stable
from lapwing.linear.solvers.stochastic.kernel_rows import SAFE
from lapwing.methods.gp import KernelMatrix, Matern
from tests.linear.solvers.stochastic.test_dual import N, problem
from tests.posterior_cases import normal


def test_long_lengthscales_make_no_steps_short() -> None:
    """Of smooth functions a few eigenvalues are far above the others, and one input may be far from all the others."""
    x = torch.rand(N, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x[7] = 50.0
    noise = torch.full((N,), 0.1, dtype=torch.float64)
    smooth = Problem(KernelMatrix(30.0 * Matern(3.0), x), Diagonal(noise))
    dense, b = smooth.curvature.dense() + torch.diag(noise), normal(N, 2)
    exact = torch.linalg.solve(dense, b)

    def off(solver: SDD) -> float:
        return float(torch.linalg.vector_norm(solver.solve(smooth, b).value - exact) / torch.linalg.vector_norm(exact))

    assert off(SDD(steps=300, batch=32, rtol=1e-6)) < 1e-3
    assert off(SDD(steps=300, batch=32, rtol=1e-6, rank=0)) > 0.1


def test_a_deflated_matrix_has_one_eigenvalue_where_it_had_the_largest() -> None:
    kernel, dense = problem()
    found = Deflation.of(kernel, 20)
    values = torch.linalg.eigvalsh(dense)
    torch.testing.assert_close(found.values[0], values[-1], rtol=1e-3, atol=0.0)
    torch.testing.assert_close(found.products, dense @ found.vectors)
    multiplied = torch.eye(N, dtype=torch.float64) - found.vectors @ (found.shares * found.vectors.mT)
    assert float(torch.linalg.eigvalsh(multiplied)[0]) > 0
    left = torch.linalg.eigvals(multiplied @ dense).real
    assert float(left.max()) < 0.1 * float(values[-1])
    batch, step = stable(kernel, 0.9, N, torch.Generator().manual_seed(0), found)
    assert step <= SAFE * 2 * 1.9 / (2.8 * float(left.max())) * N * 1.3 and batch <= N
