"""The bounds on the evidence, against the dense density of the data and an integral over the weights."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal, kl_divergence

from lapwing.ground.errors import ShapeError
from lapwing.linalg import Dense
from lapwing.linear.bounds import DecoupledBound, at_mode, decoupled_precisions, decoupled_scale
from lapwing.linear.evidence import Evidence, Shift, complexity_of
from lapwing.tuning.ascent import climb
from tests.posterior_cases import normal, refused

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


def bound_of(alpha: Tensor, s: Tensor) -> Evidence:
    """The M-bound of the mode for α and s, from an evidence taken at quite other weights."""
    mode = dense_posterior(alpha, s).mean
    misfit = float(RHO * (TARGETS - ROWS @ mode).square().sum())
    nll = 0.5 * misfit + 0.5 * N * math.log(2 * math.pi / RHO)
    curvature = Dense(RHO * ROWS.mT @ ROWS)
    elsewhere = Evidence(
        complexity_of(curvature, GROUP),
        torch.tensor([9.0, 5.0], dtype=torch.float64),
        torch.bincount(GROUP).double(),
        nll=70.0,
        misfit=40.0,
        observations=float(N),
        shift=Shift(curvature, normal(D), normal(D, seed=1), GROUP),
    )
    return at_mode(elsewhere, torch.bincount(GROUP, mode.square()), nll=nll, misfit=misfit)


def decoupled_of(alpha: Tensor, s: Tensor) -> DecoupledBound:
    return DecoupledBound(bound_of(alpha, s), alpha, s)


def elbo(q: MultivariateNormal, alpha: Tensor, s: Tensor) -> Tensor:
    """``E_q[log p(y | w)] - KL(q | p)``."""
    residual = (TARGETS - ROWS @ q.mean).square().sum() + ((ROWS @ q.covariance_matrix) * ROWS).sum()
    likelihood = -0.5 * s * RHO * residual - 0.5 * N * torch.log(2 * math.pi / (s * RHO))
    prior = MultivariateNormal(torch.zeros(D, dtype=torch.float64), precision_matrix=torch.diag(alpha[GROUP]))
    return likelihood - kl_divergence(q, prior)


def test_both_touch_the_evidence_where_their_mode_is_from() -> None:
    expected = dense_evidence(*START)
    torch.testing.assert_close(bound_of(*START).log_marginal(*START), expected, rtol=0, atol=1e-11)
    torch.testing.assert_close(decoupled_of(*START).log_marginal(*START), expected, rtol=0, atol=1e-11)


def test_elsewhere_they_lie_below_it_one_below_the_other() -> None:
    for point in POINTS[1:]:
        middle, low = bound_of(*START).log_marginal(*point), decoupled_of(*START).log_marginal(*point)
        assert low < middle - 1e-3
        assert middle < dense_evidence(*point) - 1e-3


@pytest.mark.parametrize("point", POINTS)
def test_the_decoupled_bound_is_the_evidence_lower_bound_of_the_posterior_that_was_kept(point) -> None:
    expected = elbo(dense_posterior(*START), *point)
    torch.testing.assert_close(decoupled_of(*START).log_marginal(*point), expected, rtol=1e-11, atol=1e-10)


@pytest.mark.parametrize("point", POINTS)
def test_the_first_bound_is_that_of_the_best_covariance_about_the_mode(point) -> None:
    covariance = torch.linalg.inv(dense_posterior(*point).precision_matrix)
    q = MultivariateNormal(dense_posterior(*START).mean, (covariance + covariance.mT) / 2)
    torch.testing.assert_close(bound_of(*START).log_marginal(*point), elbo(q, *point), rtol=1e-10, atol=1e-9)


def slopes(function, alpha: Tensor, s: Tensor) -> Tensor:
    """Derivatives in the logarithms."""
    logs = torch.cat([alpha, s.view(1)]).log().requires_grad_()
    (gradient,) = torch.autograd.grad(function(logs[:-1].exp(), logs[-1].exp()), logs)
    return gradient


def test_all_three_rise_alike_where_they_touch() -> None:
    expected = slopes(dense_evidence, *START)
    torch.testing.assert_close(slopes(bound_of(*START).log_marginal, *START), expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(slopes(decoupled_of(*START).log_marginal, *START), expected, rtol=1e-9, atol=1e-9)
    assert expected.abs().min() > 0.1


def best_of(decoupled: DecoupledBound) -> tuple[Tensor, Tensor]:
    bound, gamma = decoupled.bound, decoupled.effective_dimensions
    return (
        decoupled_precisions(decoupled.precisions, gamma, bound.square_norms, bound.sizes),
        decoupled_scale(decoupled.scale, gamma, bound.misfit, bound.observations),
    )


def test_the_closed_form_is_the_maximum_of_the_decoupled_bound() -> None:
    decoupled = decoupled_of(*START)
    best = best_of(decoupled)
    torch.testing.assert_close(slopes(decoupled.log_marginal, *best), torch.zeros(3).double(), rtol=0, atol=1e-10)
    assert decoupled.log_marginal(*best) > decoupled.log_marginal(*START) + 0.01


def test_keeping_less_takes_fewer_steps_to_the_maximum_of_the_evidence() -> None:
    """Both ascend the evidence at every step and end where it is largest (Antorán 2024, figure 6.1)."""

    def climbed(update) -> tuple[int, Tensor]:
        alpha, s = 500 * START[0], START[1]
        before = dense_evidence(alpha, s)
        for step in range(2000):
            moved = update(alpha, s)
            value = dense_evidence(moved, s)
            assert value >= before - 1e-12
            if bool(((moved / alpha).log().abs() < 1e-8).all()):
                return step, moved
            alpha, before = moved, value
        raise AssertionError("no end")

    def m_step(alpha: Tensor, s: Tensor) -> Tensor:
        return list(climb(bound_of(alpha, s), alpha, s, noisy=False, steps=200))[-1].precisions

    few, one = climbed(m_step)
    many, other = climbed(lambda alpha, s: best_of(decoupled_of(alpha, s))[0])
    assert 2 * few < many
    torch.testing.assert_close(one, other, rtol=1e-5, atol=0)
    slope = slopes(dense_evidence, one, START[1])[:-1]
    torch.testing.assert_close(slope, torch.zeros(2).double(), rtol=0, atol=1e-6)


def test_the_update_takes_estimates() -> None:
    gamma = torch.tensor([1.5, 2.0], dtype=torch.float64)
    found = decoupled_precisions(START[0], gamma, torch.tensor([0.5, 4.0]).double(), torch.tensor([3.0, 3.0]).double())
    expected = torch.tensor([3 / (0.5 + 1.5 / 0.7), 3 / (4 + 1 / 3.0)], dtype=torch.float64)
    torch.testing.assert_close(found, expected)


def test_every_group_needs_its_square_norm() -> None:
    with refused(ShapeError, expected="each of 2 groups", got="[3]", hint="square_norms(mode.weights"):
        at_mode(bound_of(*START), torch.ones(3).double(), nll=1.0)
