"""Posteriors over the weights whose precision is solved with and never held."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import torch

from lapwing.ground.errors import ConvergenceWarning, warn
from lapwing.ground.results import Solution
from lapwing.linalg import Operator
from lapwing.linear.problem import Problem
from lapwing.linear.solvers import Solver
from lapwing.posteriors.sampled import SampledWeights

S = TypeVar("S", bound="SolvedWeights")


@dataclass(frozen=True, eq=False, repr=False)
class SolvedWeights(SampledWeights):
    """A Gaussian over the weights with precision Λ = s G + A, known by products alone.

    Args:
        solver: What solves with Λ.
    """

    solver: Solver

    @cached_property
    def problem(self) -> Problem:
        """The Gaussian linear model behind the posterior."""
        prior = self.prior.operator(self.network.uncertain, self.network.like)
        return Problem.of(self.training, prior, self.noise_scale)

    @property
    def precision_operator(self) -> Operator:
        """The posterior precision Λ as an operator."""
        return self.problem.precision

    def handed_to(self, changed: S) -> S:
        """The same posterior with another prior or noise, given what products keep of the data."""
        if "problem" in self.__dict__:
            prior = changed.prior.operator(self.network.uncertain, self.network.like)
            object.__setattr__(changed, "problem", self.problem.with_prior(prior, changed.noise_scale))
        return changed


def warn_unless(solution: Solution, cure: str) -> None:
    """Warn where solves missed their tolerance: how far they got, and what helps."""
    if solution.converged:
        return
    if solution.stopped == "stagnated" and solution.value.dtype != torch.float64:
        cure = "float64: rounding in the products lets it go no further"
    warn(
        f"a solve with the posterior precision stopped at a relative residual of {float(solution.residual.max()):.1e}, "
        "above its tolerance; the error of a variance is usually far smaller, that of single weights may not be. "
        f"Try {cure}",
        ConvergenceWarning,
    )
