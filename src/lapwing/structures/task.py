"""What every structure is given to compute a posterior from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch

from lapwing.curvature.ggn import GGN, Curvature, EmpiricalFisher
from lapwing.curvature.sums import Accumulator, Held, Tally, Totals, chunk_size, sweep, visit
from lapwing.ground.data import Data
from lapwing.ground.errors import UnsupportedError
from lapwing.jacobian.layers.layers import Survey
from lapwing.jacobian.network.network import Network
from lapwing.likelihoods import Likelihood
from lapwing.linear.problem import Training
from lapwing.posteriors import Step, WeightPosterior
from lapwing.priors import Prior


@final
@dataclass(frozen=True, eq=False)
class Task:
    """Everything a structure needs to compute a posterior."""

    network: Network
    survey: Survey
    data: Data
    likelihood: Likelihood
    prior: Prior
    curvature: Curvature
    generator: torch.Generator | None

    def summed(self, total: Accumulator) -> WeightPosterior:
        """A posterior over the weights from one sweep over the data."""
        setting = (self.network, self.survey, self.data, self.likelihood, self.curvature)
        totals = sweep(*setting, total, generator=self.generator)
        return self.posterior(totals, total.result())

    def totals(self) -> Totals:
        """Sums over the data at the trained weights, from one pass of forward passes."""
        tally = Tally(self.likelihood)
        size = chunk_size(self.network, self.survey, self.likelihood, self.curvature)
        for forward, f, y in visit(self.network, self.survey, self.data, self.likelihood, size):
            tally.add(forward, f, y)
        return tally.totals()

    def posterior(self, totals: Totals, held: Held) -> WeightPosterior:
        """The posterior over the weights with this curvature."""
        return WeightPosterior(*self.common(totals), held, data=self.data, noise_fixed=self.noise_fixed)

    def common(self, totals: Totals) -> tuple[Network, Survey, Likelihood, Prior, Totals, Likelihood, tuple[Step, ...]]:
        """What every posterior starts with, in order; the likelihood comes twice, as it is and as it was fitted."""
        return self.network, self.survey, self.likelihood, self.prior, totals, self.likelihood, ()

    @property
    def noise_fixed(self) -> bool:
        """See ``Posterior``."""
        return isinstance(self.curvature, EmpiricalFisher)

    def training(self, examples: int) -> Training:
        """What a posterior remembers of its training."""
        return Training(self.network, self.survey, self.data, self.likelihood, examples)


def check_products(task: Task) -> None:
    """Refuse a curvature whose products are not those of the generalised Gauss-Newton matrix.

    Raises:
        UnsupportedError: If it is another.
    """
    if not isinstance(task.curvature, GGN):
        raise UnsupportedError(
            "the generalised Gauss-Newton matrix for products", f"{task.curvature}", "curvature=GGN()"
        )
