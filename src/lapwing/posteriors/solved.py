"""Posteriors whose precision is solved with and never held; of them the one that solves for every answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar, final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground import probes
from lapwing.ground.data.inputs import Inputs, InputsLike, chunks, count
from lapwing.ground.distributed import check_alike
from lapwing.ground.errors import ConvergenceWarning, NumericalError, finite_evidence, warn
from lapwing.ground.files.records import checksum
from lapwing.ground.progress import track, working
from lapwing.ground.results import Estimate, Solution, joined
from lapwing.jacobian.layers.factors import jacobian_rows
from lapwing.jacobian.network.modes import undisturbed
from lapwing.likelihoods import Likelihood
from lapwing.likelihoods.base import identity_cotangents
from lapwing.linalg import Diagonal, Operator
from lapwing.linalg.log_determinant import log_determinant
from lapwing.linear.problem import Problem
from lapwing.linear.solvers import Root, Solver
from lapwing.posteriors.base import Posterior
from lapwing.posteriors.dimension import Step
from lapwing.predictive import JointMoments, Moments
from lapwing.priors import Prior

BUDGET = 2**27
"""Bytes the Jacobian rows of one solve may take (128 MiB)."""

LOST = 0.5
"""Relative residual beyond which a solve says nothing."""

S = TypeVar("S", bound="SolvedWeights")


@dataclass(frozen=True, eq=False, repr=False)
class SolvedWeights(Posterior):
    """A Gaussian over the weights with precision Λ = s G + A, known by products alone.

    Args:
        solver: What solves with Λ.
    """

    solver: Solver

    @cached_property
    def problem(self) -> Problem:
        """The Gaussian linear model behind the posterior."""
        return Problem.of(self.training, Diagonal(self.prior_diagonal.to(self.network.like)), self.noise_scale)

    @property
    def precision_operator(self) -> Operator:
        """The posterior precision Λ as an operator."""
        return self.problem.precision

    def with_choices(self: S, prior: Prior, likelihood: Likelihood, steps: tuple[Step, ...] = ()) -> S:
        """See ``Posterior.with_choices``; what products keep of the data is shared."""
        changed = super().with_choices(prior, likelihood, steps)
        if "problem" in vars(self):
            operator = Diagonal(changed.prior_diagonal.to(self.network.like))
            vars(changed)["problem"] = self.problem.with_prior(operator, changed.noise_scale)
        return changed

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


@final
@dataclass(frozen=True, eq=False)
class SolvedMoments:
    """Linearised outputs that came from solves, with how well those were solved.

    Args:
        moments: Mean and covariance of each example.
        residual: Relative residual of the solve for each output.
        solution: Iterations and products of all solves; its value is left out.
    """

    moments: Moments
    residual: Float[Tensor, "n *event c"]
    solution: Solution


@final
@dataclass(frozen=True, eq=False, repr=False)
class MatrixFreePosterior(SolvedWeights):
    """N(θ*, Λ⁻¹) with Λ = s G + A never written down: every answer is a solve, every solve a few products.

    Args:
        solver: What solves with Λ.
        sqrt: What draws from N(0, Λ⁻¹).
    """

    sqrt: Root

    @working("solve")
    def solve(self, b: Float[Tensor, "d *k"]) -> Solution:
        """``Λ⁻¹ b`` with its residual."""
        with torch.no_grad():
            return self.solver.solve(self.problem, b)

    @working("sample")
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
        warn_unless(drawn, self.sqrt.cure_with(self.solver))
        return self.network.weights + drawn.value.mT

    @working("draws")
    def draw(self, samples: int = 1, *, generator: torch.Generator | None = None) -> Solution:
        """Draws of the weights' deviation from θ*, one a column, with what they cost."""
        probes.check_draws(samples, generator)
        with torch.no_grad():
            return self.sqrt.draw(self.problem, self.solver, samples, generator=generator)

    @working("log determinant")
    def log_det(self, samples: int = 32, *, steps: int = 100, generator: torch.Generator | None = None) -> Estimate:
        """``log det Λ`` by stochastic Lanczos quadrature, with the solver's preconditioner.

        Args:
            samples: Probes.
            steps: Most Lanczos steps, one product each.
            generator: Source of randomness.
        """
        with torch.no_grad():
            prepared = self.solver.preconditioner_of(self.problem)
            return log_determinant(
                self.problem.precision, samples=samples, steps=steps, preconditioner=prepared, generator=generator
            )

    @undisturbed()
    @working("evidence")
    def log_marginal(
        self, samples: int = 32, *, steps: int = 100, generator: torch.Generator | None = None
    ) -> Estimate:
        """Log evidence, nats, with the standard error of its log determinant; see ``Posterior.log_marginal``.

        Args:
            samples: Probes.
            steps: Most Lanczos steps, one product each.
            generator: Source of randomness.
        """
        whole = self.log_det(samples, steps=steps, generator=generator)
        return self._log_marginal(replace(whole, value=whole.value - float(self.problem.prior.logdet())))

    @undisturbed()
    @working("effective dimension")
    def effective_dimension(self, samples: int = 32, *, generator: torch.Generator | None = None) -> Estimate:
        """``γ = tr(s G Λ⁻¹) = E[bᵀ Λ⁻¹ b]`` over ``b ~ N(0, s G)``, with its standard error.

        Args:
            samples: Probes.
            generator: Source of randomness.

        Raises:
            NumericalError: If rounding keeps the solves from getting anywhere.
        """
        like = self.network.like
        noise = probes.rademacher((self.problem.root.shape[1], samples), like=like, generator=generator)
        with torch.no_grad():
            b = self.problem.scale**0.5 * (self.problem.root @ noise)
        solution = self.solve(b)
        worst = float(solution.residual.max())
        if solution.stopped in ("stagnated", "breakdown") and worst > LOST:
            raise NumericalError(
                "solves that come nearer to their solution, for an effective dimension",
                f"a relative residual of {worst:.2g} where rounding stopped them",
                "a larger prior precision" if solution.value.dtype == torch.float64 else "float64",
            )
        warn_unless(solution, self.solver.cure)
        return Estimate.of((b.double() * solution.value.double()).sum(0))

    @working("predict")
    def solved_outputs(self, x: InputsLike) -> SolvedMoments:
        """Linearised outputs ``f ~ N(f(x), J Λ⁻¹ Jᵀ)`` by a solve against every row of J, with the residuals.

        Args:
            x: Inputs of n examples.

        Cost:
            A block solve for every ``BUDGET`` bytes of Jacobian rows; memory that and the solver's.
        """
        means, covariances, solutions = [], [], []
        with torch.no_grad():
            for f, rows, solution in self._solves(self._inputs(x)):
                solved = solution.value.mT.view(rows.shape)
                covariance = torch.stack([j.double() @ x.double().mT for j, x in zip(rows, solved, strict=True)])
                means.append(f)
                covariances.append(((covariance + covariance.mT) / 2).to(f).view(*f.shape, f.shape[-1]))
                solutions.append(replace(solution, value=solution.value[:0]))
        mean, whole = torch.cat(means), joined(solutions)
        return SolvedMoments(Moments(mean, torch.cat(covariances)), whole.residual.view(mean.shape), whole)

    def _solves(self, inputs: Inputs) -> Iterator[tuple[Float[Tensor, "n *event c"], Float[Tensor, "m c d"], Solution]]:
        """Outputs, explicit Jacobian rows of as many examples as the budget holds, and a solve against these."""
        if self.training.data.shared:
            check_alike(True, checksum(inputs), "inputs to be predicted by solves")
        size = max(1, BUDGET // (self.model.width * self.network.layout.size * self.network.like.itemsize))
        pieces = -(-count(inputs) // size)
        for _, part in track(chunks(inputs, size), "solves for predictions", pieces, unit="pieces"):
            forward = self.model.forward(part)
            f = forward.outputs
            positions = [
                jacobian_rows(self.network, forward.factors(cotangents)) for cotangents in identity_cotangents(f)
            ]
            rows = torch.stack(positions, dim=1).flatten(0, 1)
            yield f, rows, self.solve(rows.flatten(0, -2).mT)

    def _moments(self, inputs: Inputs, choices: Sequence[MatrixFreePosterior]) -> list[Moments]:
        solved = [choice.solved_outputs(inputs) for choice in choices]
        for outputs in solved:
            warn_unless(outputs.solution, self.solver.cure)
        return [outputs.moments for outputs in solved]

    def _joint_moments(self, inputs: Inputs) -> JointMoments:
        """A block solve for every ``BUDGET`` bytes of Jacobian rows, and a product of J with its solutions."""
        columns, solutions = [], []
        for _, _, solution in self._solves(inputs):
            columns.append(self.pushed(inputs, solution.value)[1].flatten(0, -2))
            solutions.append(replace(solution, value=solution.value[:0]))
        warn_unless(joined(solutions), self.solver.cure)
        mean, covariance = self.model.outputs(inputs), torch.cat(columns, dim=1)
        return JointMoments(mean, ((covariance + covariance.mT) / 2).to(mean).view(*mean.shape, *mean.shape))
