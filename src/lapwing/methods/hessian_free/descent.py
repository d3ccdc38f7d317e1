"""An inner solver by gradients alone: the user's own optimiser on mini-batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lapwing.ground.errors import check_count, check_optimiser
from lapwing.ground.ranks import check_alike
from lapwing.methods.hessian_free.inner import Inner, Refitted
from lapwing.methods.hessian_free.refit import Refit
from lapwing.methods.hessian_free.regularisers import Regulariser


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
