"""The evidence with its fit taken at a mode: a bound, against the dense density of the data."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal, kl_divergence

from lapwing.linalg import Dense
from lapwing.linear.evidence import LogEvidence, NewtonStep
from lapwing.linear.log_det_ratio import complexity_of
from lapwing.tuning.choices import at_mode, fixed_point
from tests.posterior_cases import normal

N, D, RHO = 11, 6, 2.5
GROUP = torch.tensor([0, 0, 1, 1, 1, 0])
ROWS, TARGETS = normal(N, D), normal(N, seed=1) + 2.0
START = torch.tensor([0.7, 3.0], dtype=torch.float64), torch.tensor(0.6, dtype=torch.float64)
POINTS = [
    (torch.tensor(alpha, dtype=torch.float64), torch.tensor(s, dtype=torch.float64))
    for alpha in ([0.7, 3.0], [0.01, 3.0], [0.7, 90.0], [5.0, 0.2], [100.0, 100.0])
    for s in (0.6, 0.06, 3.0)
]
"""The first is ``START``."""


def dense_evidence(alpha: Tensor, s: Tensor) -> Tensor:
    """``log N(y; 0, J A⁻¹ Jᵀ + I / (s ρ))``."""
    covariance = (ROWS / alpha[GROUP]) @ ROWS.mT + torch.eye(N, dtype=torch.float64) / (s * RHO)
    return MultivariateNormal(torch.zeros(N, dtype=torch.float64), covariance).log_prob(TARGETS)


def dense_posterior(alpha: Tensor, s: Tensor) -> MultivariateNormal:
    precision = s * RHO * ROWS.mT @ ROWS + torch.diag(alpha[GROUP])
    return MultivariateNormal(torch.linalg.solve(precision, s * RHO * ROWS.mT @ TARGETS), precision_matrix=precision)


def bound_of(alpha: Tensor, s: Tensor) -> LogEvidence:
    """The bound of the mode for α and s, from an evidence taken at quite other weights."""
    mode = dense_posterior(alpha, s).mean
    misfit = float(RHO * (TARGETS - ROWS @ mode).square().sum())
    nll = 0.5 * misfit + 0.5 * N * math.log(2 * math.pi / RHO)
    curvature = Dense(RHO * ROWS.mT @ ROWS)
    elsewhere = LogEvidence(
        complexity_of(curvature, GROUP),
        torch.tensor([9.0, 5.0], dtype=torch.float64),
        torch.bincount(GROUP).double(),
        nll=70.0,
        misfit=40.0,
        observations=float(N),
        shift=NewtonStep(curvature, normal(D), normal(D, seed=1), GROUP),
    )
    return at_mode(elsewhere, torch.bincount(GROUP, mode.square()), nll=nll, misfit=misfit)


def elbo(q: MultivariateNormal, alpha: Tensor, s: Tensor) -> Tensor:
    """``E_q[log p(y | w)] - KL(q | p)``."""
    residual = (TARGETS - ROWS @ q.mean).square().sum() + ((ROWS @ q.covariance_matrix) * ROWS).sum()
    likelihood = -0.5 * s * RHO * residual - 0.5 * N * torch.log(2 * math.pi / (s * RHO))
    prior = MultivariateNormal(torch.zeros(D, dtype=torch.float64), precision_matrix=torch.diag(alpha[GROUP]))
    return likelihood - kl_divergence(q, prior)


def test_at_a_mode_it_is_the_evidence_where_the_mode_is_from() -> None:
    torch.testing.assert_close(bound_of(*START).log_marginal(*START), dense_evidence(*START), rtol=0, atol=1e-11)


def test_elsewhere_it_lies_below() -> None:
    for point in POINTS[1:]:
        assert bound_of(*START).log_marginal(*point) < dense_evidence(*point) - 1e-3


@pytest.mark.parametrize("point", POINTS)
def test_the_bound_is_that_of_the_best_covariance_about_the_mode(point) -> None:
    covariance = torch.linalg.inv(dense_posterior(*point).precision_matrix)
    q = MultivariateNormal(dense_posterior(*START).mean, (covariance + covariance.mT) / 2)
    torch.testing.assert_close(bound_of(*START).log_marginal(*point), elbo(q, *point), rtol=1e-10, atol=1e-9)


def slopes(function, alpha: Tensor, s: Tensor) -> Tensor:
    """Derivatives in the logarithms."""
    logs = torch.cat([alpha, s.view(1)]).log().requires_grad_()
    (gradient,) = torch.autograd.grad(function(logs[:-1].exp(), logs[-1].exp()), logs)
    return gradient


def test_both_rise_alike_where_they_touch() -> None:
    expected = slopes(dense_evidence, *START)
    torch.testing.assert_close(slopes(bound_of(*START).log_marginal, *START), expected, rtol=1e-9, atol=1e-9)
    assert expected.abs().min() > 0.1


@pytest.mark.parametrize(("gamma", "expected"), [(4.9, 5.1 / 3.0), (5.0, 5.0 / 3.0), (5.1, 10.0 / (3.0 + 5.1 / 2.0))])
def test_noise_is_mackays_step_up_to_half_of_the_observations_and_that_of_em_beyond(
    gamma: float, expected: float
) -> None:
    total, misfit, scale = (torch.tensor(value, dtype=torch.float64) for value in (gamma, 3.0, 2.0))
    alpha, found = fixed_point(total.view(1), torch.ones(1).double(), misfit, scale, 10.0, True)
    assert float(found) == pytest.approx(expected, rel=1e-12) and float(alpha) == gamma
