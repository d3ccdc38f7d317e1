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
from lapwing.evaluation.evaluate import Predictor
from lapwing.evaluation.plain_network import PlainNetwork
from lapwing.linalg import top_eigenpairs
from lapwing.methods.hessian_free import Probed, Signs, weight_uncertainty
from lapwing.posteriors import MatrixFreePosterior, WeightPosterior
from lapwing.predictive import Moments, Predictive
from studies.hessian_free.shallow import Fitted

Method = Callable[[Fitted, Tensor], Predictor]
"""Of a trained network and the points that will be predicted."""


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
class TopEigen:
    """``P⁻¹ ≈ V Λ⁻¹ Vᵀ`` with the leading eigenpairs of ``P = G + A``: nothing else is uncertain.

    A baseline of the source ("Eigen. Approx."). It keeps the directions of *least* posterior variance, where
    ``lw.LowRank`` keeps the same ones exactly *and* the prior in all others.

    Args:
        fitted: The network.
        factor: ``V Λ^-½``.
    """

    fitted: Fitted
    factor: Float[Tensor, "d k"]

    @property
    def likelihood(self) -> lw.Gaussian:
        """p(y | f)."""
        return self.fitted.likelihood

    def predict(self, x: Float[Tensor, "m 1"]) -> Predictive:
        """What it makes of the points."""
        moved = (self.fitted.jacobian(x) @ self.factor)[:, None]
        return self.likelihood.predictive(Moments.from_factor(self.fitted.model(x).detach(), moved), "probit")


def top_eigenvectors(fitted: Fitted, points: Tensor | None = None) -> TopEigen:
    """The leading ``round(ln d)`` eigenvectors of the P of the GGN, and nothing else."""
    recipe = lw.Laplace(fitted.likelihood, prior=fitted.prior, structure=lw.MatrixFree())
    posterior = recipe.fit(fitted.model, fitted.data.train)
    assert isinstance(posterior, MatrixFreePosterior)
    rank = max(1, round(math.log(posterior.network.size)))
    pairs = top_eigenpairs(posterior.problem.precision, rank, generator=torch.Generator().manual_seed(0))
    return TopEigen(fitted, pairs.vectors * pairs.values.rsqrt())


def refitted(options: dict[str, Any], fitted: Fitted, points: Float[Tensor, "m 1"]) -> Any:
    """Hessian-free Laplace at the points."""
    recipe = lw.HessianFree(fitted.likelihood, prior=fitted.prior, **options)
    return recipe.fit(fitted.model, fitted.data.train, points)


BASELINES: dict[str, Method] = {
    "plug-in": lambda fitted, points: PlainNetwork(fitted.model, fitted.likelihood),
    "full Hessian": partial(exact, lw.Hessian()),
    "GGN": partial(exact, lw.GGN()),
    "top eigenvectors": top_eigenvectors,
}

VARIANTS: dict[str, dict[str, Any]] = {
    "probed": {},
    "per point": {"fits": lw.hessian_free.PerPoint(group=256)},
    "per point, as printed": {"fits": lw.hessian_free.PerPoint(group=256), "antithetic": False, "centred": False},
    "pre-trained, mean": {"fits": lw.hessian_free.PreTrained("mean")},
    "pre-trained, absolute": {"fits": lw.hessian_free.PreTrained("absolute")},
    "pre-trained, in sample": {"fits": lw.hessian_free.PreTrained("in_sample")},
    "pre-trained, augmented": {"fits": lw.hessian_free.PreTrained("augmented")},
}
"""Options of ``HessianFree``; the default first."""

METHODS = BASELINES | {name: partial(refitted, options) for name, options in VARIANTS.items()}


def deviation(curvature: Any, fitted: Fitted) -> Float[Tensor, " d"]:
    """Roots of the diagonal of ``P⁻¹``."""
    return covariance(exact(curvature, fitted)).diagonal().sqrt()


def by_refits(fits: Signs | Probed, fitted: Fitted) -> Float[Tensor, " d"]:
    """With ``Signs`` PU, equation 32, ``√|P⁻¹ sign(θ)|``; with ``Probed`` the diagonal itself, estimated."""
    return weight_uncertainty(fitted.model, fitted.data.train, fitted.likelihood, prior=fitted.prior, fits=fits).std


DEVIATIONS: dict[str, Callable[[Fitted], Float[Tensor, " d"]]] = {
    "full Hessian": partial(deviation, lw.Hessian()),
    "GGN": partial(deviation, lw.GGN()),
    "top eigenvectors": lambda fitted: top_eigenvectors(fitted).factor.square().sum(1).sqrt(),
    "Hessian-free, signs": partial(by_refits, Signs()),
    "Hessian-free, probed": partial(by_refits, Probed()),
}
"""Standard deviations of the weights under each method."""
