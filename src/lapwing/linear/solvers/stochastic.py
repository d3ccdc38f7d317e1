"""Mini-batch descent for a convex loss with a quadratic prior."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor
from tqdm.auto import tqdm

from lapwing.linalg import Diagonal
from lapwing.linear.solvers.descent import Descent, Gradient, Watch, settle
from lapwing.linear.solvers.newton import Loss, Minimum, Point, gradient_of
from lapwing.linear.solvers.sgd import POWER, SGD

logger = logging.getLogger(__name__)

SLOWEST = 0.5
"""A solve that leaves more than this part of the gradient goes no further."""


@final
@dataclass(frozen=True, eq=False)
class Piece:
    """What some of the examples add to a loss.

    Args:
        score: Minus the gradient of their part.
        examples: How many they are.
    """

    score: Callable[[Float[Tensor, " d"]], Float[Tensor, " d"]]
    examples: int


def descend_loss(
    loss: Loss,
    batches: Callable[[int], Iterator[Iterator[Piece]]],
    start: Point,
    prior: Diagonal,
    solver: SGD,
    *,
    rtol: float,
    progress: bool = False,
) -> Minimum:
    """The minimum of ``loss(w) + ½ |w|²_A`` by Nesterov's method on mini-batches, in coordinates ``z = A^½ w``.

        g = z - m A^-½ Σ_{i∈S} score_i,    steps falling linearly to 0           (Antorán 2024, section 6.2.3)

    for one of m mini-batches S. The first step is the ``SGD`` rule's for the curvature at the start; one that diverges
    is divided by four.

    Args:
        loss: The whole loss.
        batches: The loss piece by piece in mini-batches of at least so many examples, but for the last; anew for each
            pass, always the same ones, each read before the next.
        start: Where to start.
        prior: A.
        solver: Epochs, examples to a mini-batch, momentum, clipping, first step and seed.
        rtol: Relative gradient at which the minimum is found.
        progress: Whether to show a progress bar.

    Raises:
        NumericalError: If every step diverged.

    Cost:
        An epoch: one gradient over all data. Before, about five products with the curvature; a gradient over all data
        for each time the descent seems to be done.
    """
    root = prior.values.sqrt()
    steps, step = solver.survey(loss.problem(start.weights), 1, torch.Generator().manual_seed(solver.seed))

    def about(now: Descent) -> float:
        z, g = now.value[:, 0], now.gradient[:, 0]
        largest = max(float(torch.linalg.vector_norm(part, dtype=torch.float64)) for part in (z, z - g))
        return float(torch.linalg.vector_norm(g, dtype=torch.float64)) / largest if largest > 0 else 0.0

    def truth(z: Tensor) -> tuple[float, Point]:
        point = loss.evaluate(z[:, 0] / root)
        return gradient_of(point, prior)[1], point

    with tqdm(total=solver.epochs, desc="descent", disable=not progress, unit="epoch", leave=False) as bar:

        def shown(left: float) -> None:
            bar.update()
            bar.set_postfix(gradient=f"{left:.1e}")

        watch = Watch(about, truth, rtol, after=shown)
        done, stopped = settle(
            (root * start.weights)[:, None],
            lambda: _gradients(batches(solver.batch), root, steps),
            watch,
            step=step,
            steps=steps,
            epochs=solver.epochs,
            schedule="linear",
            momentum=solver.momentum,
            clip=solver.clip,
        )
    point = watch.ended(done.value)
    _, relative = gradient_of(point, prior)
    spent = POWER + done.epochs + watch.passes
    return Minimum(point, relative, done.steps, spent, "converged" if relative <= rtol else stopped)


def _gradients(batches: Iterator[Iterator[Piece]], root: Float[Tensor, " d"], steps: int) -> Iterator[Gradient]:
    """The gradients of one epoch, in coordinates in which the prior is standard normal."""
    for batch in batches:

        def gradient(z: Tensor, batch: Iterator[Piece] = batch) -> Tensor:
            w, score = z[:, 0] / root, torch.zeros_like(root)
            for piece in batch:
                score += piece.score(w)
            return z - (steps * score / root)[:, None]

        yield gradient


def descend_quadratic(loss: Loss, start: Point, prior: Diagonal, solver: SGD, *, rtol: float) -> Minimum:
    """The minimum of a quadratic loss with a quadratic prior, by solves for what is left of the gradient.

        Λ p = -∇(w),   w ← w + p        until  |A^-½ ∇(w)| ≤ rtol |w|_A

    One solve does not do. Its residual is small beside a right-hand side that is large where the data determine much;
    all other directions may be as far off as they were. What the next one solves for has them alone. Mini-batches
    leave noise in proportion to p, which vanishes.

    Args:
        loss: The loss.
        start: Where to start.
        prior: A.
        solver: Solves with its matrix; its epochs are those of all solves together.
        rtol: Relative gradient at which the minimum is found.

    Raises:
        NumericalError: If every step diverged.

    Cost:
        The solves, and a gradient over all data for each.
    """
    problem, unit = loss.problem(start.weights), prior.values.double().rsqrt()
    step = solver.survey(problem, 1, torch.Generator().manual_seed(solver.seed))[1]
    point, spent, taken, stopped = start, POWER, 0, None
    slope, relative = gradient_of(point, prior)
    while stopped is None:
        left = solver.epochs + POWER - spent
        if relative <= rtol or left < 1:
            stopped = "converged" if relative <= rtol else "iterations"
            break
        solution = replace(solver, step=step, epochs=left).solve(problem, -slope)
        before, point = torch.linalg.vector_norm(unit * slope), loss.evaluate(point.weights + solution.value)
        slope, relative = gradient_of(point, prior)
        spent, taken = spent + solution.matvecs - POWER + 1, taken + solution.iterations
        logger.debug("mini-batch solve %s: gradient %.2g", solution.stopped, relative)
        if relative > rtol and torch.linalg.vector_norm(unit * slope) > SLOWEST * before:
            stopped = "stagnated"
    return Minimum(point, relative, taken, spent, stopped)
