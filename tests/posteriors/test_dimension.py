"""Effective dimensions from draws: unbiased in every group, with the variances they are said to have."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from lapwing.linalg import Diagonal
from lapwing.linear.model import Matrix
from lapwing.linear.perturbation import Perturbation
from lapwing.linear.problem import Problem
from lapwing.linear.solvers import CG
from lapwing.posteriors import dimension
from lapwing.posteriors.dimension import (
    LEAST,
    Dimensions,
    by_draws,
    log_det_ratio,
    output_squares,
    quadrature,
    weights_are_better,
)
from tests.posterior_cases import normal

GROUP = torch.tensor([0, 1, 0, 1, 1, 0])
SIZES = torch.tensor([3.0, 3.0]).double()
SAMPLES = 40_000


def made(prior: tuple[float, float], scale: float = 1.7) -> tuple[Problem, Tensor, Tensor]:
    """A problem, its covariance, and draws."""
    rows = normal(9, 6) * torch.logspace(-1, 1, 6).double()
    problem = Problem.of(Matrix(rows), Diagonal(torch.tensor(prior).double()[GROUP] * torch.linspace(0.5, 2, 6)), scale)
    covariance = torch.linalg.inv(problem.precision.dense())
    return problem, covariance, torch.linalg.cholesky(covariance) @ normal(6, SAMPLES, seed=1)


def told(problem: Problem, draws: Tensor, group: Tensor, estimator: Any = "auto") -> Dimensions:
    def squares() -> Tensor:
        return problem.scale * output_squares(problem, draws, group, int(group.max()) + 1)

    return by_draws(draws, problem.prior.values, group, squares, estimator)


def summed(values: Tensor) -> Tensor:
    return torch.zeros(2).double().index_add(0, GROUP, values)


@pytest.mark.parametrize("estimator", ["outputs", "weights", "auto"])
@pytest.mark.parametrize("prior", [(30.0, 30.0), (0.1, 300.0)])
def test_every_group_is_without_bias(prior: tuple[float, float], estimator: Any) -> None:
    problem, covariance, draws = made(prior)
    gamma = summed((problem.scale * problem.curvature.dense() @ covariance).diagonal())
    torch.testing.assert_close(gamma, summed(1 - problem.prior.values * covariance.diagonal()))
    found = told(problem, draws, GROUP, estimator)
    assert bool(((found.groups - gamma).abs() < 4.5 * found.errors).all())
    assert abs(float(found.groups.sum() - gamma.sum())) < 4.5 * found.error
    assert bool((found.errors < 0.05).all()) and found.error < 0.05


@pytest.mark.parametrize("precision", [1e-2, 10.0, 1e4])
def test_the_errors_are_those_of_the_theory_and_the_smaller_is_chosen(precision: float) -> None:
    """``2 Σ γ_i²`` and ``2 Σ (1 - γ_i)²`` over the directions."""
    problem, covariance, draws = made((precision, precision))
    each = torch.linalg.eigvals(problem.scale * problem.curvature.dense() @ covariance).real
    one = torch.zeros(6, dtype=torch.long)
    outputs, weights, auto = (told(problem, draws, one, it) for it in ("outputs", "weights", "auto"))  # type: ignore[arg-type]
    for found, rest in ((outputs, each), (weights, 1 - each)):
        assert found.error == pytest.approx(math.sqrt(2 * float(rest.square().sum()) / SAMPLES), rel=0.05)
        assert found.error == pytest.approx(float(found.errors), rel=1e-9)
    assert auto.error == min(outputs.error, weights.error) < max(outputs.error, weights.error)


def test_each_group_has_its_own_choice() -> None:
    problem, _, draws = made((1e-3, 1e4))
    outputs, weights, auto = (told(problem, draws, GROUP, it) for it in ("outputs", "weights", "auto"))  # type: ignore[arg-type]
    assert float(auto.errors[0]) == float(weights.errors[0]) < float(outputs.errors[0])
    assert float(auto.errors[1]) == float(outputs.errors[1]) < float(weights.errors[1])


@pytest.mark.parametrize("precision", [1e-3, 10.0, 1e4])
def test_one_draw_has_no_error_and_is_chosen_for_by_what_it_says(precision: float) -> None:
    problem, _, draws = made((precision, precision))
    outputs, weights, auto = (told(problem, draws[:, :1], GROUP, it) for it in ("outputs", "weights", "auto"))  # type: ignore[arg-type]
    assert torch.equal(auto.groups, torch.where(outputs.groups > 1.5, weights.groups, outputs.groups))
    assert auto.error == 0.0 and not auto.errors.any()


def test_estimates_stay_inside_the_group() -> None:
    problem, _, draws = made((1.0, 1.0))
    least, most = (told(problem, draws[:, :4] * size, GROUP, "weights") for size in (1e3, 1e-9))
    assert least.groups.tolist() == [LEAST, LEAST] and most.groups.tolist() == [3 - LEAST, 3 - LEAST]


def test_exact_ones_have_no_error() -> None:
    exact = Dimensions.exact(SIZES)
    assert exact.error == 0.0 and exact.errors.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("samples", [8, 64])
def test_chance_does_not_choose(samples: int) -> None:
    """Draws of equal spread but for a factor: one within chance is no reason, one beyond it is."""
    values = normal(1, samples)
    values = (values - values.mean()) / values.std()
    chance = math.exp(2 / (samples - 1) ** 0.5)
    for factor, expected in ((0.8 * chance, True), (1.25 * chance, False), (0.8 / chance, True)):
        found = weights_are_better(values + 7.0, factor * values + 7.0, torch.tensor([10.0]).double())
        assert found.tolist() == [expected]
        found = weights_are_better(values + 3.0, values / factor + 3.0, torch.tensor([10.0]).double())
        assert found.tolist() == [not expected]


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
    values, _ = log_det_ratio(problem, whitened(problem), EXACT)
    assert values.mean().item() == pytest.approx(exact(problem), rel=1e-4, abs=dimension.TAIL**2 / 2)


@pytest.mark.parametrize("seed", range(3))
def test_covers_it_from_random_draws(seed: int) -> None:
    problem = model()
    noise = Perturbation.drawn(problem, 400, generator=torch.Generator().manual_seed(seed))
    values, solutions = log_det_ratio(problem, noise, EXACT)
    assert abs(values.mean().item() - exact(problem)) < 3 * values.std().item() / 20
    assert all(solution.converged and not solution.value.numel() for solution in solutions)


def test_the_tail_is_closed_at_little_effective_dimension(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = model()
    errors = []
    for tail in (1.0, 0.1):
        monkeypatch.setattr(dimension, "TAIL", tail)
        monkeypatch.setattr(dimension, "ACCURACY", 1e-9)
        values, _ = log_det_ratio(problem, whitened(problem), EXACT)
        errors.append(exact(problem) - values.mean().item())
        assert 0 < errors[-1] < tail**2 / 2
    assert errors[1] < errors[0] / 30


def test_nothing_is_charged_for_no_curvature() -> None:
    problem = Problem.of(Matrix(torch.zeros(3, 5, dtype=torch.float64)), Diagonal(torch.ones(5, dtype=torch.float64)))
    values, solutions = log_det_ratio(problem, Perturbation.drawn(problem, 2), EXACT)
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
