"""What posteriors that are not Laplace's hold: refits of the network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

from jaxtyping import Float
from torch import Tensor

from lapwing.ground.archive import Json, Tensors
from lapwing.ground.data import Data
from lapwing.jacobian.layers.layers import Survey
from lapwing.jacobian.model import Model
from lapwing.jacobian.network.network import Network
from lapwing.likelihoods import Likelihood
from lapwing.methods.hessian_free import HessianFreePosterior
from lapwing.methods.hessian_free.refit import Refit
from lapwing.store.families import records


@final
@dataclass(frozen=True, eq=False)
class Objective:
    """The fields of a ``Refit`` but for network and data."""

    survey: Survey
    likelihood: Likelihood
    prior: Float[Tensor, " d"]
    centred: bool


def refitted_state(posterior: HessianFreePosterior, tensors: Tensors) -> Json:
    """Everything but the network and the data."""
    refit = posterior.refit
    objective = Objective(refit.model.survey, refit.model.likelihood, refit.prior, refit.centred)
    given: dict[Any, Any] = {Refit: None}
    return {
        "refit": records(tensors).state(objective, "refit"),
        **records(tensors, given=given).state(posterior),
    }


def refitted_from(header: Json, tensors: Tensors, network: Network, data: Data | None) -> HessianFreePosterior:
    """The posterior that gave a state, around a network.

    Raises:
        DataError: If none gives it.
    """
    device = network.like.device
    kept: Objective = records(tensors, device).read(Objective, header.get("refit"), "refit")
    refit = Refit(Model(network, kept.survey, kept.likelihood, data), kept.prior, kept.centred)
    return records(tensors, device, {Refit: refit}).read(HessianFreePosterior, header, "the header")
