"""Priors with a number for each weight: a precision of its own, or what the data say about its scale."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lapwing.ground.errors import ConfigError, NumericalError, ShapeError, check_count, check_fraction
from lapwing.ground.tree import Layout
from lapwing.priors.base import Prior, check_length, checked, checked_one, expanded


@final
@dataclass(frozen=True, eq=False)
class DiagonalPrior(Prior):
    """One precision a weight.

    Args:
        precision: One number for every weight, or one a weight ``[d]``, in 1 / (units of a weight)²; kept as
            float64 on the CPU. Two such priors are equal when their numbers are.

    Raises:
        ConfigError: If one is not a positive finite number.

    Example:
        >>> DiagonalPrior(torch.tensor([1.0, 4.0])) == DiagonalPrior(torch.tensor([1.0, 4.0]))
        True
    """

    precision: float | Float[Tensor, " d"] = 1.0

    def __post_init__(self) -> None:
        values = checked(self.precision, "DiagonalPrior(1.0)")
        object.__setattr__(self, "precision", values if values.ndim else float(values))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DiagonalPrior):
            return NotImplemented
        return torch.equal(torch.as_tensor(self.precision), torch.as_tensor(other.precision))

    def __hash__(self) -> int:
        return hash(tuple(torch.as_tensor(self.precision).reshape(-1).tolist()))

    def groups(self, layout: Layout) -> tuple[Int[Tensor, " d"], int]:
        """Every weight a group of its own; see ``Prior.groups``."""
        return torch.arange(layout.size), layout.size

    def precisions(self, layout: Layout) -> Float[Tensor, " g"]:
        """One precision a weight; see ``Prior.precisions``."""
        values = torch.as_tensor(self.precision, dtype=torch.float64)
        return expanded(values, layout.size, f"one precision for each of {layout.size} weights")

    def with_precisions(self, precisions: Float[Tensor, " g"]) -> DiagonalPrior:
        """The prior with these precisions, one a weight; see ``Prior.with_precisions``."""
        return DiagonalPrior(precisions)


@final
@dataclass(frozen=True, eq=False)
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
        object.__setattr__(self, "precision", checked_one(self.precision, "GPrior(1.0)"))
        check_fraction("floor", self.floor, "GPrior(floor=1e-6)")
        if self.samples is not None:
            check_count("samples", self.samples, usual=16)
        if self.scale is not None:
            object.__setattr__(self, "scale", checked(self.scale, "GPrior(1.0).scaled_by(diagonal, layout)"))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, GPrior):
            return NotImplemented
        if self._options != other._options or (self.scale is None) != (other.scale is None):
            return False
        return self.scale is None or other.scale is None or torch.equal(self.scale, other.scale)

    def __hash__(self) -> int:
        return hash(self._options)

    @property
    def _options(self) -> tuple[float, int | None, float]:
        return (self.precision, self.samples, self.floor)

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

    def groups(self, layout: Layout) -> tuple[Int[Tensor, " d"], int]:
        """All weights in group 0; see ``Prior.groups``."""
        return torch.zeros(layout.size, dtype=torch.long), 1

    def precisions(self, layout: Layout) -> Float[Tensor, " g"]:
        """The one precision a; see ``Prior.precisions``."""
        return torch.tensor([self.precision], dtype=torch.float64)

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

    def with_precisions(self, precisions: Float[Tensor, " g"]) -> GPrior:
        """The prior with another a ``[1]`` and the same scale; see ``Prior.with_precisions``."""
        check_length(precisions, 1, "one precision for all weights")
        return replace(self, precision=float(precisions))
