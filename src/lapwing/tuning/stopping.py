"""When expectation maximisation is near enough to its fixed point."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.tuning.dimensions import LEAST
from lapwing.tuning.maximisation import Expected

SLOWEST = 0.95
"""Largest factor by which moves are taken to shrink from step to step."""

SHARE = 0.5
"""Precisions need not be nearer their fixed point than this part of the standard error of their estimate."""


def moves_of(
    found: Expected, precisions: Float[Tensor, " g"], scale: Float[Tensor, ""], noisy: bool
) -> Float[Tensor, " m"]:
    """Moves of the log precisions, the noise's last; 0 for those that are not waited for.

    Args:
        found: What expectation said.
        precisions: Prior precisions that maximisation led to.
        scale: Relative noise precision that it led to.
        noisy: Whether the noise may change.
    """
    moves = torch.cat([(precisions / found.precisions).log(), (scale / found.scale).log().view(1)]).abs()
    waited = torch.cat([found.dimensions.groups > LEAST, torch.tensor([noisy], device=moves.device)])
    return torch.where(waited, moves, 0.0)


def distance(moves: Float[Tensor, " m"], before: float) -> Float[Tensor, " m"]:
    """How far the fixed point is, if moves go on shrinking by the factor ρ by which they last did: ``move / (1 - ρ)``.

    Args:
        moves: The moves of this step.
        before: The largest of the step before; infinite where there was none.

    Example:
        >>> distance(torch.tensor([0.5]), 1.0)
        tensor([1.])
    """
    return moves / (1.0 - min(float(moves.max()) / before, SLOWEST))


def enough(found: Expected, tolerance: float) -> Float[Tensor, " m"]:
    """The distance at which each log precision has settled, the noise's last."""
    errors = torch.nan_to_num(SHARE * found.errors, nan=0.0, posinf=0.0)
    return errors.clamp_min(tolerance)
