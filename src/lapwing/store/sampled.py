"""What a posterior made of draws holds."""

from __future__ import annotations

from typing import Any

import torch

from lapwing.posteriors import SampledPosterior
from lapwing.problem import Perturbation
from lapwing.results import Solution
from lapwing.store.archive import Json, Tensors
from lapwing.store.solvers import solver_from, solver_state


def sampled_state(posterior: SampledPosterior, tensors: Tensors) -> Json:
    """The draws, how well they were solved for, and their noise."""
    solution = posterior.solution
    return {
        "draws": tensors.put("draws", solution.value),
        "residual": tensors.put("residual", solution.residual),
        "effort": {"iterations": solution.iterations, "matvecs": solution.matvecs, "stopped": solution.stopped},
        "squares": tensors.put("squares", posterior.output_squares),
        "noise": {
            "data": tensors.put("noise.data", posterior.perturbation.data),
            "prior": tensors.put("noise.prior", posterior.perturbation.prior),
        },
        "solver": solver_state(posterior.solver),
    }


def sampled_from(state: Json, tensors: Tensors, device: torch.device) -> dict[str, Any]:
    """The fields that gave a state."""
    draws, residual, squares = (tensors.get(state[name], device) for name in ("draws", "residual", "squares"))
    return {
        "perturbation": Perturbation(*(tensors.get(state["noise"][name], device) for name in ("data", "prior"))),
        "solver": solver_from(state["solver"]),
        "found": Solution(draws, residual, **state["effort"]),
        "squares": squares if squares.ndim == 2 else None,
    }
