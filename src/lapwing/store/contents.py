"""What a file holds of a posterior, its network and its data aside: the fields of its class, and where they differ."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import astuple, replace
from typing import Any, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.curvature.fold import Fingerprint, Totals
from lapwing.curvature.sums import Held
from lapwing.ground.data.sources import Data
from lapwing.ground.errors import DataError, UnsupportedError
from lapwing.ground.files.archive import Json, Tensors
from lapwing.jacobian.layers.capture import Survey
from lapwing.jacobian.model import Model
from lapwing.jacobian.network.network import Network
from lapwing.likelihoods import Likelihood
from lapwing.methods.hessian_free import HessianFreePosterior
from lapwing.methods.hessian_free.refit import Refit, Tally
from lapwing.posteriors import FunctionPosterior, NystromPosterior, Posterior, SampledPosterior, WeightPosterior
from lapwing.priors import Prior
from lapwing.store.fits import named, records

logger = logging.getLogger(__name__)

Saved: TypeAlias = Posterior | HessianFreePosterior
"""What a file may hold."""

KINDS = named(WeightPosterior, FunctionPosterior, NystromPosterior, SampledPosterior, HessianFreePosterior)
"""The same by name."""

LEFT_OUT = (
    "the training inputs, which a prediction needs, are not in the file: load(path, model, data) takes them again, in "
    "the order they had at the fit. save(..., training_inputs=True) writes them into the file"
)
"""What is said where inputs are left out."""

ABSENT: Json = {"noise_fixed": False, "partial": False, "link": "probit", "temperature": 1.0}
"""What files meant that were written before there were these fields."""

PARTS = tuple[Fingerprint, ...]
"""The chunks of ``Totals``; there may be many, so that a file has them as rows of one tensor."""


def state(posterior: Saved, tensors: Tensors, *, training_inputs: bool = False) -> Json:
    """Everything but the network and the data.

    Args:
        posterior: The posterior.
        tensors: Is filled.
        training_inputs: Whether those are held too, where a prediction needs them.

    Raises:
        UnsupportedError: If no file holds it.
    """
    if isinstance(posterior, HessianFreePosterior):
        refit = posterior.refit
        known = {name: records(tensors).state(getattr(refit.model, name)) for name in ("survey", "likelihood")}
        own = known | records(tensors, given={Model: None, Tally: None}).state(refit, "refit")
        return {"refit": own} | records(tensors, given={Refit: None}).state(posterior)
    if type(posterior).__name__ not in KINDS:
        raise UnsupportedError(
            "a posterior that holds its curvature",
            f"{type(posterior).__name__}, whose curvature is not held but in its training data",
            "fitting it again, which takes one forward pass over the data, or structure LowRank(100) or KFAC()",
        )
    plain = records(tensors).state
    own = {"survey": plain(posterior.survey, "survey"), "fitted": plain(posterior.fitted, "fitted")}
    own["totals"] = totals_state(posterior.totals, tensors)
    elsewhere = {Model: None, Totals: None, Held: None}
    match posterior:
        case WeightPosterior():
            own["curvature"] = plain(posterior.held, "curvature")
        case SampledPosterior():
            posterior = replace(posterior, initial=None, found=posterior.solution, squares=posterior.output_squares)
        case FunctionPosterior() if not training_inputs:
            if not posterior.rows.by_features:
                logger.warning(LEFT_OUT)
            posterior = posterior.without_inputs()
        case _:
            pass
    return own | records(tensors, given=elsewhere).state(posterior)


def posterior_from(header: Json, tensors: Tensors, network: Network, data: Data | None) -> Saved:
    """The posterior of a header, around a network.

    Raises:
        DataError: If none gives it.
    """
    kind, device = str(header.get("posterior")), network.like.device
    if kind not in KINDS:
        raise DataError("a kind of posterior this lapwing has", f"'{kind:.40}'", "the lapwing that wrote the file")
    read = records(tensors, device).read
    if kind == "HessianFreePosterior":
        kept = read(dict[str, Any], header.get("refit"), "refit")
        survey = read(Survey, kept.get("survey"), "refit.survey")
        model = Model(network, survey, read(Likelihood, kept.get("likelihood"), "refit.likelihood"), data)
        refit = records(tensors, device, {Model: model}).read(Refit, kept, "refit")
        return records(tensors, device, {Refit: refit}).read(HessianFreePosterior, header, "")
    survey = header.get("survey")
    if isinstance(survey, dict):  # files of before do not say: what is right wherever "at once" was wrong
        survey = {"way": "by cotangent"} | survey
    fitted = read(Likelihood, header.get("fitted"), "fitted")
    given: dict[Any, Any] = {
        Model: Model(network, read(Survey, survey, "survey"), fitted, data),
        Totals: totals_from(header.get("totals"), tensors, device),
        Prior: records(tensors).read(Prior, header.get("prior"), "prior"),
    }
    match kind:
        case "WeightPosterior":
            given[Held] = read(Held, header.get("curvature"), "curvature")
        case "SampledPosterior" if isinstance(header.get("sampled"), Mapping):
            header = header | _sampled(header["sampled"])
        case "NystromPosterior" if isinstance(header.get("nystrom"), Mapping):
            header = header | header["nystrom"]
        case _:
            pass
    found = records(tensors, device, given).read(KINDS[kind], ABSENT | header, "")
    if isinstance(found, NystromPosterior):
        report = replace(found.report, pairs=found.report.pairs.cpu())
        return replace(found, report=report, partial=report.partial)
    return found


def _sampled(older: Mapping[str, Any]) -> Json:
    """The fields of a posterior made of draws, from where older files have them."""
    effort, squares = older.get("effort"), older.get("squares")
    found = {"value": older.get("draws"), "residual": older.get("residual")} | (
        effort if isinstance(effort, dict) else {}
    )
    squares = squares if isinstance(squares, dict) else None  # still older files have their sums
    return {"perturbation": older.get("noise"), "solver": older.get("solver"), "found": found, "squares": squares}


def totals_state(totals: Totals, tensors: Tensors) -> Json:
    """Sums over the data: one row a chunk, which may be many. ``examples`` and ``nll`` are there to be read."""
    rows = torch.tensor([astuple(part) for part in totals.parts], dtype=torch.float64).view(-1, 4)
    sums = {"examples": totals.examples, "nll": totals.nll, "parts": tensors.put("totals.parts", rows)}
    return sums | records(tensors, given={PARTS: None}).state(totals, "totals")


def totals_from(state: Any, tensors: Tensors, device: torch.device) -> Totals:
    """The sums that gave a state.

    Raises:
        DataError: If none give it.
    """
    kept = records(tensors).read(dict[str, Any], state, "totals")
    rows = records(tensors).read(Float[Tensor, "p 4"], kept.get("parts"), "totals.parts").nan_to_num().tolist()
    parts = tuple(Fingerprint(int(row[0]), *row[1:]) for row in rows)
    return records(tensors, device, {PARTS: parts}).read(Totals, kept, "totals")
