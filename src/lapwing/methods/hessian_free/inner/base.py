"""What finds the minimum of the perturbed objectives."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.methods.hessian_free.refit import Fits, Refit


@final
@dataclass(frozen=True, eq=False)
class Refitted:
    """Refitted weights.

    Args:
        changes: δ of each fit, float64.
        residual: About how far each fit is from its end, relative to the length of δ.
        gradients: Gradients that were computed, counting one for each fit and pass over the data.
        products: Products of the Hessian with a column, over all the data.
    """

    changes: Float[Tensor, "f d"]
    residual: Float[Tensor, " f"]
    gradients: int
    products: int

    @staticmethod
    def join(parts: Sequence[Refitted], ends: int = 1) -> Refitted:
        """Those of several groups of fits together.

        Args:
            parts: One for each group.
            ends: Twins of a fit: a group lists all its fits at λ, then all at −λ, and so does what is returned.
        """
        changes = torch.cat([part.changes.view(ends, -1, part.changes.shape[1]) for part in parts], dim=1)
        residual = torch.cat([part.residual.view(ends, -1) for part in parts], dim=1)
        return Refitted(
            changes.flatten(0, 1),
            residual.flatten(),
            sum(part.gradients for part in parts),
            sum(part.products for part in parts),
        )


class Inner(abc.ABC):
    """An inner solver. Its fits are independent of each other, and go through the data together."""

    measures: ClassVar[bool] = False
    """Whether what it says is left of a fit can be trusted, so that fits that stay far from their end are made smaller.
    """

    @abc.abstractmethod
    def solve(self, refit: Refit, fits: Fits, start: Float[Tensor, "f d"]) -> Refitted:
        """Minimise each objective.

        Args:
            refit: The objectives.
            fits: Which.
            start: δ to start from.
        """

    @abc.abstractmethod
    def step(self, dtype: torch.dtype) -> float:
        """How far a fit should move the weights, in posterior standard deviations, for products in a dtype."""

    def directions(self, refit: Refit, fits: Fits) -> Refitted | None:
        """``P⁻¹ ∇r`` of each fit at once, and what that took; ``None`` where only fits tell.

        Args:
            refit: The objectives.
            fits: Which; their λ do not matter.
        """
        return None
