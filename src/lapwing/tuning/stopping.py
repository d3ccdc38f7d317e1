"""When expectation maximisation is near enough to its fixed point."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.posteriors.dimension import LEAST
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
    moves = torch.cat([(precisions / found.precisions).log(), (scale / found.scale).log().view(1)])
    waited = torch.cat([found.dimensions.groups > LEAST, torch.tensor([noisy], device=moves.device)])
    return torch.where(waited, moves, 0.0)


def distance(moves: Float[Tensor, " m"], before: Float[Tensor, " m"] | None) -> Float[Tensor, " m"]:
    """How far the fixed point is, if moves go on shrinking by the factor ρ by which they last did.

    ``|move| / (1 - ρ)`` where a precision goes on in the same direction, and ``|move| / (1 + ρ)`` where it turned back:
    the fixed point then lies between the two.

    Args:
        moves: The moves of this step.
        before: Those of the step before, where there was one; ρ is the ratio of the largest.

    Example:
        >>> distance(torch.tensor([0.5, 0.5]), torch.tensor([1.0, -1.0])).round(decimals=2)
        tensor([1.0000, 0.3300])
    """
    sizes = moves.abs()
    if before is None:
        return sizes
    shrunk = float(sizes.max() / before.abs().max())
    back = (moves * before < 0) & (shrunk < SLOWEST)
    return sizes / (1.0 - min(shrunk, SLOWEST) * torch.where(back, -1.0, 1.0).to(sizes))


def enough(found: Expected, tolerance: float) -> Float[Tensor, " m"]:
    """The distance at which each log precision has settled, the noise's last."""
    errors = torch.nan_to_num(SHARE * found.errors, nan=0.0, posinf=0.0)
    return errors.clamp_min(tolerance)
