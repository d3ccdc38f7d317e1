"""Standard deviations of the weights under each method."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from jaxtyping import Float
from torch import Tensor

import lapwing as lw
from lapwing.methods.hessian_free import Probed, Signs, weight_uncertainty
from studies.hessian_free.methods import covariance, exact, top_eigenvectors
from studies.hessian_free.shallow import Fitted


def full_hessian(fitted: Fitted) -> Float[Tensor, " d"]:
    """Roots of the diagonal of ``P⁻¹``."""
    return covariance(exact(lw.Hessian(), fitted)).diagonal().sqrt()


def ggn(fitted: Fitted) -> Float[Tensor, " d"]:
    """The same with the GGN."""
    return covariance(exact(lw.GGN(), fitted)).diagonal().sqrt()


def few_eigenvectors(fitted: Fitted) -> Float[Tensor, " d"]:
    """In the span of the leading eigenvectors alone."""
    return top_eigenvectors(fitted).factor.square().sum(1).sqrt()


def refitted(fits: Signs | Probed, fitted: Fitted) -> Float[Tensor, " d"]:
    """By refits: with ``Signs`` PU, equation 32, ``√|P⁻¹ sign(θ)|``; with ``Probed`` the diagonal itself, estimated."""
    return weight_uncertainty(fitted.model, fitted.data.train, fitted.likelihood, prior=fitted.prior, fits=fits).std


DEVIATIONS: dict[str, Callable[[Fitted], Float[Tensor, " d"]]] = {
    "full Hessian": full_hessian,
    "GGN": ggn,
    "top eigenvectors": few_eigenvectors,
    "Hessian-free, signs": partial(refitted, Signs()),
    "Hessian-free, probed": partial(refitted, Probed()),
}
