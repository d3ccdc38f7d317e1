"""What a posterior made of draws holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.archive import Json, Tensors
from lapwing.ground.results import Solution, Stopped
from lapwing.linear.problem import Perturbation
from lapwing.linear.solvers import Solver
from lapwing.posteriors import SampledPosterior
from lapwing.store.families import records


@final
@dataclass(frozen=True)
class Effort:
    """The fields of a ``Solution`` that are no tensors."""

    iterations: int
    matvecs: int
    stopped: Stopped


@final
@dataclass(frozen=True, eq=False)
class Drawn:
    """The fields of a ``SampledPosterior`` that others do not have."""

    draws: Float[Tensor, "d k"]
    residual: Float[Tensor, " k"]
    effort: Effort
    squares: Float[Tensor, "g k"] | Float[Tensor, " k"]
    noise: Perturbation
    solver: Solver


def sampled_state(posterior: SampledPosterior, tensors: Tensors) -> Json:
    """The draws, how well they were solved for, and their noise."""
    solution = posterior.solution
    drawn = Drawn(
        solution.value,
        solution.residual,
        Effort(solution.iterations, solution.matvecs, solution.stopped),
        posterior.output_squares,
        posterior.perturbation,
        posterior.solver,
    )
    return records(tensors).state(drawn)


def sampled_from(state: Any, tensors: Tensors, device: torch.device) -> dict[str, Any]:
    """The fields that gave a state.

    Raises:
        DataError: If none give it.
    """
    drawn: Drawn = records(tensors, device).read(Drawn, state, "sampled")
    return {
        "perturbation": drawn.noise,
        "solver": drawn.solver,
        "found": Solution(drawn.draws, drawn.residual, **vars(drawn.effort)),
        "squares": drawn.squares if drawn.squares.ndim == 2 else None,  # older files have their sums
    }
