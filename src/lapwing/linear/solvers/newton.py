"""Newton's method for a convex loss with a Gaussian prior, each step a solve that is only as exact as it pays."""

from __future__ import annotations

import logging
import math
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.errors import NumericalError
from lapwing.ground.progress import Bar
from lapwing.ground.results import Solution
from lapwing.linalg.cg import conjugate_gradients
from lapwing.linear.loss import Line, Loss, Mode, Point, dot
from lapwing.linear.problem import Problem
from lapwing.linear.solvers.cg import CG, Solver
from lapwing.linear.solvers.sgd import POWER, SGD

logger = logging.getLogger(__name__)

LOOSEST, TIGHTEST = 0.3, 0.5
"""Relative residual of the first solve, and of the last one relative to what is left to the tolerance."""

FLAT = 0.2
"""A step ends where the slope along it is at most this part of what it was."""

REACH = 2.0**20
"""A step is not made longer or shorter by more."""

PATIENCE = 4
"""Steps that lower neither gradient nor objective, after which it goes no further."""


def minimise(
    loss: Loss, start: Point, solver: Solver, *, rtol: float, steps: int, progress: bool | None = None
) -> Mode:
    """The minimum by Newton-CG with a line search.

        Λ p = -∇,   w ← w + t p                                             (Nocedal & Wright 2006, algorithm 7.1)

    with t = 1 where the slope along p has all but gone there, else where it has: where the network is certain its
    outputs hardly bend, and steps are far too long. Damping Λ as well only makes for more of them.

    A quadratic takes more than one step where a solve is by mini-batches. Its residual is small beside a right-hand
    side that is large where the data determine much; all other directions may be as far off as they were. What the next
    one solves for has them alone, and the noise of mini-batches is in proportion to p, which vanishes.

    Args:
        loss: The loss.
        start: Where to start.
        solver: Solves with Λ; a ``CG`` as loosely as leaves the convergence superlinear, of a quadratic as exactly as
            its minimum is asked for; the epochs of an ``SGD`` are those of all solves together.
        rtol: Relative gradient at which the minimum is found.
        steps: Most steps.
        progress: Whether to show a progress bar; ``None`` for after two seconds, in a terminal or notebook.

    Raises:
        NumericalError: If the loss is not finite at the start, or every step of an ``SGD`` diverged.

    Cost:
        A step: a solve, a pass along it and a gradient.
    """
    if math.isnan(start.nll) or not bool(start.score.isfinite().all()):
        raise NumericalError("a finite loss and gradient at the start", f"a loss of {start.nll}", "initial=None")
    point, spent, before, number, stopped = start, 0, 1.0, 0, None
    best, lowest, since = math.inf, math.inf, 0
    most = math.inf
    if isinstance(solver, SGD):
        step = solver.survey(loss.problem(point), 1, torch.Generator().manual_seed(solver.seed))[1]
        solver, most, spent = replace(solver, step=step), solver.epochs + POWER, POWER
    with Bar("Newton", most=steps, progress=progress) as bar:
        while True:
            slope, relative = loss.gradient(point)
            value = loss.value(point)
            bar.update(0, f"gradient {relative:.1e}, done at {rtol:.1e}")
            if relative < best or value < lowest - rounding(point) * abs(lowest):
                since = number
            best, lowest = min(best, relative), min(lowest, value)
            if relative <= rtol:
                stopped = "converged"
            elif number == steps or spent >= most:
                stopped = "iterations"
            elif number - since >= PATIENCE:
                stopped = "stagnated"
            if stopped is not None:
                return Mode(point.weights, point.nll, point.misfit, relative, number, spent, stopped)
            near = 0.0 if loss.model.likelihood.noise else min(LOOSEST, (relative / before) ** 2)
            tolerance = max(near, min(LOOSEST, TIGHTEST * rtol / relative))
            solution = solved(loss.problem(point), -slope, solver, tolerance, float(most - spent))
            line = loss.line(point, solution.value)
            length = search(line)
            point = line.end(length)
            spent, number, before = spent + solution.matvecs + 1, number + 1, relative
            bar.update()
            words = "Newton step %d: gradient %.2g, objective %.6g, %d products, length %.2g"
            logger.debug(words, number, relative, value, solution.matvecs, length)


def solved(problem: Problem, b: Float[Tensor, " d"], solver: Solver, rtol: float, left: float) -> Solution:
    """``Λ⁻¹ b``: by ``CG`` as loosely as asked, residuals in the units of the prior; by ``SGD`` in the passes left."""
    if isinstance(solver, SGD):
        return replace(solver, epochs=int(left)).approach(problem, b)
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


def lowest(loss: Loss) -> Point:
    """Where to start: the best point on the way from the weights the model was made linear at to 0."""
    weights = loss.model.weights
    point = loss.at(weights)
    if not dot(loss.gradient(point)[0], weights) > 0:
        return point
    line = loss.line(point, -weights)
    return line.end(search(line))


def search(line: Line) -> float:
    """How far to go along a step: where the slope has all but gone, and the objective is no higher than it was."""
    point, step, prior = line.point, line.step, line.loss.prior
    pull, bend = dot(prior @ point.weights, step), dot(step, prior @ step)
    first, here = line.slope(0.0) + pull, line.value(0.0)
    noise = rounding(point) * (abs(here) + abs(pull) + bend)
    low, high, length = 0.0, math.inf, 1.0
    while 1 / REACH < length < REACH:
        slope = line.slope(length) + pull + length * bend
        if abs(slope) <= FLAT * abs(first) + noise:
            rise = line.value(length) - here + length * pull + 0.5 * length**2 * bend
            if rise <= noise:
                return length
        low, high = (low, length) if slope > 0 else (length, high)
        if high - low <= 1e-3 * high < math.inf:
            return low
        length = 2.0 * length if high == math.inf else (low + high) / 2
    return length


def rounding(point: Point) -> float:
    """What a number computed from the weights' dtype may be wrong by, relatively."""
    return 10 * torch.finfo(point.weights.dtype).eps
