"""What posteriors that are not Laplace's hold: refits of the network."""

from __future__ import annotations

from typing import Any

from lapwing.ground.archive import Json, Tensors
from lapwing.ground.data import Data
from lapwing.jacobian.network.network import Network
from lapwing.methods.hessian_free import HessianFreePosterior
from lapwing.methods.hessian_free.passes import Passes
from lapwing.methods.hessian_free.refit import Refit
from lapwing.store.families import records


def refitted_state(posterior: HessianFreePosterior, tensors: Tensors) -> Json:
    """Everything but the network and the data."""
    given = around(None, None)
    refit = records(tensors, given=given).state(posterior.refit, "refit")
    return {"refit": refit, **records(tensors, given=given | {Refit: None}).state(posterior)}


def refitted_from(header: Json, tensors: Tensors, network: Network, data: Data | None) -> HessianFreePosterior:
    """The posterior that gave a state, around a network.

    Raises:
        DataError: If none gives it.
    """
    given, device = around(network, data), network.like.device
    refit = records(tensors, device, given).read(Refit, header.get("refit"), "refit")
    return records(tensors, device, given | {Refit: refit}).read(HessianFreePosterior, header, "the header")


def around(network: Network | None, data: Data | None) -> dict[Any, Any]:
    """What no file holds, by the type of the field it fills."""
    return {Network: network, Data | None: data, Passes: Passes()}
