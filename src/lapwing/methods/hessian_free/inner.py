"""What finds the minimum of the perturbed objectives, and what that took; by default Newton's method."""

from __future__ import annotations

import abc
import math
from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.errors import NumericalError, check_count, check_positive
from lapwing.linalg.cg import conjugate_gradients
from lapwing.methods.hessian_free.refit import Refit
from lapwing.methods.hessian_free.regularisers import Regulariser

FORCING = {torch.float64: 1e-6, torch.float32: 1e-3}
"""Relative residual of a Newton system, by the dtype of the products: what is left is the next step's."""

TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-2}
"""The default ``rtol``, by the dtype of the products."""

CONTRACTS = 0.5
"""A step that is no shorter than this part of the one before it ends the iteration: rounding, or no linear response."""


@final
class Refitted(NamedTuple):
    """Refitted weights.

    Args:
        changes: δ of each fit, float64; of ends, too, where all fits are at λ and then all at −λ.
        residual: About how far each fit is from its end, relative to the length of δ.
    """

    changes: Float[Tensor, "*ends d"]
    residual: Float[Tensor, "*fits"]


class Inner(abc.ABC):
    """An inner solver. Its fits are independent of each other, and go through the data together."""

    @abc.abstractmethod
    def solve(self, refit: Refit, fits: Regulariser, start: Float[Tensor, "f d"]) -> Refitted:
        """Minimise each objective.

        Args:
            refit: The objectives.
            fits: What each is rewarded for.
            start: δ to start from.
        """

    @abc.abstractmethod
    def step(self, dtype: torch.dtype) -> float:
        """How far a fit should move the weights, in posterior standard deviations, for products in a dtype."""


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

    def solve(self, refit: Refit, fits: Regulariser, start: Float[Tensor, "f d"]) -> Refitted:
        """See ``Inner.solve``.

        Raises:
            NumericalError: If the Hessian is not positive definite.
        """
        rtol = self.rtol if self.rtol is not None else TOLERANCE.get(refit.network.like.dtype, 1e-2)
        reward, changes = refit.reward(fits), start.clone()
        residual = torch.where(start.any(1) & refit.centred, 1.0, math.inf).to(start)
        which = torch.arange(len(fits), device=start.device)
        for _ in range(self.steps):
            gradient = refit.slopes(fits.take(which), changes[which])[0]
            step = self.directions(refit, -gradient)
            whole = (reward[which] * (changes[which] + step)).sum(1)
            length = (-gradient * step).sum(1).clamp(min=0).sqrt() / whole.clamp(min=1e-300).sqrt()
            shorter = length < CONTRACTS * residual[which]
            kept = which[shorter]
            changes[kept] += step[shorter]
            residual[kept] = length[shorter]
            which = kept[length[shorter] > rtol]
            if not len(which):
                break
        return Refitted(changes, residual)

    def directions(self, refit: Refit, sides: Float[Tensor, "f d"]) -> Float[Tensor, "f d"]:
        """``P⁻¹ v`` of each v, as one block of systems.

        Raises:
            NumericalError: If the Hessian is not positive definite.
        """
        like = refit.network.like
        rtol = FORCING.get(like.dtype, 1e-3)
        rounded = "model.double() and data in float64, should rounding be the cause; "
        try:
            solution = conjugate_gradients(
                refit.precision, sides.mT.to(like), rtol=rtol, max_iterations=self.max_iterations
            )
        except NumericalError as reason:
            raise NumericalError(
                "a Hessian of loss and prior that is positive definite at the trained weights",
                reason.got,
                "training on, with this prior and to convergence; a larger prior precision; "
                f"{'' if like.dtype == torch.float64 else rounded}or lw.Laplace, whose GGN has no negative curvature",
            ) from reason
        return solution.value.mT.double()
