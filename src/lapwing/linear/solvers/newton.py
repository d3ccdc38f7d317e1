"""Newton's method for a convex loss with a quadratic prior, each step a solve that is only as exact as it pays."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Protocol, final, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor
from tqdm.auto import tqdm

from lapwing.ground.errors import NumericalError
from lapwing.ground.results import Solution, Stopped
from lapwing.linalg import Diagonal
from lapwing.linalg.cg import conjugate_gradients
from lapwing.linear.problem import Problem
from lapwing.linear.solvers.cg import CG, Solver

logger = logging.getLogger(__name__)

LOOSEST, TIGHTEST = 0.3, 0.5
"""Relative residual of the first solve, and of the last one relative to what is left to the tolerance."""

FLAT = 0.2
"""A step ends where the slope along it is at most this part of what it was."""

USABLE = 0.5
"""A step of which less could be used asks for more damping."""

REACH = 2.0**20
"""A step is not made longer or shorter by more."""

PATIENCE = 4
"""Steps that lower neither gradient nor objective, after which it goes no further."""


@final
@dataclass(frozen=True, eq=False)
class Point:
    """A loss and its gradient at some weights.

    Args:
        weights: w.
        score: Minus the gradient of the loss.
        loss: The loss, without the prior.
        told: Further numbers, passed on.
    """

    weights: Float[Tensor, " d"]
    score: Float[Tensor, " d"]
    loss: float
    told: tuple[float, float] = (0.0, 0.0)


@runtime_checkable
class Line(Protocol):
    """A loss at ``w + t p``."""

    def value(self, length: float) -> float:
        """What it is at ``t = length``, up to a constant."""
        ...

    def slope(self, length: float) -> float:
        """Its derivative in t, at ``t = length``."""
        ...

    def end(self, length: float) -> Point:
        """The loss and its gradient there."""
        ...


@runtime_checkable
class Loss(Protocol):
    """A convex loss of the weights."""

    def evaluate(self, weights: Float[Tensor, " d"]) -> Point:
        """The loss and its gradient."""
        ...

    def problem(self, weights: Float[Tensor, " d"]) -> Problem:
        """Its second derivative plus the prior: Newton's matrix Λ."""
        ...

    def line(self, point: Point, step: Float[Tensor, " d"]) -> Line:
        """The loss along a step."""
        ...


@final
@dataclass(frozen=True, eq=False)
class Minimum:
    """Where a minimisation came to.

    Args:
        point: The weights, and the loss there.
        gradient: ``|A^-½ ∇|`` relative to the larger of ``|A^-½ ∇ loss|`` and ``|w|_A``, which are equal at a minimum.
        iterations: Steps.
        matvecs: Columns multiplied by the curvature, and gradients.
        stopped: Why it ended.
    """

    point: Point
    gradient: float
    iterations: int
    matvecs: int
    stopped: Stopped


def minimise(
    loss: Loss,
    start: Point,
    prior: Diagonal,
    solver: Solver,
    *,
    rtol: float,
    steps: int,
    progress: bool = False,
) -> Minimum:
    """The minimum of ``loss(w) + ½ |w|²_A`` by Newton-CG with a line search.

        (Λ + μ A) p = -∇,   w ← w + t p                                     (Nocedal & Wright 2006, algorithm 7.1)

    with t = 1 where the slope along p has all but gone there, else where it has. Where the network is certain its
    outputs hardly bend, and steps are far too long: the damping μ grows when t is small (Marquardt 1963), and is 0 in
    the end.

    Args:
        loss: The loss.
        start: Where to start.
        prior: A.
        solver: Solves with Λ; a ``CG`` as loosely as leaves the convergence superlinear.
        rtol: Relative gradient at which the minimum is found.
        steps: Most steps.
        progress: Whether to show a progress bar.

    Raises:
        NumericalError: If the loss is not finite at the start.

    Cost:
        A step: a solve, a pass along it and a gradient.
    """
    if not (torch.isfinite(start.score).all() and start.loss == start.loss):
        raise NumericalError("a finite loss and gradient at the start", f"a loss of {start.loss}", "initial=None")
    point, spent, before, number, stopped = start, 0, 1.0, 0, None
    best, lowest, since, damping = float("inf"), float("inf"), 0, 0.0
    with tqdm(total=steps, desc="Newton", disable=not progress, unit="step", leave=False) as bar:
        while True:
            slope, relative = gradient_of(point, prior)
            value = objective(point, prior)
            bar.set_postfix(gradient=f"{relative:.1e}")
            if relative < best or value < lowest - rounding(point) * abs(lowest):
                since = number
            best, lowest = min(best, relative), min(lowest, value)
            if relative <= rtol:
                stopped = "converged"
            elif number == steps:
                stopped = "iterations"
            elif number - since >= PATIENCE:
                stopped = "stagnated"
            if stopped is not None:
                return Minimum(point, relative, number, spent, stopped)
            tolerance = max(min(LOOSEST, (relative / before) ** 2), min(LOOSEST, TIGHTEST * rtol / relative))
            problem = loss.problem(point.weights)
            stronger = problem.with_prior(Diagonal((1.0 + damping) * prior.values), problem.scale)
            solution = solved(stronger if damping else problem, -slope, solver, tolerance)
            line = loss.line(point, solution.value)
            length = search(line, point, solution.value, prior)
            point, damping = line.end(length), damped(damping, length)
            spent, number, before = spent + solution.matvecs + 1, number + 1, relative
            bar.update()
            words = "Newton step %d: gradient %.2g, objective %.6g, %d products, length %.2g"
            logger.debug(words, number, relative, value, solution.matvecs, length)


def solved(problem: Problem, b: Float[Tensor, " d"], solver: Solver, rtol: float) -> Solution:
    """``Λ⁻¹ b``: by ``CG`` with residuals in the units of the prior, and as loosely as asked."""
    if not isinstance(solver, CG):
        return solver.solve(problem, b)
    return conjugate_gradients(
        problem.precision,
        b,
        rtol=rtol,
        max_iterations=solver.max_iterations,
        preconditioner=solver.prepared(problem) or problem.prior,
        unit=problem.prior.values.rsqrt(),
    )


def search(line: Line, point: Point, step: Float[Tensor, " d"], prior: Diagonal) -> float:
    """How far to go along a step: where the slope has all but gone, and the objective is no higher than it was."""
    pull, bend = _dot(prior @ point.weights, step), _dot(step, prior @ step)
    first, here = pull - _dot(point.score, step), line.value(0.0)
    noise = rounding(point) * (abs(here) + abs(pull) + bend)
    low, high, below, above, length = 0.0, float("inf"), first, 0.0, 1.0
    while 1 / REACH < length < REACH:
        slope = line.slope(length) + pull + length * bend
        if abs(slope) <= FLAT * abs(first) + noise:
            rise = line.value(length) - here + length * pull + 0.5 * length**2 * bend
            if rise <= noise:
                return length
        if slope > 0:
            high, above = length, slope
        else:
            low, below = length, slope
        if high == float("inf"):
            length *= 2.0
        elif high - low <= 1e-3 * high:
            return low
        else:
            length = low + (high - low) * min(0.9, max(0.1, below / (below - above)))
    return length


def damped(damping: float, length: float) -> float:
    """The damping of the next step, from how much of the last one could be used."""
    if length < USABLE:
        return (1.0 + damping) / max(length, 0.01) ** 0.75 - 1.0
    return damping / 4.0 if damping > 0.1 else 0.0


def objective(point: Point, prior: Diagonal) -> float:
    """``loss(w) + ½ |w|²_A``."""
    return point.loss + 0.5 * _dot(point.weights, prior @ point.weights)


def rounding(point: Point) -> float:
    """What a number computed from the weights' dtype may be wrong by, relatively."""
    return 10 * torch.finfo(point.weights.dtype).eps


def gradient_of(point: Point, prior: Diagonal) -> tuple[Float[Tensor, " d"], float]:
    """The gradient of the objective, and its relative length in the units of the prior."""
    pull = prior @ point.weights
    gradient = pull - point.score
    unit = prior.values.double().rsqrt()
    lengths = [float(torch.linalg.vector_norm(unit * part)) for part in (gradient, pull, point.score)]
    return gradient, lengths[0] / max(lengths[1], lengths[2]) if lengths[0] > 0 else 0.0


def _dot(a: Float[Tensor, " d"], b: Float[Tensor, " d"]) -> float:
    return float(a.double() @ b.double())
