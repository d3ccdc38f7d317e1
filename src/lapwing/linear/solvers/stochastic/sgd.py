"""Stochastic gradient descent: solves that read a mini-batch of the data at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground import probes
from lapwing.ground.errors import check_count, check_positive
from lapwing.ground.precision import wide
from lapwing.ground.results import Solution
from lapwing.linalg import Operator
from lapwing.linear.mode.descent import mini_batch_descent
from lapwing.linear.mode.loss import Loss, LossAt, Mode
from lapwing.linear.mode.newton import newton
from lapwing.linear.nesterov import Descended, Gradient, WhitenedGradient, settle
from lapwing.linear.problem import Problem
from lapwing.linear.solvers.base import relative, residual_of
from lapwing.linear.solvers.stochastic.base import QUADRATURE, Distance, Stochastic, squared_error

POWER = 5
"""Steps of the power method on each piece of the data."""

MARGIN = 1.1
"""The power method's eigenvalues are too small; they are raised by this factor."""


@final
@dataclass(frozen=True)
class SGD(Stochastic):
    """Mini-batch descent on ``½ xᵀ Λ x - bᵀ x``, all right-hand sides at once.

        g = A x - b + m s Σ_{i∈S} J_iᵀ B_i J_i x                                    (Antorán 2024, equation 6.14)

    for one of m mini-batches S. With b from a ``Perturbation`` this is the sample-then-optimise objective in its
    low-variance form: the noise enters through b alone, which no mini-batch perturbs. It descends in coordinates in
    which the prior is standard normal, so that a g-prior is a Jacobi preconditioner; Nesterov's momentum, a constant
    step, geometric averages of the iterates. The step is ``1 / L`` with L a bound on the largest eigenvalue of any
    mini-batch's curvature in these coordinates: the sum over its pieces of the largest eigenvalue of each, by the power
    method, times m s, plus 1. A step that diverges, or whose noise allows no more progress, is divided by four.

    It makes fast progress where the data say much, and slow progress in directions they say little about: start
    samples at draws from the prior (``initial``), and go on from the last solution when hyper-parameters move. After t
    steps, directions of curvature below about ``(1 - μ) L / t`` are where they started: a momentum of 0.99 reaches
    ten times further than 0.9. The noise of mini-batches leaves a residual, less with larger batches and more epochs.

    Args:
        epochs: Most passes over the data.
        batch: Examples to a mini-batch: consecutive pieces of the data, as the loader and memory cut them, are taken
            together until they are so many.
        rtol: Relative residual at which a column is done, and relative error of what it predicts: ``|x - x*|`` over
            ``|x*|``, both in the norm of Λ, in which predictions differ by as many of their standard deviations at
            most. It is estimated by ``squared_error``, and what ``error`` of the solution says.
        step: Length of a step in the coordinates above; ``None`` for the rule.
        momentum: Nesterov's momentum.
        clip: Gradients longer than so many times the right-hand side (or the first gradient, if longer) are shortened.
        seed: Of the power method, and of the order of the mini-batches, where they are kept.
        max_bytes: Memory the blocks may take; more columns than fit are solved one block after another.

    Raises:
        ConfigError: If a number makes no sense; it names the one.

    Cost:
        An epoch: one product with G. Before, about five products with one column. Where it seems to be done, and at the
        end, one product with Λ for the residual, and five more for the error where that is within ``rtol``.
        ``iterations`` of the solution are steps, ``matvecs`` columns times passes over the data.

    Example:
        >>> SGD(epochs=50, batch=100).momentum
        0.9
    """

    cure = "SGD with more epochs, momentum=0.99, or CG()"
    blocks: ClassVar[int] = 8
    by_mini_batches: ClassVar[bool] = True

    epochs: int = 200
    batch: int = 256
    rtol: float = 1e-2
    step: float | None = None
    momentum: float = 0.9
    clip: float = 10.0
    seed: int = 0
    max_bytes: int = 2**30

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("epochs", self.epochs)
        check_positive("clip", self.clip, "10.0")

    def descent(
        self, problem: Problem, columns: int
    ) -> Callable[[Float[Tensor, "d k"], Float[Tensor, "d k"]], Solution]:
        """See ``Stochastic.descent``."""
        generator = torch.Generator().manual_seed(self.seed)
        batches, step = self.choose_step(problem, columns, generator)
        return partial(self._block, problem, batches=batches, step=step, generator=generator)

    def newton_step(self, problem: Problem, b: Float[Tensor, " d"], rtol: float, passes: float = math.inf) -> Solution:
        """See ``Solver.newton_step``; judged by its residual alone."""
        solver = self if passes == math.inf else replace(self, epochs=int(passes))
        generator = torch.Generator().manual_seed(self.seed)
        batches, step = self.choose_step(problem, 1, generator)
        block = b[:, None]
        start = torch.zeros_like(block)
        found = solver._block(
            problem, block, start, batches=batches, step=step, generator=generator, residual_alone=True
        )
        return replace(found, value=found.value[:, 0])

    def mode_tolerance(self, dtype: torch.dtype) -> float:
        """See ``Solver.mode_tolerance``."""
        return self.rtol

    def minimise(self, loss: Loss, start: LossAt, *, rtol: float, steps: int, progress: bool | None = None) -> Mode:
        """See ``Solver.minimise``; by mini-batches, of a quadratic in Newton's steps.

        The first step is chosen by the rule for the curvature at the start. The epochs are those of all solves.

        Raises:
            NumericalError: If the loss is not finite at the start, or every step diverged.

        Cost:
            Five products with the curvature before.
        """
        generator = torch.Generator().manual_seed(self.seed)
        batches, step = self.choose_step(loss.problem(start), 1, generator)
        if loss.model.likelihood.noise is not None:
            solve = replace(self, step=step).newton_step
            passes = float(self.epochs + POWER)
            return newton(loss, start, solve, rtol=rtol, steps=steps, passes=passes, spent=POWER, progress=progress)
        mode = mini_batch_descent(
            loss,
            start,
            rtol=rtol,
            batch=self.batch,
            batches=batches,
            step=step,
            epochs=self.epochs,
            momentum=self.momentum,
            clip=self.clip,
            progress=progress,
        )
        return replace(mode, matvecs=POWER + mode.matvecs)

    def resumed(self, problem: Problem, b: Float[Tensor, "d k"], start: Float[Tensor, "d k"]) -> Solution:
        """See ``Solver.resumed``; what is left is solved for, ``Λ p = b - Λ x``, to a part ``rtol`` of it.

        A start that is off by less than ``rtol`` would be taken for a solution, however often the prior moves. The
        noise of mini-batches is in proportion to p.

        Cost:
            A product with Λ more.
        """
        rest = b - problem.precision @ start
        solution = self.solve(problem, rest)
        value = start + solution.value
        error = solution.error
        if error is not None:
            error = error * energy_norm(solution.value, rest) / energy_norm(value, b)
        return replace(
            solution,
            value=value,
            residual=residual_of(problem, b, value),
            matvecs=solution.matvecs + 2 * b[0].numel(),
            error=error,
        )

    def _block(
        self,
        problem: Problem,
        b: Tensor,
        start: Tensor,
        *,
        batches: int,
        step: float,
        generator: torch.Generator,
        residual_alone: bool = False,
    ) -> Solution:
        """The solution of columns that fit the memory.

        Args:
            problem: The problem.
            b: Right-hand sides.
            start: Where to start.
            batches: Mini-batches m in an epoch.
            step: Length of the first steps.
            generator: Source of the order of the mini-batches.
            residual_alone: Whether it is judged by its residual alone, or by what it predicts too.
        """
        root = problem.prior.values.sqrt()[:, None]
        target = b / root
        judge = _Judge(problem, b, residual_alone)

        def epoch() -> Iterator[Gradient]:
            for pieces in problem.curvature.parts(b.shape[1], batch=self.batch, generator=generator):
                yield WhitenedGradient(_products(pieces, problem.scale), root, batches, target)

        def about(now: Descended) -> float:
            return float(relative(root * now.gradient, b).max())

        def truth(z: Float[Tensor, "d k"]) -> tuple[float, Distance]:
            distance = judge.distance(z / root, self.rtol)
            return distance.worst, distance

        done = settle(
            root * start,
            epoch,
            about,
            truth,
            rtol=self.rtol,
            step=step,
            steps=batches,
            epochs=self.epochs,
            momentum=self.momentum,
            clip=self.clip,
            scale=torch.linalg.vector_norm(target, dim=0),
        )
        value = done.value / root
        distance = done.found
        if distance.worst == math.inf:
            distance = judge.distance(value, math.inf)
        passes = done.passes + QUADRATURE * judge.looks
        return Solution(
            value=value,
            residual=distance.residual,
            error=distance.error,
            iterations=done.steps,
            matvecs=passes * b.shape[1] + POWER * (self.step is None),
            stopped="converged" if distance.worst <= self.rtol else done.stopped,
        )

    def choose_step(self, problem: Problem, columns: int, generator: torch.Generator) -> tuple[int, float]:
        """Mini-batches m in an epoch, and the length of a step.

        Args:
            problem: The problem.
            columns: Columns of the blocks to come.
            generator: Source of the power method's start.
        """
        root = problem.prior.values.sqrt()[:, None]
        v = torch.zeros_like(root)
        batches = 0
        largest = 0.0
        for batch in problem.curvature.parts(columns, batch=self.batch, generator=generator):
            bound = 0.0
            for piece in batch:
                if self.step is None:
                    v, value = _dominant(piece, root, v, generator)
                    bound += value
            largest = max(largest, bound)
            batches += 1
        return batches, self.step or 1 / (MARGIN * batches * problem.scale * largest + 1)


@final
class _Judge:
    """How far from the solution of ``Λ x = b`` some values are.

    Args:
        problem: Λ.
        b: Right-hand sides.
        residual_alone: Whether the residual alone counts, or what they predict too.
    """

    def __init__(self, problem: Problem, b: Float[Tensor, "d k"], residual_alone: bool) -> None:
        self._problem = problem
        self._b = b
        self._residual_alone = residual_alone
        self.looks = 0
        """How often the error of predictions was estimated."""

    def distance(self, x: Float[Tensor, "d k"], within: float) -> Distance:
        """The distance of some values.

        Args:
            x: The values.
            within: Residual up to which the error of predictions is estimated; infinite beyond.
        """
        precision = self._problem.precision
        rest = self._b - precision @ x
        residual = relative(rest, self._b)
        if self._residual_alone:
            return Distance(residual, None)
        if not float(residual.max()) <= within:
            return Distance(residual, torch.full_like(residual, math.inf))
        self.looks += 1
        off = squared_error(precision, rest, self._problem.prior)
        solution = wide(x * self._b).sum(0) + wide(x * rest).sum(0) + off
        return Distance(residual, torch.where(off > 0, off / solution, 0.0).sqrt())


def _products(pieces: Iterator[Operator], scale: float) -> Iterator[Gradient]:
    """The product of each piece of the curvature with s x, each read before the next."""
    for piece in pieces:
        yield partial(_scaled_product, piece, scale)


def _scaled_product(piece: Operator, scale: float, x: Float[Tensor, "d k"]) -> Float[Tensor, "d k"]:
    return scale * (piece @ x)


def energy_norm(x: Float[Tensor, "d *k"], b: Float[Tensor, "d *k"]) -> Float[Tensor, " k"]:
    """``|x|_Λ`` of the solutions ``Λ x = b``, each column, float64."""
    return wide(x * b).reshape(len(x), -1).sum(0).sqrt()


def _dominant(piece: Operator, root: Tensor, v: Tensor, generator: torch.Generator) -> tuple[Tensor, float]:
    """The dominant eigenvector and eigenvalue of a piece in the prior's units, from near those of another."""
    noise = probes.gaussian(v.shape, like=v, generator=generator)
    v = v + 0.5 * noise / torch.linalg.vector_norm(noise)
    value = 0.0
    for _ in range(POWER):
        v = v / torch.linalg.vector_norm(v)
        product = (piece @ (v / root)) / root
        value = float(torch.linalg.vector_norm(product))
        if not value:
            return v, value
        v = product
    return v / value, value
