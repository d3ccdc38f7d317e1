"""The linear system behind a Gaussian process: ``C = K + N`` of each group of outputs, and solves with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.gp.kernels.base import Kernel, Kernels
from lapwing.gp.observations import Observations
from lapwing.gp.regression.covariance import Covariance
from lapwing.gp.regression.groups import OutputGroup, grouped
from lapwing.gp.regression.settings import Settings
from lapwing.gp.trend import Trend, least_squares
from lapwing.ground.errors import ConvergenceWarning, NumericalError, warn
from lapwing.ground.precision import wide
from lapwing.ground.results import Solution, joined_solutions
from lapwing.likelihoods import Gaussian
from lapwing.linear.solvers import Solver

DRAWN = 0.5
"""Part of the noise's standard deviation that drawn functions may be off by: intervals are then a tenth too wide."""


@final
@dataclass(frozen=True, eq=False)
class System:
    """``y = H β + f + ε`` at distinct inputs, with ``C = K + N`` for the covariance of ``f + ε``.

    Args:
        kernel: k, or one an output.
        likelihood: p(y | f).
        data: X and y.
        settings: Mean and solver.
    """

    kernel: Kernels
    likelihood: Gaussian
    data: Observations
    settings: Settings

    @property
    def distinct(self) -> Observations:
        """What is solved for: n distinct inputs, with the averages of their targets."""
        return self.data.distinct

    @property
    def outputs(self) -> int:
        """C."""
        return self.data.outputs

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """That of each output."""
        return self.kernel if isinstance(self.kernel, tuple) else (self.kernel,) * self.outputs

    @property
    def noises(self) -> Float[Tensor, " c"]:
        """``1/ρ`` of each output, float64."""
        return 1 / self.likelihood.precisions(wide(self.data.targets))

    @property
    def shared(self) -> bool:
        """Whether all outputs have one kernel and one noise, and so one matrix to solve with."""
        return not isinstance(self.kernel, tuple) and not isinstance(self.likelihood.precision, tuple)

    @property
    def solver(self) -> Solver:
        """What solves: for as many inputs as have one matrix as large as those of all outputs together."""
        matrices = 1 if self.shared else self.outputs
        return self.settings.solver_for(round(len(self.distinct) * matrices**0.5))

    @property
    def dtype(self) -> torch.dtype:
        """Of solves."""
        return self.settings.solved_in(self.solver)

    @property
    def inputs(self) -> Float[Tensor, "n p"]:
        """X in the dtype of solves."""
        return self.solvable(self.distinct.inputs)

    def solvable(self, values: Float[Tensor, "n *k"]) -> Float[Tensor, "n *k"]:
        """Values in the dtype of solves, where the solves are."""
        return wide(values) if self.dtype == torch.float64 else values.to(self.dtype)

    @property
    def trend(self) -> Trend:
        """What the mean is before data."""
        return Trend(self.settings.mean)

    @property
    def slopes(self) -> int:
        """Columns q of H."""
        return self.trend(self.distinct.inputs[:1]).shape[1]

    @cached_property
    def groups(self) -> tuple[OutputGroup, ...]:
        """Outputs with their ``K + N``: all together where they share it, else each alone."""
        relative = self.solvable(self.distinct.relative)
        return grouped(self.kernel, self.noises.tolist(), self.inputs, relative, self.shared)

    def solve(
        self,
        values: Float[Tensor, "n k"],
        noise: Float[Tensor, "n k"],
        *,
        with_mean: bool,
        start: Sequence[Solution] = (),
    ) -> Solution:
        """``C⁻¹ (z + ε)`` of draws, and before them ``C⁻¹ [y, H]``, H once for each of the groups.

        Args:
            values: z, all outputs of a draw together.
            noise: ε.
            with_mean: Whether ``[y, H]`` come first.
            start: Solutions of earlier solves to start from: that of ``[y, H]``, then that of draws.

        Raises:
            NumericalError: If C is singular up to rounding.

        Warns:
            ConvergenceWarning: If it ended early.
        """
        c = self.outputs
        q = self.slopes
        first = c + q * len(self.groups) if with_mean else 0
        initial = self._initial(start, first, first + values.shape[1])
        places = list[int]()
        parts = list[Solution]()
        for number, group in enumerate(self.groups):
            drawn = group.columns(values.shape[1], c)
            own = [*group.outputs, *range(c + q * number, c + q * (number + 1))] if with_mean else []
            place = own + [first + column for column in drawn]
            begin = None if initial is None else initial[:, place]
            parts.append(self._solve_group(group, values[:, drawn], noise[:, drawn], begin, with_mean=with_mean))
            places += place
        whole = joined_solutions(parts)
        order = torch.tensor(places).argsort()
        check_solved(whole, self.solver, self.dtype)
        return replace(whole, value=whole.value[:, order], residual=whole.residual[order])

    def _initial(self, start: Sequence[Solution], first: int, width: int) -> Float[Tensor, "n k"] | None:
        """Earlier solutions where they are of the same columns, zeros for the others; ``None`` where there are none."""
        if not start:
            return None
        initial = self.groups[0].noise.new_zeros(len(self.distinct), width)
        for part, earlier in zip(initial.tensor_split([first], 1), start, strict=False):
            if earlier.value.shape[1] == part.shape[1] and len(earlier.value) <= len(part):
                part[: len(earlier.value)] = earlier.value
        return initial

    def _solve_group(
        self,
        group: OutputGroup,
        values: Float[Tensor, "n k"],
        noise: Float[Tensor, "n k"],
        initial: Float[Tensor, "n l"] | None,
        *,
        with_mean: bool,
    ) -> Solution:
        """The columns of one group.

        The solve is for what H does not explain of y by ordinary least squares: tolerances are relative.
        """
        like = group.noise
        known = slice(None) if with_mean else slice(0)
        y = wide(self.distinct.targets[:, group.outputs][:, known])
        h = wide(self.trend(self.distinct.inputs)[:, known])
        rest, explained = least_squares(h, h, y)
        explained = explained.to(like)
        own = slice(y.shape[1])
        basis = slice(y.shape[1], y.shape[1] + h.shape[1])
        values = torch.cat([rest.to(like), h.to(like), values.to(like)], 1)
        noise = torch.cat([torch.zeros_like(values[:, : basis.stop]), noise.to(like)], 1)
        if initial is not None:
            initial[:, own] -= initial[:, basis] @ explained
        try:
            solution = self.solver.drawn(group.problem, values, noise, initial=initial)
        except NumericalError as error:
            raise singular(error, group.noise) from None
        if solution.error is not None:
            drawn = slice(basis.stop, None)
            check_drawn(solution.error[drawn], values[:, drawn] + noise[:, drawn], group.noise, self.solver)
        solution.value[:, own] += solution.value[:, basis] @ explained
        return solution

    def fitted(
        self, solved: Float[Tensor, "n k"], solution: Solution
    ) -> tuple[Float[Tensor, "n k"], Float[Tensor, "q k"]]:
        """``α = C⁻¹ (z - H β)`` and β of solved columns, all outputs of a draw together.

        Args:
            solved: ``C⁻¹ z``.
            solution: Of ``[y, H]``.
        """
        basis = self.trend(self.distinct.inputs.to(solved))
        representers = torch.empty_like(solved)
        slopes = solved.new_empty(basis.shape[1], solved.shape[1])
        for number, group in enumerate(self.groups):
            columns = group.columns(solved.shape[1], self.outputs)
            found = least_squares(basis, self._solved_basis(number, solution), solved[:, columns])
            representers[:, columns], slopes[:, columns] = found
        return representers, slopes

    def covariances(self, solution: Solution) -> tuple[Covariance, ...]:
        """What is not known of the functions of each group of outputs, by exact solves.

        Args:
            solution: Of ``[y, H]``.
        """
        inputs = self.inputs
        return tuple(
            Covariance(
                group.kernel, inputs, self.trend, self._solved_basis(number, solution), group.problem, self.solver
            )
            for number, group in enumerate(self.groups)
        )

    def _solved_basis(self, number: int, solution: Solution) -> Float[Tensor, "n q"]:
        """``C⁻¹ H`` of one group."""
        q = self.slopes
        first = self.outputs + q * number
        return solution.value[:, first : first + q]


def singular(error: NumericalError, noise: Float[Tensor, " n"]) -> NumericalError:
    """What a solve that failed says of the data; of a descent that diverged, what it says itself.

    Args:
        error: Its error.
        noise: Noise variance at each input.
    """
    if "definite" not in error.expected:
        return error
    return NumericalError(
        f"a kernel, and noise that keeps K + N away from singular ({error.expected})",
        f"a smallest noise variance of {float(noise.min()):.1e} ({error.got})",
        "a smaller precision of the likelihood, fewer inputs that are nearly alike, or for Custom a function that is "
        "symmetric and positive definite",
    )


def check_solved(solution: Solution, solver: Solver, dtype: torch.dtype) -> None:
    """Warn of a solve that ended early.

    Args:
        solution: What it found.
        solver: What solved.
        dtype: Of the solve.
    """
    if solution.converged:
        return
    ended = "ended"
    cure = solver.cure
    if solution.stopped == "interrupted":
        ended = "was interrupted"
        cure = "with_solver(solver), which goes on from here"
    elif solution.stopped == "seconds":
        ended = "ran out of seconds="
        cure = "with_solver(solver), which goes on from here"
    elif solution.stopped == "stagnated" and dtype == torch.float32:
        ended = "ended, for float32 resolves no more,"
        cure = "dtype=torch.float64, more noise, or fewer rows"
    elif solution.stopped == "stagnated":
        ended = "ended, for float64 resolves no more,"
        cure = "more noise, or fewer rows that are nearly alike"
    warn(
        f"a solve {ended} after {solution.iterations} iterations with {solution.distance}. Try {cure}",
        ConvergenceWarning,
    )


def check_drawn(
    error: Float[Tensor, " k"], values: Float[Tensor, "n k"], noise: Float[Tensor, " n"], solver: Solver
) -> None:
    """Warn where drawn functions may be off by much of the noise: variances are read from them, and hold what is off.

    Args:
        error: Of their solves, see ``Solution``.
        values: What was solved for.
        noise: Noise variance at each input.
        solver: What solved.

    Warns:
        ConvergenceWarning: If that is more than ``DRAWN`` of the noise's standard deviation.
    """
    scale = wide(values / noise.sqrt()[:, None]).square().mean(0).sqrt()
    off = float((error * scale).max()) if len(error) else 0.0
    if off > DRAWN:
        rtol = getattr(solver, "rtol", None)
        smaller = f"{type(solver).__name__}(rtol={rtol * DRAWN / off:.1g})" if isinstance(rtol, float) else None
        warn(
            f"drawn functions may be off by {off:.2g} standard deviations of the noise, root mean square, and then "
            f"standard deviations that are read from them are too large. Try solver={smaller or 'a smaller rtol='}, "
            "or Cholesky()",
            ConvergenceWarning,
        )
