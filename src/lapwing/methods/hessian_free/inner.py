"""What finds the minimum of the perturbed objectives, and what that took; by default Newton's method."""

from __future__ import annotations

import abc
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.errors import NumericalError, check_count, check_positive
from lapwing.linalg.cg import conjugate_gradients
from lapwing.methods.hessian_free.refit import Fits, Refit

FORCING = {torch.float64: 1e-6, torch.float32: 1e-3}
"""Relative residual of a Newton system, by the dtype of the products: what is left is the next step's."""

TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-2}
"""The default ``rtol``, by the dtype of the products."""

CONTRACTS = 0.5
"""A step that is no shorter than this part of the one before it ends the iteration: rounding, or no linear response."""


@final
@dataclass(frozen=True, eq=False)
class Refitted:
    """Refitted weights.

    Args:
        changes: δ of each fit, float64; of ends, too, where all fits are at λ and then all at −λ.
        residual: About how far each fit is from its end, relative to the length of δ.
        gradients: Gradients that were computed, counting one for each fit and pass over the data.
        products: Products of the Hessian with a column, over all the data.
    """

    changes: Float[Tensor, "*ends d"]
    residual: Float[Tensor, "*fits"]
    gradients: int
    products: int

    @staticmethod
    def join(parts: Sequence[Refitted], ends: int) -> Refitted:
        """Those of several groups of fits, ``[ends, s, d]``; a group lists its fits one end after the other."""
        return Refitted(
            torch.cat([part.changes.unflatten(0, (ends, -1)) for part in parts], dim=1),
            torch.cat([part.residual.unflatten(0, (ends, -1)) for part in parts], dim=1),
            sum(part.gradients for part in parts),
            sum(part.products for part in parts),
        )


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

    @staticmethod
    def join(parts: Sequence[Linearity]) -> Linearity:
        """Those of several families of fits together."""
        return Linearity(
            max(part.change for part in parts),
            sum(part.checked for part in parts),
            (min(part.scale[0] for part in parts), max(part.scale[1] for part in parts)),
            max(part.residual for part in parts),
            max(part.gradient for part in parts),
            sum(part.fits for part in parts),
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


@final
@dataclass(frozen=True)
class NewtonCG(Inner):
    """``δ ← δ − P⁻¹ ∇L_f(θ̂ + δ)`` with the exact Hessian P at the trained weights, touched through products alone.

    The Hessian stays that of the trained weights: as no fit moves them by more than a small part of a posterior
    standard deviation, a step takes the error down by about that part; and all fits share one Krylov space.

    Args:
        rtol: Length of a step, relative to that of the whole change ``δ`` in posterior standard deviations, with which
            a fit is done; ``None`` for 1e-6, in float32 for 1e-2.
        steps: Most Newton steps.
        max_iterations: Most products with the Hessian in a step.

    Raises:
        ConfigError: If a number is not positive.

    Cost:
        A step: a gradient for each fit, and a block of products with the Hessian for each iteration of conjugate
        gradients; from the second step on the same for what is left.

    Example:
        >>> NewtonCG(rtol=1e-6)
        NewtonCG(rtol=1e-06, steps=20, max_iterations=1000)
    """

    measures = True

    rtol: float | None = None
    steps: int = 20
    max_iterations: int = 1000

    def __post_init__(self) -> None:
        if self.rtol is not None:
            check_positive("rtol", self.rtol)
        check_count("steps", self.steps)
        check_count("max_iterations", self.max_iterations)

    def step(self, dtype: torch.dtype) -> float:
        """See ``Inner.step``."""
        return 1e-6 if dtype == torch.float64 else 3e-2

    def solve(self, refit: Refit, fits: Fits, start: Float[Tensor, "f d"]) -> Refitted:
        """See ``Inner.solve``.

        Raises:
            NumericalError: If the Hessian is not positive definite.
        """
        rtol = self.rtol if self.rtol is not None else TOLERANCE.get(refit.network.like.dtype, 1e-2)
        reward = fits.scales[:, None] * refit.reward(fits)
        changes = start.clone()
        residual = torch.where(start.any(1) & refit.centred, 1.0, math.inf).to(fits.scales)
        which, gradients, products = torch.arange(len(fits), device=start.device), 0, 0
        for _ in range(self.steps):
            gradient = refit.slopes(fits.take(which), changes[which])[0]
            step, used = self._newton(refit, gradient)
            gradients, products = gradients + len(which), products + used
            whole = (reward[which] * (changes[which] + step)).sum(1)
            length = (-gradient * step).sum(1).clamp(min=0).sqrt() / whole.clamp(min=1e-300).sqrt()
            shorter = length < CONTRACTS * residual[which]
            kept = which[shorter]
            changes[kept] += step[shorter]
            residual[kept] = length[shorter]
            which = kept[length[shorter] > rtol]
            if not len(which):
                break
        return Refitted(changes, residual, gradients, products)

    def directions(self, refit: Refit, fits: Fits) -> Refitted:
        """See ``Inner.directions``: one block of systems."""
        found, used = self._newton(refit, -refit.reward(fits))
        return Refitted(found, torch.zeros_like(fits.scales), len(fits), used)

    def _newton(self, refit: Refit, gradient: Float[Tensor, "f d"]) -> tuple[Float[Tensor, "f d"], int]:
        """``−P⁻¹ g`` of each fit, and the products it took."""
        like = refit.network.like
        rtol = FORCING.get(like.dtype, 1e-3)
        rounded = "model.double() and data in float64, should rounding be the cause; "
        try:
            solution = conjugate_gradients(
                refit.precision, -gradient.mT.to(like), rtol=rtol, max_iterations=self.max_iterations
            )
        except NumericalError as reason:
            raise NumericalError(
                "a Hessian of loss and prior that is positive definite at the trained weights",
                reason.got,
                "training on, with this prior and to convergence; a larger prior precision; "
                f"{'' if like.dtype == torch.float64 else rounded}or lw.Laplace, whose GGN has no negative curvature",
            ) from reason
        return solution.value.mT.double(), solution.matvecs
