"""The posterior that is solved with for every answer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground import probes
from lapwing.ground.data.inputs import Inputs, InputsLike, chunks, count
from lapwing.ground.distributed import check_alike
from lapwing.ground.errors import NumericalError
from lapwing.ground.files.records import checksum
from lapwing.ground.precision import wide
from lapwing.ground.progress import track, working
from lapwing.ground.results import Estimate, Solution, joined_solutions
from lapwing.jacobian.layers.base import jacobian_rows
from lapwing.jacobian.live import head_places
from lapwing.jacobian.network.modes import undisturbed
from lapwing.likelihoods.base import identity_cotangents
from lapwing.linalg.log_determinant import log_determinant
from lapwing.linear.implicit_solve import implicit_solve
from lapwing.linear.solvers import Root
from lapwing.posteriors.iterative import IterativePosterior, warn_unless
from lapwing.predictive import JointMoments, Moments

LOST = 0.5
"""Relative residual beyond which a solve says nothing."""


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
class MatrixFreePosterior(IterativePosterior):
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
    def sample(self, samples: int = 1, *, generator: torch.Generator | int | None = None) -> Float[Tensor, "s d"]:
        """Draws of the uncertain weights, one flat vector a row.

        Args:
            samples: Draws s.
            generator: Source of randomness, or the seed of one; ``None`` draws from PyTorch's global one.

        Warns:
            ConvergenceWarning: If the draws missed their tolerance.

        Cost:
            One product with a root of G and one solve, for all draws together; see ``sqrt``.
        """
        drawn = self.draw(samples, generator=probes.generator_of(generator))
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
        return Estimate.of((wide(b) * wide(solution.value)).sum(0))

    @working("predict")
    def solved_outputs(self, x: InputsLike) -> SolvedMoments:
        """Linearised outputs ``f ~ N(f(x), J Λ⁻¹ Jᵀ)`` by a solve against every row of J, with the residuals.

        Args:
            x: Inputs of n examples.

        Cost:
            A block solve for every ``Limits.training`` bytes of Jacobian rows; memory that and the solver's.
        """
        means = list[Tensor]()
        covariances = list[Tensor]()
        solutions = list[Solution]()
        with torch.no_grad():
            for f, rows, solution in self._solves(self._inputs(x)):
                solved = solution.value.mT.view(rows.shape)  # Λ⁻¹ Jᵀ, one row for each of J
                products = [wide(j) @ wide(v).mT for j, v in zip(rows, solved, strict=True)]
                covariance = torch.stack(products)
                means.append(f)
                covariances.append(((covariance + covariance.mT) / 2).to(f).view(*f.shape, f.shape[-1]))
                solutions.append(replace(solution, value=solution.value[:0]))
        mean = torch.cat(means)
        effort = joined_solutions(solutions)
        return SolvedMoments(Moments(mean, torch.cat(covariances)), effort.residual.view(mean.shape), effort)

    def _solves(self, inputs: Inputs) -> Iterator[tuple[Float[Tensor, "n *event c"], Float[Tensor, "m c d"], Solution]]:
        """Outputs, explicit Jacobian rows of as many examples as the budget holds, and a solve against these."""
        if self.training.data.shared:
            check_alike(True, checksum(inputs), "inputs to be predicted by solves")
        bytes_of_one = self.model.width * self.network.layout.size * self.network.like.itemsize
        together = max(1, self.model.limits.training // bytes_of_one)
        pieces = math.ceil(count(inputs) / together)
        for _, part in track(chunks(inputs, together), "solves for predictions", pieces, unit="pieces"):
            forward = self.model.forward(part)
            f = forward.outputs
            at_positions = list[Tensor]()
            for cotangents in identity_cotangents(f):
                at_positions.append(jacobian_rows(self.network, forward.factors(cotangents)))
            rows = torch.stack(at_positions, dim=1).flatten(0, 1)
            yield f, rows, self.solve(rows.flatten(0, -2).mT)

    def covariance_of(self, rows: Float[Tensor, "m k d"]) -> Float[Tensor, "m k k"]:
        """See ``Posterior.covariance_of``; each derivative is another solve.

        Warns:
            ConvergenceWarning: If a solve missed its tolerance.
        """
        columns = rows.flatten(0, 1).mT
        solved = implicit_solve(self._warned_solve, columns).mT.view(rows.shape)
        covariance = wide(rows) @ wide(solved).mT
        return (covariance + covariance.mT) / 2

    def _warned_solve(self, b: Float[Tensor, "d k"]) -> Float[Tensor, "d k"]:
        """``Λ⁻¹ b``."""
        solution = self.solve(b)
        warn_unless(solution, self.solver.cure)
        return solution.value

    @cached_property
    def head_form(self) -> Callable[[Float[Tensor, "m i"]], Float[Tensor, "m c c"]]:
        """See ``Posterior.head_form``; the rows are written down."""
        places = head_places(self.model)

        def covariance(inputs: Float[Tensor, "m i"]) -> Float[Tensor, "m c c"]:
            shape = (len(inputs), *places.shape)
            rows = inputs.new_zeros(*shape[:2], self.network.size)
            return self.covariance_of(rows.scatter(2, places.expand(shape), inputs[:, None].expand(shape)))

        return covariance

    def _moments(self, inputs: Inputs, choices: Sequence[MatrixFreePosterior]) -> list[Moments]:
        solved = [choice.solved_outputs(inputs) for choice in choices]
        for outputs in solved:
            warn_unless(outputs.solution, self.solver.cure)
        return [outputs.moments for outputs in solved]

    def _joint_moments(self, inputs: Inputs) -> JointMoments:
        """A block solve for every ``Limits.training`` bytes of Jacobian rows, and a product of J with its solutions."""
        columns = list[Tensor]()
        solutions = list[Solution]()
        for _, _, solution in self._solves(inputs):
            columns.append(self.pushed(inputs, solution.value)[1].flatten(0, -2))
            solutions.append(replace(solution, value=solution.value[:0]))
        warn_unless(joined_solutions(solutions), self.solver.cure)
        mean = self.model.outputs(inputs)
        product = torch.cat(columns, dim=1)
        covariance = (product + product.mT) / 2
        return JointMoments(mean, covariance.to(mean).view(*mean.shape, *mean.shape))
