from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.distributions import MultivariateNormal

import lapwing as lw
from benchmarks.networks import jacobian
from studies.sampled.m_steps import WAYS, Line, estimators, followed, toy, trained

DATA, PRECISION = toy(0, 12)


@pytest.fixture(scope="module")
def model() -> nn.Module:
    return trained(0, DATA, width=6, epochs=20)


@pytest.fixture(scope="module")
def line(model: nn.Module) -> Line:
    return Line.of(model, DATA, PRECISION)


@pytest.fixture(scope="module")
def rows(model: nn.Module) -> torch.Tensor:
    return jacobian(model, DATA[0])


@pytest.fixture(scope="module")
def shifted(model: nn.Module, rows: torch.Tensor) -> torch.Tensor:
    weights = torch.cat([value.detach().flatten() for value in model.parameters() if value.requires_grad])
    with torch.no_grad():
        return DATA[1][:, 0] - model(DATA[0])[:, 0] + rows @ weights


def test_the_evidence_is_the_density_of_the_targets(line: Line, rows: torch.Tensor, shifted: torch.Tensor) -> None:
    def exact(a: float) -> float:
        noise = torch.eye(len(rows)).double() / PRECISION
        return float(MultivariateNormal(torch.zeros(len(rows)).double(), rows @ rows.mT / a + noise).log_prob(shifted))

    for a in (0.1, 30.0):
        assert line.evidence(a) - line.evidence(2.0) == pytest.approx(exact(a) - exact(2.0), rel=1e-8)


def test_norm_and_dimension_are_those_of_the_dense_posterior(
    line: Line, rows: torch.Tensor, shifted: torch.Tensor
) -> None:
    a = 3.0
    curvature = PRECISION * rows.mT @ rows
    identity = torch.eye(len(curvature)).double()
    mode = torch.linalg.solve(curvature + a * identity, PRECISION * rows.mT @ shifted)
    assert line.square_norm(a) == pytest.approx(float(mode.square().sum()), rel=1e-8)
    inverse = torch.linalg.inv(curvature + a * identity)
    assert line.gamma(a) == pytest.approx(float((inverse @ curvature).trace()), rel=1e-8)
    decoupled = line.weights / (float(mode.square().sum()) + float(inverse.trace()))
    assert line.by_decoupled_bound(a) == pytest.approx(decoupled, rel=1e-8)


def test_the_bound_at_the_mode_is_largest_where_its_step_leads(line: Line) -> None:
    a = 50.0
    there = line.by_bound_at_mode(a)
    norm = line.square_norm(a)

    def bound(a: float) -> float:
        return -0.5 * a * norm - 0.5 * float((1 + line.eigenvalues / a).log().sum())

    assert bound(there) > max(bound(0.99 * there), bound(1.01 * there))


def test_every_way_stays_where_the_evidence_is_largest(line: Line) -> None:
    best = line.best()
    assert line.evidence(best) > max(line.evidence(0.99 * best), line.evidence(1.01 * best))
    for way in WAYS.values():
        assert way(line, best) == pytest.approx(best, rel=1e-6)
        assert followed(line, way, best)["steps"] == 0


def test_the_library_ends_there_too(model: nn.Module, line: Line) -> None:
    recipe = lw.Laplace(lw.Gaussian(PRECISION), prior=lw.Isotropic(500.0), weights=lw.Names("*weight"))
    tuned = lw.tune(recipe.fit(model, DATA), lw.EM(noise=False, tolerance=1e-4, steps=100))
    assert float(tuned.prior_precisions[0]) == pytest.approx(line.best(), rel=1e-3)


def test_both_estimators_have_the_variance_of_gaussian_draws(model: nn.Module, line: Line) -> None:
    """``2 Σ γ_i² / 8`` of the outputs and ``2 Σ (1 - γ_i)² / 8`` of the weights, each off by about √(2 / repeats)."""
    a = line.best()
    outputs, weights = estimators(model, DATA, PRECISION, a, 1000, 0)
    parts = line.eigenvalues / (line.eigenvalues + a)
    rest = line.weights - len(parts)
    expected = {"outputs": parts.square().sum() / 4, "weights": ((1 - parts).square().sum() + rest) / 4}
    for row in (outputs, weights):
        variance = float(expected[row["estimator"]])
        assert row["variance"] == pytest.approx(variance, rel=0.2)
        assert row["mean"] == pytest.approx(line.gamma(a), abs=4 * math.sqrt(variance / 1000))
