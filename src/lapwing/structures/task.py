"""What every structure is given to compute a posterior from, and the prior that takes its scale from the curvature."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar, final

import torch

from lapwing.curvature.fold import Fold, Totals
from lapwing.curvature.ggn import GGN, Curvature, EmpiricalFisher, Noise
from lapwing.curvature.sums import Accumulator, DiagonalSum, chunk_size, sweep
from lapwing.ground.errors import UnsupportedError
from lapwing.jacobian.model import Model
from lapwing.posteriors import Posterior, WeightPosterior
from lapwing.priors import GPrior, Prior

P = TypeVar("P", bound=Posterior)


@final
@dataclass(frozen=True, eq=False)
class Task:
    """Everything a structure needs to compute a posterior."""

    model: Model
    prior: Prior
    curvature: Curvature
    generator: torch.Generator | None

    def summed(self, total: Accumulator) -> WeightPosterior:
        """A posterior over the weights from one sweep over the data."""
        totals = sweep(self.model, self.curvature, total, generator=self.generator)
        return self.posterior(WeightPosterior, totals, total.result())

    def totals(self) -> Totals:
        """Sums over the data at the trained weights, from one pass of forward passes."""
        return Fold(self.model, chunk_size(self.model, self.curvature), graph=False).totals()

    def posterior(self, kind: Callable[..., P], totals: Totals, *own: Any) -> P:
        """A posterior of this kind, with what it alone holds."""
        fixed = isinstance(self.curvature, EmpiricalFisher)
        return kind(self.model, self.prior, totals, *own, likelihood=self.model.likelihood, noise_fixed=fixed)


def check_products(task: Task) -> None:
    """Refuse a curvature whose products are not those of the generalised Gauss-Newton matrix.

    Raises:
        UnsupportedError: If it is another.
    """
    if not isinstance(task.curvature, GGN):
        raise UnsupportedError(
            "the generalised Gauss-Newton matrix for products", f"{task.curvature}", "curvature=GGN()"
        )


def scaled(task: Task) -> Task:
    """The task with a prior that knows its scale: diag(M), exact from layer factors or from noise.

    A prior that knows it already, or has none, stays as it is.

    Cost:
        A sweep over the data, with a backward pass for each output, or each sample of the prior.
    """
    prior = task.prior
    if not isinstance(prior, GPrior) or prior.scale is not None:
        return task
    total = DiagonalSum(task.model.network)
    curvature = GGN() if prior.samples is None else Noise(prior.samples)
    sweep(task.model, curvature, total, generator=task.generator)
    return replace(task, prior=prior.scaled_by(total.result().operator.diagonal(), task.model.network.uncertain))
