"""What expectation maximisation by draws can tune: the posterior of any Gaussian linear model that is solved with."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from lapwing.curvature.fold import Totals
from lapwing.likelihoods import Likelihood
from lapwing.linear.model import LinearModel
from lapwing.linear.problem import Problem
from lapwing.linear.solvers import Solver
from lapwing.posteriors import Step
from lapwing.priors import Prior


@runtime_checkable
class Solved(Protocol):
    """What expectation by draws asks of a posterior: that of a network solved with, or of any Gaussian linear model."""

    @property
    def prior(self) -> Prior:
        """p(θ)."""
        ...

    @property
    def fitted(self) -> Likelihood:
        """The likelihood G was computed with."""
        ...

    @property
    def likelihood(self) -> Likelihood:
        """The likelihood now."""
        ...

    @property
    def totals(self) -> Totals:
        """Sums over the data at the weights where the model was made linear."""
        ...

    @property
    def training(self) -> LinearModel:
        """The linear model with its data."""
        ...

    @property
    def problem(self) -> Problem:
        """The linear model under the prior and the noise."""
        ...

    @property
    def solver(self) -> Solver:
        """What solves with Λ."""
        ...

    @property
    def prior_precisions(self) -> Float[Tensor, " g"]:
        """Prior precision of each group, float64."""
        ...

    @property
    def noise_scale(self) -> float:
        """Noise precision relative to the fitted one."""
        ...

    def with_choices(self, prior: Prior, likelihood: Likelihood, steps: tuple[Step, ...] = ()) -> Solved:
        """The posterior with another prior and noise."""
        ...
