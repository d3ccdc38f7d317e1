"""Posteriors whose precision is known by products alone, and solved with."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import final

import torch

from lapwing.ground.errors import ConvergenceWarning, NumericalError, finite_evidence, warn
from lapwing.ground.results import Estimate, Solution
from lapwing.jacobian.model import Model
from lapwing.jacobian.products.linearisation import Linearisation
from lapwing.linalg import Diagonal, Operator
from lapwing.linear.problem import Problem
from lapwing.linear.solvers import Solver
from lapwing.posteriors.base import Posterior


@final
class DataProblem:
    """The Gaussian linear model of some data as the posteriors under several priors and noises share it.

    Each has a problem of its own, made from that of the posterior that asked before: what products keep of the data and
    approximations of the curvature serve all of them.
    """

    def __init__(self) -> None:
        self._model: Model | None = None
        self._latest: Problem | None = None

    def __reduce__(self) -> tuple[type[DataProblem], tuple[()]]:
        """What pickle and ``copy`` take: nothing; it is computed again."""
        return DataProblem, ()

    def under(self, linearised: Linearisation, prior: Diagonal, scale: float) -> Problem:
        """The problem under a prior and noise.

        Args:
            linearised: The network made linear, with the data.
            prior: A.
            scale: Noise precision relative to the one the curvature is computed with.
        """
        before = self._latest
        if before is None or self._model is not linearised.model:
            problem = Problem.of(linearised, prior, scale)
        elif before.scale == scale and torch.equal(before.prior.values, prior.values):
            problem = before
        else:
            problem = before.with_prior(prior, scale)
        self._model = linearised.model
        self._latest = problem
        return problem


@dataclass(frozen=True, eq=False, repr=False)
class IterativePosterior(Posterior):
    """A Gaussian over the weights with precision Λ = s G + A, known by products alone.

    Args:
        solver: What solves with Λ.
        data_problem: What is shared by the problems under all priors and noises.
    """

    solver: Solver
    data_problem: DataProblem = field(default_factory=DataProblem, kw_only=True)

    @cached_property
    def problem(self) -> Problem:
        """The Gaussian linear model behind the posterior."""
        prior = Diagonal(self.prior_diagonal.to(self.network.like))
        return self.data_problem.under(self.training, prior, self.noise_scale)

    @property
    def precision_operator(self) -> Operator:
        """The posterior precision Λ as an operator."""
        return self.problem.precision

    def _log_marginal(self, ratio: Estimate) -> Estimate:
        """The log evidence that is charged half of ``log det Λ / det A``."""
        joint = self.joint_evidence.log_joint(self.prior_precisions, self.scale)
        value = finite_evidence(float(joint) - 0.5 * ratio.value)
        return Estimate(value, 0.5 * ratio.stderr, ratio.samples)


def warn_unless(solution: Solution, cure: str) -> None:
    """Warn where solves missed their tolerance: how far they got, and what helps.

    Raises:
        NumericalError: If one got nowhere: 0 in place of its answer would say that nothing is uncertain.
    """
    if solution.converged:
        return
    residual = float(solution.residual.max())
    if residual >= 1 and not bool(solution.value.any(0).all()):
        expected = "a solve with the posterior precision that comes nearer than 0"
        raise NumericalError(expected, f"a relative residual of {residual:.1e}", "float64, or a larger prior precision")
    if solution.stopped == "stagnated" and solution.value.dtype != torch.float64:
        cure = "float64: rounding in the products lets it go no further"
    warn(
        f"a solve with the posterior precision stopped after {solution.iterations} steps at {solution.distance}, "
        "above its tolerance; the error of a variance is usually far smaller, that of single weights may not be. "
        f"Try {cure}",
        ConvergenceWarning,
    )
