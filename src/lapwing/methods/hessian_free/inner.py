"""What finds the minimum of the perturbed objectives: Newton's method, or the user's own optimiser on mini-batches."""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lapwing.ground.distributed import check_alike
from lapwing.ground.errors import NumericalError, check_count, check_optimiser, check_positive
from lapwing.ground.precision import wide
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

    @property
    def newton(self) -> NewtonCG | None:
        """What solves with the Hessian at the trained weights, where it is one that does."""
        return None

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
    """``δ ← δ − P⁻¹ ∇L_f(θ̂ + δ)`` with the exact Hessian P at the trained weights, by products.

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
        gradients; from the second step on the same for what is left. The Hessian of at most 128 weights is written out
        once, in as many products as there are weights.

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

    @property
    def newton(self) -> NewtonCG:
        """See ``Inner.newton``."""
        return self

    def step(self, dtype: torch.dtype) -> float:
        """See ``Inner.step``."""
        return 1e-6 if dtype == torch.float64 else 3e-2

    def solve(self, refit: Refit, fits: Regulariser, start: Float[Tensor, "f d"]) -> Refitted:
        """See ``Inner.solve``.

        Raises:
            NumericalError: If the Hessian is not positive definite.
        """
        rtol = self.rtol if self.rtol is not None else TOLERANCE.get(refit.network.like.dtype, 1e-2)
        reward = refit.reward(fits)
        changes = start.clone()
        residual = torch.where(start.any(1) & refit.centred, 1.0, math.inf).to(start)
        which = torch.arange(len(fits), device=start.device)
        for _ in range(self.steps):
            gradient = refit.slopes(fits.take(which), changes[which])
            step = self.directions(refit, -gradient)
            whole = (reward[which] * (changes[which] + step)).sum(1)
            length = (-gradient * step).sum(1).clamp(min=0).sqrt() / whole.clamp(min=1e-300).sqrt()
            shorter = length < CONTRACTS * residual[which]
            improved = which[shorter]
            changes[improved] += step[shorter]
            residual[improved] = length[shorter]
            which = improved[length[shorter] > rtol]
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
        return wide(solution.value.mT)


def adam(parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
    """The source's: Adam with learning rate 0.005."""
    return torch.optim.Adam(parameters, lr=5e-3)


@final
@dataclass(frozen=True)
class Descent(Inner):
    """Mini-batch descent by an optimiser of your own, one for each fit, all on the same mini-batches in turn.

    The objective is the mean over examples, as in the source's equation 21: ``-1/b Σ log p(y_i | f_i) + (½ θᵀAθ − λ r)
    / n``, so that learning rates are those of training. The optimiser moves the change ``δ = θ - θ̂``; it must not decay
    weights, as the prior is in the objective.

    Args:
        optimiser: Makes the optimiser of some parameters, such as ``lambda p: torch.optim.SGD(p, lr=0.1)``.
        epochs: Passes over the data.
        decay: Whether learning rates fall to zero along a cosine.

    Raises:
        ConfigError: If the epochs are not positive, or the optimiser is not a callable.

    Cost:
        An epoch: two passes over the data for each fit, and as many passes over the evaluation points as there are
        mini-batches.

    Example:
        >>> Descent(lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), epochs=50).epochs
        50
    """

    optimiser: Callable[[Iterable[Tensor]], torch.optim.Optimizer] = adam
    epochs: int = 1000
    decay: bool = True

    def __post_init__(self) -> None:
        check_count("epochs", self.epochs)
        check_optimiser(self.optimiser, "Descent(lambda parameters: torch.optim.SGD(parameters, lr=1e-2))")

    def step(self, dtype: torch.dtype) -> float:
        """See ``Inner.step``."""
        return 5e-2

    def solve(self, refit: Refit, fits: Regulariser, start: Float[Tensor, "f d"]) -> Refitted:
        """See ``Inner.solve``."""
        layout = refit.network.uncertain
        data = refit.model.data
        leaves = [nn.ParameterList(layout.unflatten(change.clone()).values()) for change in start]
        optimisers = [self.optimiser(own.parameters()) for own in leaves]
        batches = sum(1 for _ in data)
        check_alike(data.shared, batches, "number of mini-batches", "another batch_size=, or drop_last=True")
        schedules = [torch.optim.lr_scheduler.CosineAnnealingLR(each, self.epochs * batches) for each in optimisers]
        for _ in range(self.epochs):
            refit.work.add(gradients=len(fits))
            for batch in data:
                gradient = refit.slopes(fits, _flat(leaves), batch) / data.span[1]
                for own, row, optimiser, schedule in zip(leaves, gradient, optimisers, schedules, strict=True):
                    for leaf, part in zip(own, layout.unflatten(row).values(), strict=True):
                        leaf.grad = part
                    optimiser.step()
                    if self.decay:
                        schedule.step()
        changes = _flat(leaves)
        reward = refit.reward(fits).norm(dim=1)
        return Refitted(changes, refit.slopes(fits, changes).norm(dim=1) / reward.clamp(min=1e-300))


def _flat(leaves: list[nn.ParameterList]) -> Float[Tensor, "f d"]:
    return torch.stack([nn.utils.parameters_to_vector(own).detach() for own in leaves])
