"""A Gaussian over the weights whose precision is touched through products alone."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing import probes
from lapwing.curvature.dense import jacobian_rows
from lapwing.curvature.ggn import identity_cotangents
from lapwing.curvature.layers import Pass
from lapwing.curvature.sums import raw
from lapwing.data import Data, chunks, count
from lapwing.errors import ConfigError, ConvergenceWarning
from lapwing.evidence import Known
from lapwing.linalg import Operator
from lapwing.linalg.logdet import log_determinant
from lapwing.posteriors.base import Posterior
from lapwing.posteriors.sampled import SampledWeights
from lapwing.predictive import JointMoments, Moments
from lapwing.problem import Problem, Training
from lapwing.results import Estimate, Solution
from lapwing.solvers import CG, Root, Solver
from lapwing.types import Inputs

BUDGET = 2**28
"""Bytes the Jacobian rows of one solve may take (256 MiB)."""


@final
@dataclass(frozen=True, eq=False)
class SolvedMoments:
    """Linearised outputs that came from solves, with how well those were solved.

    Args:
        moments: Mean and covariance of each example.
        residual: Relative residual of the solve for each output.
        iterations: Most iterations of a block.
        matvecs: Columns multiplied by Λ, in all.
        converged: Whether every solve met its tolerance.
    """

    moments: Moments
    residual: Float[Tensor, "n *event c"]
    iterations: int
    matvecs: int
    converged: bool


@final
@dataclass(frozen=True, eq=False, repr=False)
class MatrixFreePosterior(SampledWeights):
    """N(θ*, Λ⁻¹) with Λ = s G + A never written down: every answer is a solve, every solve a few products.

    Args:
        data: The training data, read again for every product.
        solver: What solves with Λ.
        sqrt: What draws from N(0, Λ⁻¹).
    """

    data: Data
    solver: Solver
    sqrt: Root

    @cached_property
    def problem(self) -> Problem:
        """The Gaussian linear model behind the posterior."""
        training = Training(self.network, self.survey, self.data, self.fitted, self.totals.examples)
        return Problem.of(training, self.prior.operator(self.network.uncertain, self.network.like), self.noise_scale)

    @property
    def precision_operator(self) -> Operator:
        """The posterior precision Λ as an operator."""
        return self.problem.precision

    def solve(self, b: Float[Tensor, "d *k"]) -> Solution:
        """``Λ⁻¹ b`` with its residual."""
        self.network.check_unchanged()
        with torch.no_grad():
            return self.solver.solve(self.problem, b)

    def sample(self, samples: int = 1, *, generator: torch.Generator | None = None) -> Float[Tensor, "s d"]:
        """Draws of the uncertain weights, one flat vector a row.

        Args:
            samples: Draws s.
            generator: Source of randomness.

        Warns:
            ConvergenceWarning: If the draws missed their tolerance.

        Cost:
            One product with a root of G and one solve, for all draws together; see ``sqrt``.
        """
        drawn = self.draw(samples, generator=generator)
        warn_unless(drawn.converged, drawn.residual)
        return self.network.weights + drawn.value.mT

    def draw(self, samples: int = 1, *, generator: torch.Generator | None = None) -> Solution:
        """Draws of the weights' deviation from θ*, one a column, with what they cost."""
        if samples < 1:
            raise ConfigError("at least one draw of the weights", f"samples={samples}", "samples=32")
        self.network.check_unchanged()
        with torch.no_grad():
            return self.sqrt.draw(self.problem, self.solver, samples, generator=generator)

    def log_det(self, samples: int = 32, *, steps: int = 100, generator: torch.Generator | None = None) -> Estimate:
        """``log det Λ`` by stochastic Lanczos quadrature, with the solver's preconditioner.

        Args:
            samples: Probes.
            steps: Most Lanczos steps, one product each.
            generator: Source of randomness.
        """
        prepared = self.solver.prepared(self.problem) if isinstance(self.solver, CG) else None
        with torch.no_grad():
            return log_determinant(
                self.problem.precision, samples=samples, steps=steps, preconditioner=prepared, generator=generator
            )

    def log_marginal(
        self, samples: int = 32, *, steps: int = 100, generator: torch.Generator | None = None
    ) -> Estimate:
        """Log evidence, nats, with the standard error of its log determinant; see ``Posterior.log_marginal``.

        Args:
            samples: Probes.
            steps: Most Lanczos steps, one product each.
            generator: Source of randomness.
        """
        log_det = self.log_det(samples, steps=steps, generator=generator)
        ratio = log_det.value - float(self.problem.prior.logdet())
        value = self._evidence(Known(ratio)).log_marginal(self.prior_precisions, self.scale)
        return Estimate(float(value), 0.5 * log_det.stderr, log_det.samples)

    def effective_dimension(self, samples: int = 32, *, generator: torch.Generator | None = None) -> Estimate:
        """``γ = tr(s G Λ⁻¹) = E[bᵀ Λ⁻¹ b]`` over ``b ~ N(0, s G)``, with its standard error.

        Args:
            samples: Probes.
            generator: Source of randomness.
        """
        like = self.network.like
        noise = probes.rademacher((self.problem.root.shape[1], samples), like=like, generator=generator)
        with torch.no_grad():
            b = self.problem.scale**0.5 * (self.problem.root @ noise)
        solution = self.solve(b)
        warn_unless(solution.converged, solution.residual)
        each = (b.double() * solution.value.double()).sum(0)
        stderr = float(each.std() / samples**0.5) if samples > 1 else float("inf")
        return Estimate(float(each.mean()), stderr, samples)

    def solved_outputs(self, x: Inputs) -> SolvedMoments:
        """Linearised outputs ``f ~ N(f(x), J Λ⁻¹ Jᵀ)`` by a solve against every row of J, with the residuals.

        Args:
            x: Inputs of n examples.

        Cost:
            A block solve for every ``BUDGET`` bytes of Jacobian rows; memory that and the solver's.
        """
        inputs = self._inputs(x)
        means, covariances, residuals, solutions = [], [], [], []
        with torch.no_grad():
            for f, rows in self._rows(inputs):
                solution = self.solve(rows.flatten(0, -2).mT)
                solved = solution.value.mT.view(rows.shape)
                covariance = rows.double() @ solved.mT.double()
                means.append(f)
                covariances.append(((covariance + covariance.mT) / 2).to(f).view(*f.shape, f.shape[-1]))
                residuals.append(solution.residual.view(f.shape))
                solutions.append(solution)
        return SolvedMoments(
            moments=Moments(torch.cat(means), torch.cat(covariances)),
            residual=torch.cat(residuals),
            iterations=max(solution.iterations for solution in solutions),
            matvecs=sum(solution.matvecs for solution in solutions),
            converged=all(solution.converged for solution in solutions),
        )

    def _rows(self, inputs: Inputs) -> Iterator[tuple[Float[Tensor, "n *event c"], Float[Tensor, "m c d"]]]:
        """Outputs and explicit Jacobian rows of as many examples as the budget holds."""
        outputs, like = self.survey.output.numel(), self.network.like
        size = max(1, BUDGET // (outputs * self.network.layout.size * like.element_size()))
        for _, part in chunks(inputs, min(size, count(inputs))):
            forward = Pass(self.network, self.survey, part)
            f = self.likelihood.canonical(forward.outputs)
            positions = [
                jacobian_rows(self.network, forward.factors(raw(self.likelihood, cotangents)))
                for cotangents in identity_cotangents(f)
            ]
            yield f, torch.stack(positions, dim=1).flatten(0, 1)

    def _moments(self, inputs: Inputs, choices: Sequence[Posterior]) -> list[Moments]:
        solved = [choice.solved_outputs(inputs) for choice in choices if isinstance(choice, MatrixFreePosterior)]
        for outputs in solved:
            warn_unless(outputs.converged, outputs.residual)
        return [outputs.moments for outputs in solved]

    def _joint_moments(self, inputs: Inputs) -> JointMoments:
        parts = list(self._rows(inputs))
        mean, rows = torch.cat([f for f, _ in parts]), torch.cat([rows.flatten(0, -2) for _, rows in parts])
        solution = self.solve(rows.mT)
        warn_unless(solution.converged, solution.residual)
        covariance = rows.double() @ solution.value.double()
        return JointMoments(mean, ((covariance + covariance.mT) / 2).to(mean).view(*mean.shape, *mean.shape))


def warn_unless(converged: bool, residual: Tensor) -> None:
    """Warn that solves missed their tolerance, and by how much."""
    if not converged:
        warnings.warn(
            f"a solve with the posterior precision stopped at a relative residual of {float(residual.max()):.1e}: "
            "variances and draws are only that accurate. Try a preconditioner such as "
            "CG(preconditioner=PivotedCholesky(100)), more iterations, or float64",
            ConvergenceWarning,
            stacklevel=3,
        )
