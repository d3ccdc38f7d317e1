"""Tuning by evidence, whichever way up, reaches the maximum of the dense evidence; at a mode it is a bound."""

from __future__ import annotations

import inspect
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal, kl_divergence

import lapwing as lw
from lapwing.ground.errors import ConfigError, ConvergenceWarning, NumericalError, UnsupportedError
from lapwing.linalg import Dense
from lapwing.linear.evidence import LogEvidence, NewtonStep
from lapwing.linear.log_det_ratio import complexity_of
from lapwing.tuning import evidence_at
from lapwing.tuning.evidence import at_mode
from tests.posterior_cases import STRUCTURES, normal, problem, refused
from tests.tuning.cases import (
    EVIDENCE,
    PRIORS,
    DenseEvidence,
    dense_optimum,
    every_method,
    every_prior,
    fit,
    point_of,
)


class TestEvidence:
    @every_method
    @every_prior
    @pytest.mark.parametrize("name", ["gaussian", "gaussian-per-output", "categorical"])
    def test_reaches_the_maximum_of_the_dense_evidence(self, name: str, prior: str, method: str) -> None:
        tuned = lw.tune(fit(name, prior=PRIORS[prior])[1], EVIDENCE[method]())
        dense, best = dense_optimum(name, prior, "weights")
        torch.testing.assert_close(point_of(tuned), best, rtol=0, atol=2e-5)
        assert tuned.log_marginal() == pytest.approx(dense.at_weights(best), rel=1e-10)

    @every_method
    @every_prior
    @pytest.mark.parametrize("name", ["gaussian", "gaussian-per-output"])
    def test_reaches_the_maximum_at_the_mode(self, name: str, prior: str, method: str) -> None:
        tuned = lw.tune(fit(name, prior=PRIORS[prior])[1], EVIDENCE[method](at="mode"))
        dense, best = dense_optimum(name, prior, "mode")
        assert tuned.trace[-1].log_marginal == pytest.approx(dense.at_mode(best), rel=1e-8)
        assert dense.at_mode(point_of(tuned)) == pytest.approx(dense.at_mode(best), rel=1e-8)

    @every_method
    def test_reaches_the_maximum_at_the_mode_in_the_units_of_a_g_prior(self, method: str) -> None:
        case, posterior = fit("gaussian", prior=lw.GPrior(0.5))
        tuned = lw.tune(posterior, EVIDENCE[method](at="mode"))
        dense = DenseEvidence(case, posterior)
        best = dense.maximum(dense.at_mode)
        assert dense.at_mode(point_of(tuned)) == pytest.approx(dense.at_mode(best), rel=1e-8)

    @every_method
    @pytest.mark.parametrize("structure", STRUCTURES)
    def test_no_point_of_a_grid_is_better(self, structure: str, method: str) -> None:
        _, posterior = fit("gaussian", structure)
        tuned = lw.tune(posterior, EVIDENCE[method]())
        precisions = torch.logspace(-6, 6, 25, dtype=torch.float64)
        values = [
            float(posterior.evidence.log_marginal(precision.view(1), scale))
            for precision in precisions
            for scale in torch.logspace(-4, 4, 17, dtype=torch.float64)
        ]
        assert max(values) <= tuned.log_marginal() < max(values) + 1.5

    @every_method
    @every_prior
    @pytest.mark.parametrize("structure", ["full-weights", "full-functions", "kfac"])
    def test_fixed_point_equations_hold(self, structure: str, prior: str, method: str) -> None:
        """α |θ|² = γ in every group, and ρ times the squared error = N - γ."""
        _, posterior = fit("gaussian", structure, prior=PRIORS[prior])
        tuned = lw.tune(posterior, EVIDENCE[method]())
        alpha, scale, evidence = tuned.prior_precisions, tuned.scale, tuned.evidence
        gamma = evidence.effective_dimensions(alpha, scale)
        torch.testing.assert_close(alpha * evidence.square_norms, gamma, rtol=1e-5, atol=1e-8)
        assert float(scale) * evidence.misfit == pytest.approx(20 - float(gamma.sum()), rel=1e-5)
        assert tuned.effective_dimension() == pytest.approx(float(gamma.sum()))

    @pytest.mark.parametrize("at", ["weights", "mode"])
    def test_the_gradient_it_follows_is_that_of_finite_differences(self, at: str) -> None:
        case, posterior = fit("gaussian-per-output", prior=PRIORS["layerwise"])
        dense = DenseEvidence(case, posterior)
        value = dense.at_weights if at == "weights" else dense.at_mode
        tuned = lw.tune(posterior, lw.EvidenceGradient(at=at, noise=True))
        away = point_of(tuned) + 0.3
        evidence = posterior.evidence if at == "weights" else replace(posterior.evidence, shift=posterior.mode_shift)
        leaf = away.clone().requires_grad_()
        evidence.log_marginal(leaf[:2].exp(), leaf[2].exp()).backward()
        steps = 1e-5 * torch.eye(3, dtype=torch.float64)
        slopes = [(value(away + step) - value(away - step)) / 2e-5 for step in steps]
        torch.testing.assert_close(leaf.grad, torch.tensor(slopes, dtype=torch.float64), rtol=1e-6, atol=1e-6)

    @every_method
    def test_converges_where_whole_steps_of_the_fixed_point_go_round_in_a_circle(self, method: str) -> None:
        _, posterior = fit("gaussian", "diagonal", prior=lw.Layerwise((1e-4, 1e4)))
        tuned = lw.tune(posterior, EVIDENCE[method]())
        gamma = tuned.evidence.effective_dimensions(tuned.prior_precisions, tuned.scale)
        torch.testing.assert_close(tuned.prior_precisions * tuned.evidence.square_norms, gamma, rtol=1e-6, atol=0)
        assert len(tuned.trace) < 80

    @every_method
    def test_noise_of_several_outputs_changes_by_one_factor(self, method: str) -> None:
        _, posterior = fit("gaussian-per-output")
        noise = lw.tune(posterior, EVIDENCE[method]()).likelihood.precision
        assert isinstance(noise, tuple) and noise[0] != 0.5
        assert noise[1] / noise[0] == pytest.approx(3.0 / 0.5, rel=1e-12)

    @every_method
    def test_noise_is_left_alone_on_request(self, method: str) -> None:
        case, posterior = fit("gaussian")
        tuned = lw.tune(posterior, EVIDENCE[method](noise=False))
        assert tuned.likelihood == case.likelihood
        assert lw.tune(posterior, EVIDENCE[method]()).log_marginal() > tuned.log_marginal() > posterior.log_marginal()

    @every_method
    @pytest.mark.parametrize(("name", "structure"), [("categorical", "kfac"), ("gaussian", "diagonal")])
    def test_where_it_starts_makes_no_difference(self, name: str, structure: str, method: str) -> None:
        """Also where the first effective dimension exceeds the number of observations, as a diagonal's can."""
        points = []
        for precision in (1e-6, 1.0, 1e6):
            _, posterior = fit(name, structure, prior=lw.Isotropic(precision))
            tuned = lw.tune(posterior, EVIDENCE[method]())
            points.append(point_of(tuned))
            assert tuned.log_marginal() >= posterior.log_marginal()
            assert precision > 1e-6 or name == "categorical" or posterior.effective_dimension() > 20
        for point in points:
            torch.testing.assert_close(point, points[0], rtol=0, atol=1e-5)

    @every_method
    @pytest.mark.parametrize(("name", "structure"), [("categorical", "full-weights"), ("gaussian", "full-functions")])
    def test_the_mode_is_refused_where_it_has_no_closed_form(self, name: str, structure: str, method: str) -> None:
        _, posterior = fit(name, structure)
        with refused(UnsupportedError, "at='mode'"):
            lw.tune(posterior, EVIDENCE[method](at="mode"))

    def test_an_unknown_place_is_refused(self) -> None:
        """Also where nobody checks annotations, as the tests do."""
        _, posterior = fit("gaussian")
        plain: Any = inspect.unwrap(evidence_at)
        with refused(ConfigError, "'weights', 'mode'"):
            plain(posterior, "prior")

    @every_method
    def test_steps_are_at_most_as_many_as_allowed(self, method: str) -> None:
        _, posterior = fit("gaussian")
        with pytest.warns(ConvergenceWarning, match="after 2 steps"):
            assert len(lw.tune(posterior, EVIDENCE[method](steps=2)).trace) <= 2 + 1
        assert len(lw.tune(posterior, EVIDENCE[method]()).trace) > 2 + 1

    @pytest.mark.parametrize(("method", "prior"), [("gradient", lw.Isotropic(30.0)), ("MacKay", lw.Layerwise(30.0))])
    def test_an_indefinite_curvature_is_refused(self, method: str, prior: lw.Prior) -> None:
        """With a strong prior it has an evidence, with a weaker one a pole and none."""
        _, posterior = fit("gaussian", curvature=lw.Hessian(), prior=prior)
        assert math.isfinite(posterior.log_marginal())
        for one in (EVIDENCE[method](), lw.EM()):
            with refused(NumericalError, "without negative eigenvalues"):
                lw.tune(posterior, one)
        weaker = posterior.with_hyperparameters(lw.Isotropic(1.0), posterior.likelihood)
        with refused(NumericalError, "positive definite"):
            weaker.log_marginal()

    @every_method
    def test_weights_that_are_all_zero_are_held_there(self, method: str) -> None:
        """Their evidence grows without bound; the largest precision considered is kept."""
        case = problem("gaussian")
        with torch.no_grad():
            for weights in case.model.parameters():
                weights.zero_()
        tuned = lw.tune(case.fit(lw.Laplace(case.likelihood)), EVIDENCE[method]())
        most = float(tuned.evidence.log_marginal(torch.tensor([1e12]).double(), tuned.scale))
        assert tuned.log_marginal() == pytest.approx(most, abs=1e-4)


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
