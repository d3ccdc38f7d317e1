"""Posteriors whose precision is known by products alone, and solved with."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import torch

from lapwing.ground.errors import ConvergenceWarning, NumericalError, finite_evidence, warn
from lapwing.ground.files.records import UNRECORDED
from lapwing.ground.results import Estimate, Solution
from lapwing.ground.shared import Shared
from lapwing.linalg import Diagonal, Operator
from lapwing.linear.problem import Problem
from lapwing.linear.solvers import Solver
from lapwing.posteriors.base import Posterior
from lapwing.posteriors.capabilities import LinearSystem


@dataclass(frozen=True, eq=False, repr=False)
class IterativePosterior(Posterior):
    """A Gaussian over the weights with precision Λ = s G + A, known by products alone.

    Args:
        solver: What solves with Λ.
        latest_problem: The problem of the posterior that asked last. Those under other priors and noises are made from
            it: what products keep of the data and approximations of the curvature serve all of them.
    """

    solver: Solver
    latest_problem: Shared[Problem] = field(default_factory=Shared[Problem], kw_only=True, metadata=UNRECORDED)

    @cached_property
    def problem(self) -> Problem:
        """The Gaussian linear model behind the posterior."""
        prior = Diagonal(self.prior_diagonal.to(self.network.like))
        before = self.latest_problem.known(self.model)
        if before is None:
            problem = Problem.of(self.training, prior, self.noise_scale)
        elif before.scale == self.noise_scale and torch.equal(before.prior.values, prior.values):
            problem = before
        else:
            problem = before.with_prior(prior, self.noise_scale)
        return self.latest_problem.replaced(problem, self.model)

    @property
    def system(self) -> LinearSystem:
        """See ``Capabilities.system``."""
        return LinearSystem(self.problem, self.solver)

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
