"""The maximisation: precisions from what expectation says, and whether they are near enough to where they stay."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.errors import finite_evidence
from lapwing.posteriors import Posterior
from lapwing.posteriors.effective_dimension import LEAST
from lapwing.tuning.em.expectation import Expected
from lapwing.tuning.em.state import State
from lapwing.tuning.fixed_point import distance, fixed_point
from lapwing.tuning.hyperparameters import Hyperparameters
from lapwing.tuning.method import LinearPosterior

SHARE = 0.5
"""Precisions need not be nearer their fixed point than this part of the standard error of their estimate."""


@final
@dataclass(frozen=True, eq=False)
class Maximised:
    """A step of expectation maximisation.

    Args:
        state: The state after it.
        distance: How far a log precision is from its fixed point, at most.
    """

    state: State
    distance: float


def maximised(posterior: Posterior | LinearPosterior, found: Expected, with_noise: bool, tolerance: float) -> Maximised:
    """The step ``α_g ← γ_g / |w*_g|²``, ``s ← (N - γ) / |y - h(w*)|²_B``    (Antorán 2024, equations 6.10 and 6.11).

    Args:
        posterior: The posterior.
        found: What expectation said.
        with_noise: Whether the noise may change.
        tolerance: Distance of a log precision from its fixed point at which it has settled.
    """
    state = found.state
    observations = posterior.totals.observations
    misfit = state.scale.new_tensor(found.mode.misfit)
    gamma = found.dimensions.groups
    there = fixed_point(gamma, found.norms, misfit, state.scale, observations, with_noise)
    moves = moves_of(found, there, with_noise)
    distances = distance(moves, state.moves)
    settled = bool((distances <= settled_at(found, observations, tolerance)).all())
    step = replace(found.step(posterior), log_marginal=_log_marginal(found))
    after = replace(
        state,
        precisions=there.precisions,
        scale=there.scale,
        trace=(*state.trace, step),
        measured=state.hyperparameters.values,
        moves=moves,
        settled=settled,
    )
    return Maximised(after, float(distances.max()))


def _log_marginal(found: Expected) -> float | None:
    """The log evidence at the precisions of an expectation, nats, where it is exact."""
    if found.evidence is None:
        return None
    with torch.no_grad():
        return finite_evidence(float(found.evidence.log_marginal(found.state.precisions, found.state.scale)))


def moves_of(found: Expected, there: Hyperparameters, with_noise: bool) -> Float[Tensor, " m"]:
    """Moves of the log precisions, the noise's last; 0 for those that are not waited for.

    Args:
        found: What expectation said.
        there: The hyper-parameters that maximisation led to.
        with_noise: Whether the noise may change.
    """
    moves = there.log_moves(found.state.hyperparameters)
    waited_for = torch.cat([found.dimensions.groups > LEAST, torch.tensor([with_noise], device=moves.device)])
    return torch.where(waited_for, moves, 0.0)


def settled_at(found: Expected, observations: float, tolerance: float) -> Float[Tensor, " m"]:
    """The distance at which each log precision has settled, the noise's last: at best part of its standard error.

    Of the logarithm of a precision that follows γ that is the error of log γ, of the noise's that of log (N - γ).
    """
    gamma = found.dimensions.groups
    errors = found.dimensions.errors / gamma.clamp_min(LEAST)
    free = max(observations - found.gamma, found.gamma)
    noise_error = found.dimensions.error / free if free else 0.0
    errors = torch.cat([errors, errors.new_tensor([noise_error])])
    return torch.nan_to_num(SHARE * errors, nan=0.0, posinf=0.0).clamp_min(tolerance)
