"""Mini-batch descent for a convex loss with a quadratic prior."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor
from tqdm.auto import tqdm

from lapwing.errors import NumericalError
from lapwing.linalg import Diagonal
from lapwing.results import Stopped
from lapwing.solvers.descent import Descent, Gradient, descend
from lapwing.solvers.newton import Loss, Minimum, Point, gradient_of
from lapwing.solvers.sgd import POWER, SGD, SHORTER, SHORTEST

logger = logging.getLogger(__name__)


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
    pieces: Callable[[], Iterator[Piece]],
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
        pieces: The loss piece by piece, anew for each pass, always in as many pieces of the same sizes.
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
    generator, root = torch.Generator().manual_seed(solver.seed), prior.values.sqrt()
    steps, step = solver.survey(loss.problem(start.weights), 1, generator)
    watch = _Watch(
        loss,
        root,
        prior,
        rtol,
        tqdm(total=solver.epochs, desc="descent", disable=not progress, unit="epoch", leave=False),
    )
    length, spent, taken, stopped, done = step, POWER, 0, None, None
    while stopped is None and length > step / SHORTEST:
        done = descend(
            (root * start.weights)[:, None],
            lambda: _gradients(pieces(), root, steps, solver.batch),
            step=length,
            steps=steps * solver.epochs,
            epochs=solver.epochs,
            schedule="linear",
            momentum=solver.momentum,
            clip=solver.clip,
            watch=watch,
        )
        stopped, spent, taken = done.stopped, spent + done.epochs, taken + done.steps
        logger.info("mini-batch descent %s after %d steps from %.2g", stopped or "diverged", done.steps, length)
        length /= SHORTER
    watch.bar.close()
    if stopped is None or done is None:
        raise NumericalError(
            "a step with which mini-batch descent does not diverge", f"steps of {length:.2g}", "larger batches, or CG()"
        )
    point = watch.found if watch.found is not None else loss.evaluate(done.value[:, 0] / root)
    _, relative = gradient_of(point, prior)
    spent += watch.gradients + (watch.found is None)
    return Minimum(point, relative, taken, spent, "converged" if relative <= rtol else stopped)


def _gradients(pieces: Iterator[Piece], root: Float[Tensor, " d"], steps: int, batch: int) -> Iterator[Gradient]:
    """The gradients of one epoch, in coordinates in which the prior is standard normal."""
    for piece in pieces:

        def gradient(z: Tensor, first: Piece = piece) -> Tensor:
            w, examples = z[:, 0] / root, first.examples
            score = first.score(w)
            while examples < batch and (more := next(pieces, None)) is not None:
                score = score + more.score(w)
                examples += more.examples
            return z - (steps * score / root)[:, None]

        yield gradient


@final
@dataclass(eq=False)
class _Watch:
    """Ends a descent whose averaged gradient is small, once the true one is."""

    loss: Loss
    root: Float[Tensor, " d"]
    prior: Diagonal
    rtol: float
    bar: tqdm
    goal: float = float("inf")
    gradients: int = 0
    found: Point | None = None

    def __call__(self, now: Descent) -> Stopped | None:
        """``"converged"`` or ``None``."""
        self.bar.update()
        z, g = now.value[:, 0], now.gradient[:, 0]
        largest = max(float(torch.linalg.vector_norm(part, dtype=torch.float64)) for part in (z, z - g))
        about = float(torch.linalg.vector_norm(g, dtype=torch.float64)) / largest if largest > 0 else 0.0
        self.bar.set_postfix(gradient=f"{about:.1e}")
        if about > min(self.goal, self.rtol):
            return None
        point, self.goal = self.loss.evaluate(z / self.root), about / 2
        self.gradients += 1
        if gradient_of(point, self.prior)[1] > self.rtol:
            return None
        self.found = point
        return "converged"
