"""The evidence as a function of prior precisions and noise, against dense matrices and finite differences."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from lapwing.ground.errors import ConfigError, ShapeError
from lapwing.linalg import Dense
from lapwing.linear.evidence import LogEvidence, NewtonStep
from lapwing.linear.log_det_ratio import (
    Complexity,
    Determinant,
    complexity_of,
)
from tests.linalg.cases import spd
from tests.linear.test_log_det_ratio import ALPHA, CURVATURES, GROUP, SCALE, D, every_curvature
from tests.posterior_cases import normal, refused


def evidence_of(complexity: Complexity, shift: NewtonStep | None = None) -> LogEvidence:
    sizes = torch.bincount(GROUP).double()
    return LogEvidence(complexity, torch.tensor([1.5, 4.0], dtype=torch.float64), sizes, 12.5, 9.0, 8.0, shift)


@every_curvature
def test_gradients_of_the_evidence(name: str) -> None:
    evidence = evidence_of(complexity_of(CURVATURES[name][0], GROUP))
    point = (ALPHA.clone().requires_grad_(), SCALE.clone().requires_grad_())
    assert torch.autograd.gradcheck(evidence.log_marginal, point)


def test_numbers_are_taken_as_they_are_and_one_is_for_all_groups() -> None:
    evidence = evidence_of(complexity_of(CURVATURES["dense"][0], GROUP))
    both = torch.full_like(ALPHA, 0.7)
    for function in (evidence.log_marginal, evidence.log_joint, evidence.effective_dimensions):
        expected = function(both, SCALE)
        for alpha in (0.7, [0.7, 0.7], torch.tensor(0.7, dtype=torch.float64)):
            torch.testing.assert_close(function(alpha, float(SCALE)), expected)
    with refused(ConfigError, "positive finite prior precisions"):
        evidence.log_marginal(-1.0, 1.0)
    with refused(ConfigError, "positive finite noise precisions"):
        evidence.log_marginal(1.0, 0.0)
    with refused(ShapeError, "prior precisions [2]"):
        evidence.log_marginal([1.0, 1.0, 1.0], 1.0)


@every_curvature
def test_effective_dimensions_of_each_group(name: str) -> None:
    operator, _ = CURVATURES[name]
    inverse = torch.linalg.inv(SCALE * operator.dense() + torch.diag(ALPHA[GROUP]))
    expected = torch.bincount(GROUP) - torch.bincount(GROUP, ALPHA[GROUP] * inverse.diagonal())
    with torch.no_grad():
        actual = evidence_of(complexity_of(operator, GROUP)).effective_dimensions(ALPHA, SCALE)
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)
    assert not actual.requires_grad


def test_noise_scales_misfit_and_constant() -> None:
    """log N(y; f, 1/sρ) = s/1 of the squared error, and ½ log s an observation more."""
    residual, rho = normal(8), 1.4
    nll = 0.5 * (rho * residual.square() + math.log(2 * math.pi / rho)).sum()
    misfit = rho * residual.square().sum()
    evidence = replace(evidence_of(Determinant.of_grams(torch.zeros(2, 1, 1))), nll=float(nll), misfit=float(misfit))
    scaled = -0.5 * (SCALE * rho * residual.square() - torch.log(SCALE * rho / (2 * math.pi))).sum()
    torch.testing.assert_close(evidence.log_likelihood(misfit, SCALE), scaled)
    torch.testing.assert_close(evidence.log_likelihood(misfit, torch.ones_like(SCALE)), -nll)


@pytest.mark.parametrize("name", ["diagonal", "dense", "a group a block"])
def test_the_shift_reaches_the_mode_of_the_linear_model(name: str) -> None:
    """With residual r at the weights θ, the linear model's mode minimises s |r − J δ|² + |θ + δ|²_A over δ."""
    operator = CURVATURES[name][0]
    curvature, theta, score = operator.dense(), normal(D, seed=1), normal(D, seed=2)
    shift = NewtonStep(operator, score, theta, GROUP)
    prior = torch.diag(ALPHA[GROUP])
    step = torch.linalg.solve(SCALE * curvature + prior, SCALE * score - prior @ theta)
    torch.testing.assert_close(shift.step(ALPHA, SCALE), step, rtol=1e-9, atol=1e-10)
    misfit, norms = shift.fit(9.0, ALPHA, SCALE)
    torch.testing.assert_close(misfit, 9.0 - 2 * score @ step + step @ curvature @ step, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(norms, torch.bincount(GROUP, (theta + step).square()), rtol=1e-9, atol=1e-10)


def test_gradients_of_the_evidence_at_the_mode() -> None:
    """The shift is held fixed in the backward pass; finite differences, which move it, agree: it is a mode."""
    operator = Dense(spd(D, 20.0))
    evidence = evidence_of(complexity_of(operator, GROUP), NewtonStep(operator, normal(D), normal(D, seed=1), GROUP))
    point = (ALPHA.clone().requires_grad_(), SCALE.clone().requires_grad_())
    assert torch.autograd.gradcheck(evidence.log_marginal, point)


def test_the_evidence_at_the_mode_is_larger() -> None:
    operator = Dense(spd(D, 20.0))
    weights = normal(D, seed=1)
    norms = torch.bincount(GROUP, weights.square())
    usual = replace(evidence_of(complexity_of(operator, GROUP)), square_norms=norms)
    moved = replace(usual, shift=NewtonStep(operator, normal(D), weights, GROUP))
    assert moved.log_marginal(ALPHA, SCALE) > usual.log_marginal(ALPHA, SCALE)
