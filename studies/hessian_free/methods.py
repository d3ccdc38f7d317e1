"""What is compared: Hessian-free Laplace in every variant, and what it stands in for, as predictors of some points."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

import lapwing as lw
from lapwing.baselines import Map
from lapwing.evaluation import Predictor
from lapwing.posteriors import WeightPosterior
from lapwing.predictive import Moments, Predictive, predictive
from studies.hessian_free.shallow import Fitted

Method = Callable[[Fitted, Tensor], Predictor]
"""Of a trained network and the points that will be predicted."""


def plug_in(fitted: Fitted, points: Float[Tensor, "m 1"]) -> Predictor:
    """The network with the noise alone."""
    return Map(fitted.model, fitted.likelihood)


def exact(curvature: Any, fitted: Fitted, points: Tensor | None = None) -> WeightPosterior:
    """Laplace with the whole matrix."""
    recipe = lw.Laplace(fitted.likelihood, prior=fitted.prior, structure=lw.Full(view="weights"), curvature=curvature)
    posterior = recipe.fit(fitted.model, fitted.data.train)
    assert isinstance(posterior, WeightPosterior)
    return posterior


def covariance(posterior: WeightPosterior) -> Float[Tensor, "d d"]:
    """Λ⁻¹ of the weights."""
    precision = posterior.precision_operator
    return precision.solve(torch.eye(precision.shape[0], dtype=precision.dtype))


@dataclass(frozen=True, eq=False)
class TopEigenvectors:
    """``P⁻¹ ≈ A Λ⁻¹ Aᵀ`` with the ``round(ln d)`` leading eigenvectors of the P of the GGN: nothing else is uncertain.

    Args:
        fitted: The network.
        factor: ``A Λ^{-½}``, ``[d, k]``.
    """

    fitted: Fitted
    factor: Float[Tensor, "d k"]

    @classmethod
    def of(cls, fitted: Fitted, points: Tensor | None = None) -> TopEigenvectors:
        """From the eigendecomposition of P."""
        values, vectors = torch.linalg.eigh(exact(lw.GGN(), fitted).precision_operator.dense())
        rank = round(math.log(len(values)))
        return cls(fitted, vectors[:, -rank:] * values[-rank:].rsqrt())

    @property
    def likelihood(self) -> lw.Gaussian:
        """p(y | f)."""
        return self.fitted.likelihood

    def predict(self, x: Any) -> Predictive:
        """As a posterior predicts."""
        mean = self.fitted.model(x).detach()
        return predictive(self.likelihood, Moments.from_factor(mean, (self.fitted.jacobian(x) @ self.factor)[:, None]))


def refitted(options: dict[str, Any], fitted: Fitted, points: Float[Tensor, "m 1"]) -> Any:
    """Hessian-free Laplace at the points."""
    recipe = lw.HessianFree(fitted.likelihood, prior=fitted.prior, **options)
    return recipe.fit(fitted.model, fitted.data.train, points)


BASELINES: dict[str, Method] = {
    "plug-in": plug_in,
    "full Hessian": partial(exact, lw.Hessian()),
    "GGN": partial(exact, lw.GGN()),
    "top eigenvectors": TopEigenvectors.of,
}

VARIANTS: dict[str, dict[str, Any]] = {
    "probed": {},
    "per point": {"fits": lw.PerPoint(group=256)},
    "per point, as printed": {"fits": lw.PerPoint(group=256), "antithetic": False, "centred": False},
    "pre-trained, mean": {"fits": lw.PreTrained("mean")},
    "pre-trained, absolute": {"fits": lw.PreTrained("absolute")},
    "pre-trained, in sample": {"fits": lw.PreTrained("in_sample")},
    "pre-trained, augmented": {"fits": lw.PreTrained("augmented")},
}
"""Options of ``HessianFree``; the default first."""

METHODS = BASELINES | {name: partial(refitted, options) for name, options in VARIANTS.items()}
