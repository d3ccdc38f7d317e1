"""Inner solvers by gradients alone: a quasi-Newton method, and the user's own optimiser on mini-batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lapwing.ground.errors import check_count, check_optimiser, check_positive
from lapwing.ground.ranks import check_alike
from lapwing.methods.hessian_free.inner import Inner, Refitted
from lapwing.methods.hessian_free.refit import Refit
from lapwing.methods.hessian_free.regularisers import Regulariser


@final
@dataclass(frozen=True)
class LBFGS(Inner):
    """Limited-memory quasi-Newton steps with a line search, over all the data, one fit after the other.

    The line search compares losses: a fit that lowers a loss of L nats by less than ``ε L`` is not found. Use it for
    networks in float64.

    Args:
        rtol: Largest entry of the gradient, relative to that of ``λ ∇r``, at which a fit is done.
        iterations: Most iterations of a fit.
        memory: Pairs kept.

    Raises:
        ConfigError: If a number is not positive.

    Cost:
        About one gradient an iteration; ``2 d memory`` numbers.

    Example:
        >>> LBFGS(iterations=200)
        LBFGS(rtol=1e-05, iterations=200, memory=30)
    """

    rtol: float = 1e-5
    iterations: int = 2000
    memory: int = 30

    def __post_init__(self) -> None:
        check_positive("rtol", self.rtol)
        check_count("iterations", self.iterations)
        check_count("memory", self.memory)

    def step(self, dtype: torch.dtype) -> float:
        """See ``Inner.step``."""
        return 1e-2 if dtype == torch.float64 else 1e-1

    def solve(self, refit: Refit, fits: Regulariser, start: Float[Tensor, "f d"]) -> Refitted:
        """See ``Inner.solve``."""
        reward = refit.reward(fits)
        ones = torch.arange(len(fits), device=start.device).split(1)
        changes = torch.cat([self._one(refit, fits.take(one), start[one], reward[one]) for one in ones])
        left = refit.slopes(fits, changes)[0].abs().amax(1) / reward.abs().amax(1).clamp(min=1e-300)
        return Refitted(changes, left)

    def _one(
        self, refit: Refit, fit: Regulariser, start: Float[Tensor, "1 d"], reward: Float[Tensor, "1 d"]
    ) -> Float[Tensor, "1 d"]:
        """One fit. Changes are measured in prior standard deviations, losses from the start's."""
        unit = refit.prior.rsqrt()
        z, base = start / unit, refit.slopes(fit, start)[1]
        optimiser = torch.optim.LBFGS(
            [z],
            max_iter=self.iterations,
            max_eval=2 * self.iterations,
            tolerance_grad=self.rtol * float((reward * unit).abs().max()),
            tolerance_change=0.0,
            history_size=self.memory,
            line_search_fn="strong_wolfe",
        )

        def loss() -> float:
            gradient, value = refit.slopes(fit, z * unit)
            z.grad = gradient * unit
            return float(value - base)

        optimiser.step(loss)
        return z * unit


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
        layout, data = refit.network.uncertain, refit.model.data
        leaves = [nn.ParameterList(layout.unflatten(change.clone()).values()) for change in start]
        optimisers = [self.optimiser(own.parameters()) for own in leaves]
        batches = sum(1 for _ in data)
        check_alike(data.shared, batches, "number of mini-batches", "another batch_size=, or drop_last=True")
        schedules = [torch.optim.lr_scheduler.CosineAnnealingLR(each, self.epochs * batches) for each in optimisers]
        for _ in range(self.epochs):
            refit.work.add(gradients=len(fits))
            for batch in data:
                gradient = refit.slopes(fits, _flat(leaves), batch)[0] / data.span[1]
                for own, row, optimiser, schedule in zip(leaves, gradient, optimisers, schedules, strict=True):
                    for leaf, part in zip(own, layout.unflatten(row).values(), strict=True):
                        leaf.grad = part
                    optimiser.step()
                    if self.decay:
                        schedule.step()
        changes, reward = _flat(leaves), refit.reward(fits).norm(dim=1)
        return Refitted(changes, refit.slopes(fits, changes)[0].norm(dim=1) / reward.clamp(min=1e-300))


def _flat(leaves: list[nn.ParameterList]) -> Float[Tensor, "f d"]:
    return torch.stack([nn.utils.parameters_to_vector(own).detach() for own in leaves])
