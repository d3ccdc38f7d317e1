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
from lapwing.ground.progress import Bar
from lapwing.ground.results import Solution
from lapwing.linalg import Operator
from lapwing.linear.loss import Loss, Mode, Point
from lapwing.linear.problem import Problem
from lapwing.linear.solvers.descent import Descended, Gradient, gradients, settle
from lapwing.linear.solvers.stochastic import QUADRATURE, Distance, Stochastic, relative, residual_of, squared_error

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
    columns: ClassVar[int] = 8

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
        steps, step = self.survey(problem, columns, generator)
        return partial(self._block, problem, steps=steps, step=step, generator=generator)

    def approach(self, problem: Problem, b: Float[Tensor, " d"]) -> Solution:
        """A solution judged by its residual alone, where what is left will be solved for again: see ``minimise``.

        Args:
            problem: The problem.
            b: Right-hand side.
        """
        generator = torch.Generator().manual_seed(self.seed)
        steps, step = self.survey(problem, 1, generator)
        block = b[:, None]
        start = torch.zeros_like(block)
        found = self._block(problem, block, start, steps=steps, step=step, generator=generator, judged=False)
        return replace(found, value=found.value[:, 0])

    def resumed(self, problem: Problem, b: Float[Tensor, "d k"], start: Float[Tensor, "d k"]) -> Solution:
        """See ``Solver.resumed``; what is left is solved for, ``Λ p = b - Λ x``, to a part ``rtol`` of it.

        A start that is off by less than ``rtol`` would be taken for a solution, however often the prior moves. The
        noise of mini-batches is in proportion to p.

        Cost:
            A product with Λ more.
        """
        rest = b - problem.precision @ start
        solution = self.solve(problem, rest)
        value, columns = start + solution.value, b[0].numel()
        share = energy_norm(solution.value, rest) / energy_norm(value, b)
        return replace(
            solution,
            value=value,
            residual=residual_of(problem, b, value),
            matvecs=solution.matvecs + 2 * columns,
            error=None if solution.error is None else solution.error * share,
        )

    def _block(
        self,
        problem: Problem,
        b: Tensor,
        start: Tensor,
        *,
        steps: int,
        step: float,
        generator: torch.Generator,
        judged: bool = True,
    ) -> Solution:
        """The solution of columns that fit the memory, judged by what it predicts or by its residual alone."""
        root = problem.prior.values.sqrt()[:, None]
        target = b / root

        def epoch() -> Iterator[Gradient]:
            batches = problem.curvature.parts(b.shape[1], batch=self.batch, generator=generator)
            pulls = ((lambda x, piece=piece: problem.scale * (piece @ x) for piece in batch) for batch in batches)
            return gradients(pulls, root, steps, target)

        looks = 0

        def distance(z: Tensor, within: float) -> Distance:
            nonlocal looks
            x = z / root
            rest = b - problem.precision @ x
            residual = relative(rest, b)
            if not judged:
                return Distance(residual, None)
            if not float(residual.max()) <= within:
                return Distance(residual, torch.full_like(residual, math.inf))
            looks += 1
            off = squared_error(problem.precision, rest, problem.prior)
            solution = (x * b).double().sum(0) + (x * rest).double().sum(0) + off
            return Distance(residual, torch.where(off > 0, off / solution, 0.0).sqrt())

        def truth(z: Tensor) -> tuple[float, Distance]:
            found = distance(z, self.rtol)
            return found.worst, found

        done = settle(
            root * start,
            epoch,
            lambda now: float(relative(root * now.gradient, b).max()),
            truth,
            rtol=self.rtol,
            step=step,
            steps=steps,
            epochs=self.epochs,
            momentum=self.momentum,
            clip=self.clip,
            scale=torch.linalg.vector_norm(target, dim=0),
        )
        found = done.found
        if found.worst == math.inf:
            found = distance(done.value, math.inf)
        passes = done.passes + QUADRATURE * looks
        return Solution(
            value=done.value / root,
            residual=found.residual,
            error=found.error,
            iterations=done.steps,
            matvecs=passes * b.shape[1] + POWER * (self.step is None),
            stopped="converged" if found.worst <= self.rtol else done.stopped,
        )

    def survey(self, problem: Problem, columns: int, generator: torch.Generator) -> tuple[int, float]:
        """Mini-batches m in an epoch, and the length of a step.

        Args:
            problem: The problem.
            columns: Columns of the blocks to come.
            generator: Source of the power method's start.
        """
        steps, largest, root = 0, 0.0, problem.prior.values.sqrt()[:, None]
        v = torch.zeros_like(root)
        for batch in problem.curvature.parts(columns, batch=self.batch, generator=generator):
            found = 0.0
            for piece in batch:
                if self.step is None:
                    v, value = _dominant(piece, root, v, generator)
                    found += value
            largest, steps = max(largest, found), steps + 1
        return steps, self.step or 1 / (MARGIN * steps * problem.scale * largest + 1)


def energy_norm(x: Float[Tensor, "d *k"], b: Float[Tensor, "d *k"]) -> Float[Tensor, " k"]:
    """``|x|_Λ`` of the solutions ``Λ x = b``, each column, float64."""
    return (x * b).double().reshape(len(x), -1).sum(0).sqrt()


def _dominant(piece: Operator, root: Tensor, v: Tensor, generator: torch.Generator) -> tuple[Tensor, float]:
    """The dominant eigenvector and eigenvalue of a piece in the prior's units, from near those of another."""
    noise = probes.gaussian(v.shape, like=v, generator=generator)
    v, value = v + 0.5 * noise / torch.linalg.vector_norm(noise), 0.0
    for _ in range(POWER):
        v = v / torch.linalg.vector_norm(v)
        moved = (piece @ (v / root)) / root
        value = float(torch.linalg.vector_norm(moved))
        if not value:
            return v, value
        v = moved
    return v / value, value


def descend_loss(loss: Loss, start: Point, solver: SGD, *, rtol: float, progress: bool | None = None) -> Mode:
    """The minimum of a loss by Nesterov's method on mini-batches, in coordinates ``z = A^½ w``.

        g = z - m A^-½ Σ_{i∈S} score_i,    steps falling linearly to 0           (Antorán 2024, section 6.2.3)

    for one of m mini-batches S. The first step is the ``SGD`` rule's for the curvature at the start; one that diverges
    is divided by four.

    Args:
        loss: The loss.
        start: Where to start.
        solver: Epochs, examples to a mini-batch, momentum, clipping, first step and seed.
        rtol: Relative gradient at which the minimum is found.
        progress: Whether to show a progress bar; ``None`` for after two seconds, in a terminal or notebook.

    Raises:
        NumericalError: If every step diverged.

    Cost:
        An epoch: one gradient over all data. Before, about five products with the curvature; a gradient over all data
        for each time the descent seems to be done.
    """
    root = loss.prior.values.sqrt()[:, None]
    steps, step = solver.survey(loss.problem(start), 1, torch.Generator().manual_seed(solver.seed))

    def epoch() -> Iterator[Gradient]:
        scores = loss.scores(solver.batch)
        pulls = ((lambda w, score=score: -score(w[:, 0])[:, None] for score in batch) for batch in scores)
        return gradients(pulls, root, steps)

    def truth(z: Tensor) -> tuple[float, Point]:
        point = loss.at((z / root)[:, 0])
        return loss.gradient(point)[1], point

    with Bar("descent", most=solver.epochs, unit="epochs", progress=progress) as bar:

        def about(now: Descended) -> float:
            lengths = torch.linalg.vector_norm(
                torch.cat([now.gradient, now.value, now.value - now.gradient], dim=1), dim=0, dtype=torch.float64
            )
            left = float(lengths[0] / lengths[1:].max()) if lengths[0] > 0 else 0.0
            bar.update(said=f"gradient {left:.1e}, done at {rtol:.1e}")
            return left

        done = settle(
            root * start.weights[:, None],
            epoch,
            about,
            truth,
            rtol=rtol,
            step=step,
            steps=steps,
            epochs=solver.epochs,
            schedule="linear",
            momentum=solver.momentum,
            clip=solver.clip,
        )
    point, relative = done.found, loss.gradient(done.found)[1]
    stopped = "converged" if relative <= rtol else done.stopped
    return Mode(point.weights, point.nll, point.misfit, relative, done.steps, POWER + done.passes, stopped)
