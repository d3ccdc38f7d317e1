"""Where the fit of a deep image prior has come to, on disk and in its optimiser."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from lapwing.ground.files.archive import Archive

ARCHIVE = Archive(
    "lapwing.dip",
    "lapwing.dip",
    1,
    "DeepImagePrior(checkpoint=...)",
    "another checkpoint=, or deleting the file",
)


@final
@dataclass(frozen=True, eq=False)
class FitState:
    """Where a fit has come to.

    Args:
        weights: Of the network.
        first: Adam's average of gradients.
        second: Its average of their squares.
        best: The weights that fit the rays held out best.
        held_out: How well.
        at: The step they are from.
        trace: How well every look.
        step: Steps so far.
    """

    weights: Float[Tensor, " d"]
    first: Float[Tensor, " d"]
    second: Float[Tensor, " d"]
    best: Float[Tensor, " d"]
    held_out: float
    at: int
    trace: tuple[float, ...]
    step: int


def advanced(state: FitState, optimiser: torch.optim.Adam, step: int) -> FitState:
    """A fit with what its optimiser and parameters have come to.

    Args:
        state: The fit, with the best weights it has seen.
        optimiser: Adam, after a step.
        step: Steps so far.
    """
    params = optimiser.param_groups[0]["params"]
    first, second = (
        torch.cat([optimiser.state[p][name].flatten() for p in params]) for name in ("exp_avg", "exp_avg_sq")
    )
    return replace(state, weights=parameters_to_vector(params).detach().clone(), first=first, second=second, step=step)


def resume(optimiser: torch.optim.Adam, state: FitState) -> None:
    """Put an optimiser and its parameters where a fit has come to."""
    params = optimiser.param_groups[0]["params"]
    vector_to_parameters(state.weights.clone(), params)
    if not state.step:
        return
    sizes = [p.numel() for p in params]
    for p, first, second in zip(params, state.first.split(sizes), state.second.split(sizes), strict=True):
        moments = {"exp_avg": first.view_as(p).clone(), "exp_avg_sq": second.view_as(p).clone()}
        optimiser.state[p] = {"step": torch.tensor(float(state.step)), **moments}
