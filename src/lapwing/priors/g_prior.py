"""Precisions in proportion to what the data say of each weight."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.errors import ConfigError, NumericalError, ShapeError, check_count, check_fraction, precisions_of
from lapwing.ground.layout import Layout
from lapwing.priors.base import Prior, check_length, checked_one


@final
@dataclass(frozen=True, eq=False, repr=False)
class GPrior(Prior):
    """The diagonal g-prior ``A = a diag(M)`` with M the generalised Gauss-Newton matrix (Antorán 2024, equation 6.12).

    Weights before a normalisation layer have no scale of their own: this prior takes theirs from the data, so that
    what the posterior predicts does not depend on it, whatever a (proposition 8). It acts as a Jacobi preconditioner.
    Before a fit it says how to find diag(M); ``Laplace.fit`` finds it, and the prior of the posterior holds it.

    Args:
        precision: a, a pure number: the one that tuning changes.
        samples: Draws an example from which diag(M) is estimated, without bias; ``None`` computes it exactly from layer
            factors, with a backward pass for each output. 16 and more: few draws make single scales far too small.
        floor: Entries of diag(M) below this fraction of their parameter's mean (of all weights', where a parameter
            has no curvature at all) are raised to it: the data say nothing about such a weight. Where an input never
            varied in training, its weights are that free: predictions where it does vary are next to ignorant.
        scale: diag(M), where it is known; see ``scaled_by``.

    Raises:
        ConfigError: If a number is not positive and finite.

    Example:
        >>> layout = Layout(("w",), ((3,),))
        >>> GPrior(2.0).scaled_by(torch.tensor([1.0, 5.0, 0.0]), layout).diagonal(layout, torch.zeros(1)).tolist()
        [2.0, 10.0, 3.999999989900971e-06]
    """

    precision: float = 1.0
    samples: int | None = None
    floor: float = 1e-6
    scale: Float[Tensor, " d"] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "precision", checked_one(self.precision, "GPrior(1.0)"))
        check_fraction("floor", self.floor, "GPrior(floor=1e-6)")
        if self.samples is not None:
            check_count("samples", self.samples, usual=16)
        if self.scale is not None:
            scale = precisions_of("prior", self.scale, "GPrior(1.0).scaled_by(diagonal, layout)")
            object.__setattr__(self, "scale", scale)

    def scaled_by(self, diagonal: Float[Tensor, " d"], layout: Layout) -> GPrior:
        """The prior that knows its scale.

        Args:
            diagonal: diag(M).
            layout: Names and shapes of the weights.

        Raises:
            NumericalError: If an entry is negative or not finite, or all are 0.
            ShapeError: If there are not d entries.
        """
        if diagonal.shape != (layout.size,):
            raise ShapeError(f"one entry for each of {layout.size} weights", f"{list(diagonal.shape)}", "diag(M)")
        values = diagonal.detach().to("cpu", torch.float64, copy=True)
        if not bool((values.isfinite() & (values >= 0)).all() and values.any()):
            raise NumericalError(
                "a diagonal of the curvature that is finite, not negative, and not 0 throughout",
                f"entries from {values.min().item():.3g} to {values.max().item():.3g}",
                "checking that the outputs depend on the weights",
            )
        everywhere = float(values.mean())
        for place in layout.slices.values():
            own = float(values[place].mean()) if place.stop > place.start else 0.0
            values[place] = values[place].clamp_min(self.floor * (own or everywhere))
        return replace(self, scale=values)

    def relative(self, layout: Layout) -> Float[Tensor, " d"]:
        """diag(M); see ``Prior.relative``.

        Raises:
            ConfigError: If it is not known yet.
            ShapeError: If it is that of another layout.
        """
        if self.scale is None:
            raise ConfigError(
                "a g-prior that knows the curvature it scales with",
                f"{self}, which was not fitted",
                "Laplace(..., prior=GPrior()).fit(model, data).prior, or GPrior().scaled_by(diagonal, layout)",
            )
        check_length(self.scale, layout.size, f"a g-prior for {layout.size} weights")
        return self.scale
