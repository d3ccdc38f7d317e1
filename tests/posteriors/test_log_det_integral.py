"""The log determinant as an integral of the effective dimension, against that of the dense matrix."""

from __future__ import annotations

import math

import pytest
import torch

from lapwing.linalg import Diagonal
from lapwing.linear.model import Matrix
from lapwing.linear.perturbation import Perturbation
from lapwing.linear.problem import Problem
from lapwing.linear.solvers import CG
from lapwing.posteriors.log_det_integral import TAIL, log_det_integral, quadrature
from tests.posterior_cases import normal

EXACT = CG(rtol=1e-12)


def model(scale: float = 1.0, size: int = 5) -> Problem:
    """A linear model of 7 rows whose directions and precisions all differ."""
    rows = normal(7, size) * torch.logspace(-2, 2, size, dtype=torch.float64)
    return Problem.of(Matrix(rows), Diagonal(torch.linspace(0.3, 4.0, size, dtype=torch.float64)), scale)


def whitened(problem: Problem) -> Perturbation:
    """Noise of covariance Λ exactly."""
    root, eye = problem.root.dense(), torch.eye(problem.size, dtype=torch.float64)
    factor = (root.shape[1] + len(eye)) ** 0.5
    data = torch.cat([factor * root, torch.zeros_like(eye)], 1)
    return Perturbation(data, torch.cat([torch.zeros_like(root), factor * eye], 1))


def exact(problem: Problem) -> float:
    ratio = torch.logdet(problem.precision.dense()) - problem.prior.logdet()
    return float(ratio)


@pytest.mark.parametrize("scale", [1e-6, 1e-3, 1.0, 1e4])
def test_is_the_log_determinant_where_the_noise_is_the_precision_itself(scale: float) -> None:
    problem = model(scale)
    values, _ = log_det_integral(problem, whitened(problem), EXACT)
    assert values.mean().item() == pytest.approx(exact(problem), rel=1e-4, abs=TAIL**2 / 2)


@pytest.mark.parametrize("seed", range(3))
def test_covers_it_from_random_draws(seed: int) -> None:
    problem = model()
    noise = Perturbation.drawn(problem, 400, generator=torch.Generator().manual_seed(seed))
    values, solutions = log_det_integral(problem, noise, EXACT)
    assert abs(values.mean().item() - exact(problem)) < 3 * values.std().item() / 20
    assert all(solution.converged and not solution.value.numel() for solution in solutions)


def test_the_tail_is_closed_at_little_effective_dimension() -> None:
    problem = model()
    errors = []
    for tail in (1.0, 0.1):
        values, _ = log_det_integral(problem, whitened(problem), EXACT, tail=tail, accuracy=1e-9)
        errors.append(exact(problem) - values.mean().item())
        assert 0 < errors[-1] < tail**2 / 2
    assert errors[1] < errors[0] / 30


def test_nothing_is_charged_for_no_curvature() -> None:
    problem = Problem.of(Matrix(torch.zeros(3, 5, dtype=torch.float64)), Diagonal(torch.ones(5, dtype=torch.float64)))
    values, solutions = log_det_integral(problem, Perturbation.drawn(problem, 2), EXACT)
    assert not values.any() and len(solutions) == 1


@pytest.mark.parametrize("span", [0.1, 0.5, 2.0, 5.0, 20.0, 40.0])
def test_quadrature_of_logistic_functions(span: float) -> None:
    rule = quadrature(span)
    assert len(rule) <= 2 + 0.8 * span and all(0 < time < 1 for time, _ in rule)
    for middle in torch.linspace(0, span, 7).tolist():
        found = span * sum(weight / (1 + math.exp(span * time - middle)) for time, weight in rule)
        whole = math.log1p(math.exp(middle)) - math.log1p(math.exp(middle - span))
        assert found == pytest.approx(whole, rel=2e-3, abs=2e-4 * span)


def test_no_span_has_no_points() -> None:
    assert quadrature(0.0) == []
