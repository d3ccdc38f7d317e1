"""Newton's method for a convex loss with a quadratic prior, each step a solve that is only as exact as it pays."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor
from tqdm.auto import tqdm

from lapwing.errors import NumericalError
from lapwing.linalg import Diagonal
from lapwing.problem import Problem
from lapwing.results import Stopped
from lapwing.solvers.base import Solver
from lapwing.solvers.cg import CG

logger = logging.getLogger(__name__)

LOOSEST, TIGHTEST = 0.1, 0.3
"""Relative residual of the first solve, and of the last one relative to what is left to the tolerance."""

SUFFICIENT = 1e-4
"""A step must lower the objective by this part of what its slope promises."""

SHORTEST = 2.0**-20
"""A step is not shortened below this."""

PATIENCE = 4
"""Steps without a smaller gradient after which it goes no further."""


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


@final
@dataclass(frozen=True, eq=False)
class Minimum:
    """Where Newton's method came to.

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
    evaluate: Callable[[Float[Tensor, " d"]], Point],
    problem: Callable[[Float[Tensor, " d"]], Problem],
    start: Float[Tensor, " d"],
    prior: Diagonal,
    solver: Solver,
    *,
    rtol: float,
    steps: int,
    progress: bool = False,
) -> Minimum:
    """The minimum of ``loss(w) + ½ |w|²_A`` by Newton-CG with a line search.

        Λ p = -∇,   w ← w + t p,   t = 1 shortened until the objective falls      (Nocedal & Wright 2006, algorithm 7.1)

    Args:
        evaluate: The loss and its gradient.
        problem: Newton's matrix Λ at some weights.
        start: Where to start.
        prior: A.
        solver: Solves with Λ; a ``CG`` as loosely as leaves the convergence superlinear.
        rtol: Relative gradient at which the minimum is found.
        steps: Most steps.
        progress: Whether to show a progress bar.

    Raises:
        NumericalError: If the loss is not finite at the start.

    Cost:
        A step: a solve, and an evaluation for each length that is tried.
    """
    point = evaluate(start)
    if not (torch.isfinite(point.score).all() and point.loss == point.loss):
        raise NumericalError("a finite loss and gradient at the start", f"a loss of {point.loss}", "initial=None")
    spent, before, best, since, number = 1, float("inf"), float("inf"), 0, 0
    stopped: Stopped = "iterations"
    bar = tqdm(total=steps, desc="Newton", disable=not progress, unit="step", leave=False)
    with bar:
        while True:
            slope, relative = gradient_of(point, prior)
            bar.set_postfix(gradient=f"{relative:.1e}")
            if relative <= rtol:
                stopped = "converged"
                break
            if relative < best:
                best, since = relative, number
            if number - since >= PATIENCE:
                stopped = "stagnated"
                break
            if number == steps:
                break
            tolerance = min(LOOSEST, 0.9 * (relative / before) ** 2) if number else LOOSEST
            tolerance = max(tolerance, min(LOOSEST, TIGHTEST * rtol / relative))
            within = replace(solver, rtol=tolerance) if isinstance(solver, CG) else solver
            solution = within.solve(problem(point.weights), -slope)
            moved, tried = search(evaluate, point, solution.value, slope, prior)
            spent, number, before = spent + solution.matvecs + tried, number + 1, relative
            bar.update()
            logger.info("Newton step %d: gradient %.2g, %d products", number, relative, solution.matvecs)
            if moved is None:
                stopped = "stagnated"
                break
            point = moved
    return Minimum(point, relative, number, spent, stopped)


def solve_quadratic(
    evaluate: Callable[[Float[Tensor, " d"]], Point],
    problem: Problem,
    start: Float[Tensor, " d"],
    solver: Solver,
    *,
    rtol: float,
) -> Minimum:
    """The minimum of a quadratic loss with a quadratic prior: one solve.

    Args:
        evaluate: The loss and its gradient.
        problem: The matrix of the whole objective.
        start: Where to start.
        solver: Solves with it.
        rtol: Relative gradient at which the minimum is found.

    Cost:
        A solve, two gradients, and a product unless it starts at 0.
    """
    slope, _ = gradient_of(evaluate(start), problem.prior)
    moved = bool(start.any())
    solution = solver.solve(problem, problem.precision @ start - slope if moved else -slope, initial=start)
    point = evaluate(solution.value)
    _, relative = gradient_of(point, problem.prior)
    stopped = "converged" if relative <= rtol else "stagnated" if solution.converged else solution.stopped
    return Minimum(point, relative, solution.iterations, solution.matvecs + 2 + moved, stopped)


def search(
    evaluate: Callable[[Float[Tensor, " d"]], Point],
    point: Point,
    step: Float[Tensor, " d"],
    slope: Float[Tensor, " d"],
    prior: Diagonal,
) -> tuple[Point | None, int]:
    """A step shortened until the objective falls, up to rounding; ``None`` where none is short enough."""
    descent, here = _dot(slope, step), objective(point, prior)
    rounding = 10 * torch.finfo(point.weights.dtype).eps * abs(here)
    length, tried = 1.0, 0
    while length >= SHORTEST:
        moved = evaluate(point.weights + length * step)
        tried += 1
        there = objective(moved, prior)
        if there <= here + SUFFICIENT * length * descent + rounding:
            return moved, tried
        further = _dot(gradient_of(moved, prior)[0], step)
        secant = descent / (descent - further) if further > descent else 0.5
        length *= min(0.5, max(0.1, secant))
    return None, tried


def objective(point: Point, prior: Diagonal) -> float:
    """``loss(w) + ½ |w|²_A``."""
    return point.loss + 0.5 * _dot(point.weights, prior @ point.weights)


def gradient_of(point: Point, prior: Diagonal) -> tuple[Float[Tensor, " d"], float]:
    """The gradient of the objective, and its relative length in the units of the prior."""
    pull = prior @ point.weights
    gradient = pull - point.score
    unit = prior.values.double().rsqrt()
    lengths = [float(torch.linalg.vector_norm(unit * part)) for part in (gradient, pull, point.score)]
    return gradient, lengths[0] / max(lengths[1], lengths[2]) if lengths[0] > 0 else 0.0


def _dot(a: Float[Tensor, " d"], b: Float[Tensor, " d"]) -> float:
    return float(a.double() @ b.double())
