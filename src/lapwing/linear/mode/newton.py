"""Newton's method for a convex loss with a Gaussian prior, each step a solve that is only as exact as it pays."""

from __future__ import annotations

import logging
import math
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.errors import NumericalError
from lapwing.ground.progress import Bar
from lapwing.ground.results import Solution, Stopped
from lapwing.linear.mode.loss import Line, Loss, LossAt, Mode, dot
from lapwing.linear.problem import Problem

logger = logging.getLogger(__name__)

LOOSEST = 0.3
"""Relative residual of the first solve."""

TIGHTEST = 0.5
"""That of the last one, relative to what is left to the tolerance."""

FLAT = 0.2
"""A step ends where the slope along it is at most this part of what it was."""

REACH = 2.0**20
"""A step is not made longer or shorter by more."""

PATIENCE = 4
"""Steps that lower neither gradient nor objective, after which it goes no further."""


@runtime_checkable
class NewtonSolve(Protocol):
    """A way to solve for Newton's steps, see ``Solver.newton_step``."""

    def __call__(self, problem: Problem, b: Float[Tensor, " d"], rtol: float, passes: float = ...) -> Solution:
        """``Λ⁻¹ b``, about as exactly as ``rtol``, in so many passes over the data at most."""
        ...


def newton(
    loss: Loss,
    start: LossAt,
    solve: NewtonSolve,
    *,
    rtol: float,
    steps: int,
    passes: float = math.inf,
    spent: int = 0,
    progress: bool | None = None,
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
        solve: Solves with Λ, as loosely as leaves the convergence superlinear, of a quadratic as exactly as its minimum
            is asked for.
        rtol: Relative gradient at which the minimum is found.
        steps: Most steps.
        passes: Most passes over the data, of all solves together.
        spent: Those there were before.
        progress: Whether to show a progress bar; ``None`` for after two seconds, in a terminal or notebook.

    Raises:
        NumericalError: If the loss is not finite at the start.

    Cost:
        A step: a solve, a pass along it and a gradient.
    """
    if math.isnan(start.nll) or not bool(start.score.isfinite().all()):
        raise NumericalError("a finite loss and gradient at the start", f"a loss of {start.nll}", "initial=None")
    quadratic = bool(loss.model.likelihood.noise)
    point = start
    before = 1.0  # the relative gradient of the step before
    number = 0
    best = math.inf
    least = math.inf
    since = 0  # the step that last lowered the gradient or the objective
    stopped: Stopped | None = None
    with Bar("Newton", most=steps, progress=progress) as bar:
        while True:
            slope, relative = loss.gradient(point)
            value = loss.value(point)
            bar.update(0, f"gradient {relative:.1e}, done at {rtol:.1e}")
            if relative < best or value < least - relative_rounding(point) * abs(least):
                since = number
            best = min(best, relative)
            least = min(least, value)
            if relative <= rtol:
                stopped = "converged"
            elif number == steps or spent >= passes:
                stopped = "iterations"
            elif number - since >= PATIENCE:
                stopped = "stagnated"
            if stopped is not None:
                return Mode(point.weights, point.nll, point.misfit, relative, number, spent, stopped)
            superlinear = 0.0 if quadratic else min(LOOSEST, (relative / before) ** 2)
            tolerance = max(superlinear, min(LOOSEST, TIGHTEST * rtol / relative))
            solution = solve(loss.problem(point), -slope, tolerance, passes - spent)
            line = loss.line(point, solution.value)
            length = search(line)
            point = line.end(length)
            spent += solution.matvecs + 1
            number += 1
            before = relative
            bar.update()
            words = "Newton step %d: gradient %.2g, objective %.6g, %d products, length %.2g"
            logger.debug(words, number, relative, value, solution.matvecs, length)


def lowest(loss: Loss) -> LossAt:
    """Where to start: the best point on the way from the weights the model was made linear at to 0."""
    weights = loss.model.weights
    point = loss.at_weights(weights)
    if not dot(loss.gradient(point)[0], weights) > 0:
        return point
    line = loss.line(point, -weights)
    return line.end(search(line))


def search(line: Line) -> float:
    """How far to go along a step: where the slope has all but gone, and the objective is no higher than it was."""
    point = line.point
    step = line.step
    prior = line.loss.prior
    pull = dot(prior @ point.weights, step)  # slope and curvature of the prior along the step
    curvature = dot(step, prior @ step)
    first = line.slope(0.0) + pull
    here = line.value(0.0)
    noise = relative_rounding(point) * (abs(here) + abs(pull) + curvature)
    low = 0.0
    high = math.inf
    length = 1.0
    while 1 / REACH < length < REACH:
        slope = line.slope(length) + pull + length * curvature
        if abs(slope) <= FLAT * abs(first) + noise:
            rise = line.value(length) - here + length * pull + 0.5 * length**2 * curvature
            if rise <= noise:
                return length
        if slope > 0:
            high = length
        else:
            low = length
        if high - low <= 1e-3 * high < math.inf:
            return low
        length = 2.0 * length if high == math.inf else (low + high) / 2
    return length


def relative_rounding(point: LossAt) -> float:
    """What a number computed from the weights' dtype may be wrong by, relatively."""
    return 10 * torch.finfo(point.weights.dtype).eps
