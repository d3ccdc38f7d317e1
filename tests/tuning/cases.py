"""Fits to tune, the dense evidence they should reach the maximum of, and points on the way."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor
from torch.distributions import MultivariateNormal

import lapwing as lw
from lapwing.likelihoods import Likelihood
from lapwing.posteriors import Step
from lapwing.priors import Prior
from tests.posterior_cases import STRUCTURES, Linearised, Problem, normal, problem

EVIDENCE: dict[str, Callable[..., Any]] = {"gradient": lw.EvidenceGradient, "MacKay": lw.MacKay}
PRIORS: dict[str, Prior] = {"isotropic": lw.Isotropic(3.0), "layerwise": lw.Layerwise((0.2, 5.0))}

every_method = pytest.mark.parametrize("method", EVIDENCE)
every_prior = pytest.mark.parametrize("prior", PRIORS)


def held_out(case: Problem) -> tuple[Tensor, Tensor]:
    """Other inputs with targets of the same kind."""
    return normal(8, 3, seed=5), case.y[:8]


def fit(name: str, structure: str = "full-weights", **options: Any) -> tuple[Problem, lw.Posterior]:
    case = problem(name)
    return case, case.fit(lw.Laplace(case.likelihood, structure=STRUCTURES[structure], **options))


class DenseEvidence:
    """The evidence of the linear model around a network, from dense matrices made by automatic differentiation."""

    def __init__(self, case: Problem, posterior: lw.Posterior) -> None:
        self.case, self.linear = case, Linearised(case, posterior.network)
        self.group, self.groups = posterior.prior.groups(posterior.network.uncertain)
        self.start = posterior.prior.precisions(posterior.network.uncertain)
        whole = posterior.prior.diagonal(posterior.network.uncertain, posterior.network.weights.double())
        self.relative = whole / self.start[self.group]
        self.noisy = isinstance(case.likelihood, lw.Gaussian)
        self.f, self.y = self.linear._canonical
        self.jacobian = self.linear.jacobian(case.x).flatten(0, -2)
        self.ggn, self.theta = self.linear.ggn, self.linear.theta

    def at_weights(self, point: Tensor) -> float:
        prior, scale = self._values(point)
        likelihood = scaled(self.case.likelihood, scale) if self.noisy else self.case.likelihood
        fit = float(likelihood.nll(self.f, self.y).sum())
        log_prior = 0.5 * float((torch.log(prior) - prior * self.theta.square()).sum())
        return log_prior - fit - 0.5 * float(torch.logdet(scale * self.ggn + torch.diag(prior)))

    def at_mode(self, point: Tensor) -> float:
        """The marginal likelihood of ``y - f + J θ``, whose mean is zero before any data."""
        prior, scale = self._values(point)
        noise = (1 / scaled(self.case.likelihood, scale).precisions(self.f)).expand(self.f.shape).flatten()
        targets = (self.y - self.f).flatten() + self.jacobian @ self.theta
        covariance = (self.jacobian / prior) @ self.jacobian.mT + torch.diag(noise)
        normal_ = MultivariateNormal(torch.zeros_like(targets), covariance, validate_args=False)
        return float(normal_.log_prob(targets))

    def _values(self, point: Tensor) -> tuple[Tensor, float]:
        """Prior precision of each weight, and the factor of the noise precision."""
        return point[: self.groups].exp()[self.group] * self.relative, float(point[-1].exp()) if self.noisy else 1.0

    def maximum(self, value: Callable[[Tensor], float]) -> Tensor:
        """Where a function of the log hyper-parameters is largest, by a search that knows no gradient."""
        start = torch.cat([self.start.log(), torch.zeros(int(self.noisy))]).numpy()
        options = {"xatol": 1e-9, "fatol": 1e-12, "maxfev": 4000}
        found = minimize(lambda x: -value(torch.as_tensor(x)), start, method="Nelder-Mead", options=options)
        assert found.success
        return torch.as_tensor(found.x)


@cache
def dense_optimum(name: str, prior: str, at: str) -> tuple[DenseEvidence, Tensor]:
    """The dense evidence of a problem and where it is largest."""
    dense = DenseEvidence(*fit(name, prior=PRIORS[prior]))
    return dense, dense.maximum(dense.at_mode if at == "mode" else dense.at_weights)


def scaled(likelihood: Likelihood, factor: float) -> lw.Gaussian:
    """The likelihood with all its noise precisions times a factor."""
    assert isinstance(likelihood, lw.Gaussian)
    return likelihood.scaled(factor)


def point_of(posterior: lw.Posterior) -> Tensor:
    """Log prior precisions, then for Gaussian noise the log of its factor."""
    noisy = isinstance(posterior.likelihood, lw.Gaussian)
    return torch.cat([posterior.prior_precisions.log(), posterior.scale.log().view(1)[: int(noisy)]])


def at_step(posterior: lw.Posterior, step: Step) -> lw.Posterior:
    """The posterior with the hyper-parameters of a step."""
    prior = posterior.prior.with_precisions(torch.tensor(step.prior_precision, dtype=torch.float64))
    if step.noise_precision is None:
        return posterior.with_hyperparameters(prior, posterior.likelihood)
    assert isinstance(posterior.fitted, lw.Gaussian)
    first = step.noise_precision[0] if isinstance(step.noise_precision, tuple) else step.noise_precision
    factor = first / posterior.fitted.noise
    return posterior.with_hyperparameters(prior, scaled(posterior.fitted, factor))
