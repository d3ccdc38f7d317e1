from __future__ import annotations

import math

import pytest
import torch
from torch.distributions import MultivariateNormal

import lapwing as lw
from benchmarks.networks import jacobian
from studies.sampled.m_steps import WAYS, Line, estimators, followed, toy, trained

DATA, PRECISION = toy(0, 12)
MODEL = trained(0, DATA, width=6, epochs=20)
LINE = Line.of(MODEL, DATA, PRECISION)
ROWS = jacobian(MODEL, DATA[0])


def shifted() -> torch.Tensor:
    weights = torch.cat([value.detach().flatten() for value in MODEL.parameters() if value.requires_grad])
    with torch.no_grad():
        return DATA[1][:, 0] - MODEL(DATA[0])[:, 0] + ROWS @ weights


def test_the_evidence_is_the_density_of_the_targets() -> None:
    def exact(a: float) -> float:
        noise = torch.eye(len(ROWS)).double() / PRECISION
        return float(
            MultivariateNormal(torch.zeros(len(ROWS)).double(), ROWS @ ROWS.mT / a + noise).log_prob(shifted())
        )

    for a in (0.1, 30.0):
        assert LINE.evidence(a) - LINE.evidence(2.0) == pytest.approx(exact(a) - exact(2.0), rel=1e-8)


def test_norm_and_dimension_are_those_of_the_dense_posterior() -> None:
    a = 3.0
    curvature = PRECISION * ROWS.mT @ ROWS
    identity = torch.eye(len(curvature)).double()
    mode = torch.linalg.solve(curvature + a * identity, PRECISION * ROWS.mT @ shifted())
    assert LINE.square_norm(a) == pytest.approx(float(mode.square().sum()), rel=1e-8)
    inverse = torch.linalg.inv(curvature + a * identity)
    assert LINE.gamma(a) == pytest.approx(float((inverse @ curvature).trace()), rel=1e-8)
    decoupled = LINE.weights / (float(mode.square().sum()) + float(inverse.trace()))
    assert LINE.by_decoupled_bound(a) == pytest.approx(decoupled, rel=1e-8)


def test_the_bound_at_the_mode_is_largest_where_its_step_leads() -> None:
    a = 50.0
    there = LINE.by_bound_at_mode(a)
    norm = LINE.square_norm(a)

    def bound(a: float) -> float:
        return -0.5 * a * norm - 0.5 * float((1 + LINE.eigenvalues / a).log().sum())

    assert bound(there) > max(bound(0.99 * there), bound(1.01 * there))


def test_every_way_stays_where_the_evidence_is_largest() -> None:
    best = LINE.best()
    assert LINE.evidence(best) > max(LINE.evidence(0.99 * best), LINE.evidence(1.01 * best))
    for way in WAYS.values():
        assert way(LINE, best) == pytest.approx(best, rel=1e-6)
        assert followed(LINE, way, best)["steps"] == 0


def test_the_library_ends_there_too() -> None:
    recipe = lw.Laplace(lw.Gaussian(PRECISION), prior=lw.Isotropic(500.0), weights=lw.Names("*weight"))
    tuned = lw.tune(recipe.fit(MODEL, DATA), lw.EM(noise=False, tolerance=1e-4, steps=100))
    assert float(tuned.prior_precisions[0]) == pytest.approx(LINE.best(), rel=1e-3)


def test_both_estimators_have_the_variance_of_gaussian_draws() -> None:
    """``2 Σ γ_i² / 8`` of the outputs and ``2 Σ (1 - γ_i)² / 8`` of the weights, each off by about √(2 / repeats)."""
    a = LINE.best()
    outputs, weights = estimators(MODEL, DATA, PRECISION, a, 1000, 0)
    parts = LINE.eigenvalues / (LINE.eigenvalues + a)
    rest = LINE.weights - len(parts)
    expected = {"outputs": parts.square().sum() / 4, "weights": ((1 - parts).square().sum() + rest) / 4}
    for row in (outputs, weights):
        variance = float(expected[row["estimator"]])
        assert row["variance"] == pytest.approx(variance, rel=0.2)
        assert row["mean"] == pytest.approx(LINE.gamma(a), abs=4 * math.sqrt(variance / 1000))
