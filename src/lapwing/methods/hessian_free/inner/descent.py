"""The user's own optimiser, on mini-batches in one order for all fits."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias, final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.errors import ConfigError, check_count
from lapwing.methods.hessian_free.inner.base import Inner, Refitted
from lapwing.methods.hessian_free.refit import Fits, Refit

Optimiser: TypeAlias = Callable[[Iterable[Tensor]], torch.optim.Optimizer]
"""Makes an optimiser of some parameters."""


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

    optimiser: Optimiser = adam
    epochs: int = 1000
    decay: bool = True

    def __post_init__(self) -> None:
        check_count("epochs", self.epochs)
        if not callable(self.optimiser):
            raise ConfigError(
                "optimiser= to be a callable that takes parameters and returns an optimiser",
                f"{type(self.optimiser).__name__} {self.optimiser!r:.40}",
                "Descent(lambda parameters: torch.optim.SGD(parameters, lr=1e-2))",
            )

    def step(self, dtype: torch.dtype) -> float:
        """See ``Inner.step``."""
        return 5e-2

    def solve(self, refit: Refit, fits: Fits, start: Float[Tensor, "f d"]) -> Refitted:
        """See ``Inner.solve``."""
        reward = (fits.scales[:, None] * refit.reward(fits)).norm(dim=1).clamp(min=1e-300)
        leaves = [_leaves(refit, change) for change in start]
        optimisers = [self.optimiser(own) for own in leaves]
        steps = self.epochs * sum(1 for _ in refit.batches)
        schedules = [torch.optim.lr_scheduler.CosineAnnealingLR(each, steps) for each in optimisers]
        for _ in range(self.epochs):
            refit.passes.add(len(fits))
            for batch in refit.batches:
                gradient = refit.sampled_slopes(fits, _flat(leaves), batch) / refit.examples
                for own, row, optimiser, schedule in zip(leaves, gradient, optimisers, schedules, strict=True):
                    for leaf, part in zip(own, row.split([leaf.numel() for leaf in own]), strict=True):
                        leaf.grad = part.view(leaf.shape)
                    optimiser.step()
                    if self.decay:
                        schedule.step()
        changes = _flat(leaves)
        left = refit.slopes(fits, changes)[0].norm(dim=1) / reward
        return Refitted(changes, left, (self.epochs + 1) * len(fits), 0)


def _leaves(refit: Refit, change: Float[Tensor, " d"]) -> list[Tensor]:
    """δ of one fit as parameters of the shapes they have in the network."""
    values = refit.network.uncertain.unflatten(change)
    return [value.clone().requires_grad_() for value in values.values()]


def _flat(leaves: list[list[Tensor]]) -> Float[Tensor, "f d"]:
    return torch.stack([torch.cat([leaf.detach().flatten() for leaf in own]) for own in leaves])
