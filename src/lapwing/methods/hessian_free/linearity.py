"""How far the answers of refits are to be trusted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final


@final
@dataclass(frozen=True)
class Linearity:
    """How much of a response is not linear in λ, and what the fits took.

    Args:
        change: Largest relative change ``|y(λ) − y(λ/2)| / |y(λ)|`` of a response y over the fits that were repeated at
            half their λ.
        checked: How many these were.
        scale: Smallest and largest λ.
        residual: About how far a fit was from its end, at most, relative to the length of its change of the weights.
        gradient: Largest length of the gradient of loss and prior at the trained weights, relative to that of ``λ ∇r``.
        fits: Fits in all, those that found λ and those that checked it included.
        gradients: Gradients over the data, one for each fit and step.
        products: Columns multiplied by the Hessian over all the data.
    """

    change: float
    checked: int
    scale: tuple[float, float]
    residual: float
    gradient: float
    fits: int
    gradients: int
    products: int

    def join(self, other: Linearity) -> Linearity:
        """Those of two families of fits together."""
        return Linearity(
            max(self.change, other.change),
            self.checked + other.checked,
            (min(self.scale[0], other.scale[0]), max(self.scale[1], other.scale[1])),
            max(self.residual, other.residual),
            max(self.gradient, other.gradient),
            self.fits + other.fits,
            self.gradients + other.gradients,
            self.products + other.products,
        )
