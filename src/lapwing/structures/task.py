"""What every structure is given to compute a posterior from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch

from lapwing.curvature.ggn import GGN, Curvature, EmpiricalFisher
from lapwing.curvature.sums import Accumulator, Held, Tally, Totals, chunk_size, sweep, visit
from lapwing.ground.errors import UnsupportedError
from lapwing.jacobian.layers.layers import Survey
from lapwing.jacobian.model import Model
from lapwing.jacobian.network.network import Network
from lapwing.likelihoods import Likelihood
from lapwing.posteriors import Step, WeightPosterior
from lapwing.priors import Prior


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
        return self.posterior(totals, total.result())

    def totals(self) -> Totals:
        """Sums over the data at the trained weights, from one pass of forward passes."""
        tally = Tally(self.model.likelihood)
        for forward, f, y in visit(self.model, chunk_size(self.model, self.curvature)):
            tally.add(forward, f, y)
        return tally.totals()

    def posterior(self, totals: Totals, held: Held) -> WeightPosterior:
        """The posterior over the weights with this curvature."""
        return WeightPosterior(*self.common(totals), held, data=self.model.data, noise_fixed=self.noise_fixed)

    def common(self, totals: Totals) -> tuple[Network, Survey, Likelihood, Prior, Totals, Likelihood, tuple[Step, ...]]:
        """What every posterior starts with, in order; the likelihood comes twice, as it is and as it was fitted."""
        model = self.model
        return model.network, model.survey, model.likelihood, self.prior, totals, model.likelihood, ()

    @property
    def noise_fixed(self) -> bool:
        """See ``Posterior``."""
        return isinstance(self.curvature, EmpiricalFisher)


def check_products(task: Task) -> None:
    """Refuse a curvature whose products are not those of the generalised Gauss-Newton matrix.

    Raises:
        UnsupportedError: If it is another.
    """
    if not isinstance(task.curvature, GGN):
        raise UnsupportedError(
            "the generalised Gauss-Newton matrix for products", f"{task.curvature}", "curvature=GGN()"
        )
