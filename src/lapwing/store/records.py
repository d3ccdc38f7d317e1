"""Everything of a posterior that is neither network nor operator, as plain JSON and back."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.curvature.sums import Fingerprint, Totals
from lapwing.ground.archive import INLINE, Json, Tensors
from lapwing.jacobian.layers.layers import Survey
from lapwing.likelihoods import Likelihood
from lapwing.posteriors import Step
from lapwing.priors import DiagonalPrior, GPrior, Prior, prior_from_state
from lapwing.store.families import records


def likelihood_state(likelihood: Likelihood) -> Json:
    """A likelihood by its name and its fields.

    Raises:
        UnsupportedError: If it is none of lapwing's.

    Example:
        >>> from lapwing.likelihoods import Gaussian
        >>> likelihood_state(Gaussian(precision=4.0))
        {'kind': 'Gaussian', 'event_dim': 0, 'class_dim': -1, 'weight': 1.0, 'precision': 4.0}
    """
    return records().state(likelihood, "likelihood")


def likelihood_from(state: Any) -> Likelihood:
    """The likelihood that gave a state.

    Raises:
        DataError: If no likelihood of this lapwing gives it.
    """
    return records().read(Likelihood, state, "likelihood")


def prior_state(prior: Prior, tensors: Tensors) -> Json:
    """A prior; a long vector of precisions or scales goes to ``tensors``.

    Raises:
        ConfigError: If it is none of lapwing's.
    """
    if isinstance(prior, DiagonalPrior) and isinstance(prior.precision, Tensor) and prior.precision.numel() > INLINE:
        return {"kind": "DiagonalPrior", "precision": tensors.put("prior.precision", prior.precision)}
    if isinstance(prior, GPrior) and prior.scale is not None and prior.scale.numel() > INLINE:
        return replace(prior, scale=None).state() | {"scale": tensors.put("prior.scale", prior.scale)}
    return dict(prior_from_state(prior.state()).state())


def prior_from(state: Any, tensors: Tensors) -> Prior:
    """The prior that gave a state.

    Raises:
        DataError: If no prior of this lapwing gives it.
    """
    return records(tensors).read(Prior, state, "prior")


def survey_state(survey: Survey) -> Json:
    """A survey of layers."""
    return records().state(survey, "survey")


def survey_from(state: Any) -> Survey:
    """The survey that gave a state.

    Raises:
        DataError: If none gives it.
    """
    if isinstance(state, dict):  # files of before do not say: what is right wherever "at once" was wrong
        state = {"way": "by cotangent"} | state
    return records().read(Survey, state, "survey")


@final
@dataclass(frozen=True, eq=False)
class Sums:
    """``Totals`` as a file has them.

    Args:
        observations: As there.
        misfit: As there.
        parts: A row a chunk: examples, squares of the inputs, of the targets, negative log likelihood.
        score: As there.
    """

    observations: float
    misfit: float
    parts: Float[Tensor, "p 4"]
    score: Float[Tensor, " d"] | None


def totals_state(totals: Totals, tensors: Tensors) -> Json:
    """Sums over the data: one row a chunk, which may be many. ``examples`` and ``nll`` are there to be read."""
    rows = [[part.examples, part.inputs, part.targets, part.nll] for part in totals.parts]
    return {
        "examples": totals.examples,
        "nll": totals.nll,
        "observations": totals.observations,
        "misfit": totals.misfit,
        "parts": tensors.put("totals.parts", torch.tensor(rows, dtype=torch.float64).view(-1, 4)),
        "score": None if totals.score is None else tensors.put("totals.score", totals.score),
    }


def totals_from(state: Any, tensors: Tensors, device: torch.device) -> Totals:
    """The sums that gave a state.

    Raises:
        DataError: If none give it.
    """
    sums: Sums = records(tensors, device).read(Sums, state, "totals")
    parts = tuple(Fingerprint(int(row[0]), *row[1:]) for row in sums.parts.nan_to_num().tolist())
    return Totals(parts, sums.observations, sums.misfit, sums.score)


def trace_state(trace: tuple[Step, ...], tensors: Tensors) -> list[Json]:
    """Steps of tuning; a long vector of precisions goes to ``tensors``."""
    return records(tensors).state(trace, "trace")


def trace_from(states: Any, tensors: Tensors) -> tuple[Step, ...]:
    """The steps that gave the states.

    Raises:
        DataError: If none give them.
    """
    return records(tensors).read(tuple[Step, ...], states, "trace")
