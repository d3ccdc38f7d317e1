"""Solvers and roots agree with dense float64, at condition numbers to 1e8, as closely as their residual promises."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lapwing.linalg import Dense, Diagonal, LowRank, Structured
from lapwing.linalg.cg import conjugate_gradients
from lapwing.linalg.contour import contour_inverse_root, inverse_root_rule
from lapwing.linalg.shifted import Method, shifted_solve
from tests.linalg.cases import eye, normal, spd

D, RTOL = 30, 1e-6
EPS = torch.finfo(torch.float64).eps
CONDITIONS = [1.0, 1e2, 1e4, 1e6, 1e8]
every_condition = pytest.mark.parametrize("condition", CONDITIONS)
every_width = pytest.mark.parametrize("width", [1, 3, 40])


def no_preconditioner(matrix: Tensor) -> None:
    return None


def diagonal(matrix: Tensor) -> Diagonal:
    return Diagonal(matrix.diagonal().clone())


def low_rank(matrix: Tensor) -> LowRank:
    values, vectors = torch.linalg.eigh(matrix)
    base = values[-6]
    return LowRank(vectors[:, -5:] * (values[-5:] - base).clamp(min=0).sqrt(), Diagonal(base.expand(D).clone()))


def dense(matrix: Tensor) -> Dense:
    return Dense(matrix + 0.1 * torch.diag(matrix.diagonal()))


every_preconditioner = pytest.mark.parametrize("precondition", [no_preconditioner, diagonal, low_rank, dense])


def written_out(preconditioner: Structured | None) -> Tensor:
    return eye(D) if preconditioner is None else preconditioner.dense()


def root_of(matrix: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh(matrix)
    return vectors * values.sqrt() @ vectors.mT


@every_condition
@every_width
@every_preconditioner
def test_conjugate_gradients(condition: float, width: int, precondition) -> None:
    matrix, b = spd(D, condition), normal(D, width, seed=1)
    solution = conjugate_gradients(
        Dense(matrix), b, rtol=RTOL, max_iterations=4000, preconditioner=precondition(matrix)
    )
    assert solution.converged
    assert (solution.residual <= RTOL).all()
    remainder = (b - matrix @ solution.value).norm(dim=0) / b.norm(dim=0)
    torch.testing.assert_close(solution.residual, remainder, rtol=1e-6, atol=100 * EPS * condition)
    error = (solution.value - torch.linalg.solve(matrix, b)).norm(dim=0)
    inverse = torch.linalg.eigvalsh(matrix)[0].reciprocal()
    assert (error <= inverse * (solution.residual + 100 * EPS) * b.norm(dim=0)).all()


@every_condition
@every_preconditioner
@pytest.mark.parametrize(("method", "drift"), [("cg", 1.0), ("minres", 1.5)])
def test_shifted_systems(method: Method, drift: float, condition: float, precondition) -> None:
    matrix, b = spd(D, condition), normal(D, 3, seed=1)
    preconditioner = precondition(matrix)
    p = written_out(preconditioner)
    shifts = torch.tensor([0.0, 1e-3, 1.0, 1e3], dtype=torch.float64) / condition
    solution = shifted_solve(
        Dense(matrix), b, shifts, method=method, rtol=RTOL, max_iterations=4000, preconditioner=preconditioner
    )
    assert solution.converged
    inverse_root = torch.linalg.inv(torch.linalg.cholesky(p))  # |v|² = vᵀ P⁻¹ v
    relative = []
    for t, c in zip(shifts, solution.value, strict=True):
        remainder = b - matrix @ c - t * (p @ c)
        relative.append((inverse_root @ remainder).norm(dim=0) / (inverse_root @ b).norm(dim=0))
    torch.testing.assert_close(solution.residual, torch.stack(relative), rtol=0.01, atol=20 * EPS * condition**drift)


@every_condition
@every_width
def test_contour_roots(condition: float, width: int) -> None:
    matrix, b = spd(D, condition), normal(D, width, seed=1)
    operator, root, interval = Dense(matrix), root_of(matrix), (3 / condition, 3.0)
    allowed = promised(matrix, interval, points=16) * b.norm(dim=0)
    inverse = contour_inverse_root(operator, b, points=16, interval=interval, rtol=RTOL, max_iterations=4000)
    assert inverse.converged
    assert ((root @ inverse.value - b).norm(dim=0) <= allowed).all()


@every_condition
@every_preconditioner
def test_covariance_of_contour_draws(condition: float, precondition) -> None:
    matrix = spd(D, condition)
    preconditioner = precondition(matrix)
    lower = torch.linalg.cholesky(written_out(preconditioner))
    whitened = torch.linalg.solve_triangular(lower, matrix, upper=False)
    whitened = torch.linalg.solve_triangular(lower, whitened.mT, upper=False)
    values = torch.linalg.eigvalsh((whitened + whitened.mT) / 2)
    interval = (values[0].item() / 1.01, values[-1].item() * 1.01)
    draws = contour_inverse_root(
        Dense(matrix),
        eye(D),
        points=16,
        interval=interval,
        rtol=RTOL,
        max_iterations=4000,
        preconditioner=preconditioner,
    )
    assert draws.converged
    white = torch.linalg.cholesky(matrix).mT @ draws.value  # W Wᵀ = Lᵀ M Mᵀ L = Lᵀ A⁻¹ L = I
    error = torch.linalg.matrix_norm(white @ white.mT - eye(D), 2)
    assert error <= 3 * D**0.5 * promised(torch.diag(values), interval, points=16)


def promised(matrix: Tensor, interval: tuple[float, float], points: int) -> float:
    """Error of ``A^½ s`` relative to ``b``: the rule's on the spectrum, and ``Σ w / (2 √t)`` times the residual."""
    rule = inverse_root_rule(*interval, points)
    values = torch.linalg.eigvalsh(matrix)
    quadrature = ((rule.weights / (values[:, None] + rule.shifts)).sum(1) * values.sqrt() - 1).abs().max().item()
    condition = (values[-1] / values[0]).item()
    return quadrature + RTOL * (rule.weights / (2 * rule.shifts.sqrt())).sum().item() + 100 * EPS * condition
