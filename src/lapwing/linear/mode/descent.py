"""The mode by mini-batch descent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.precision import wide
from lapwing.ground.progress import Bar
from lapwing.linear.mode.loss import Loss, LossAt, Mode
from lapwing.linear.nesterov import Descended, Gradient, WhitenedGradient, settle


def mini_batch_descent(
    loss: Loss,
    start: LossAt,
    *,
    rtol: float,
    batch: int,
    batches: int,
    step: float,
    epochs: int,
    momentum: float,
    clip: float,
    progress: bool | None = None,
) -> Mode:
    """The minimum of a loss by Nesterov's method on mini-batches, in coordinates ``z = A^½ w``.

        g = z - m A^-½ Σ_{i∈S} score_i,    steps falling linearly to 0           (Antorán 2024, section 6.2.3)

    for one of m mini-batches S. A first step that diverges is divided by four.

    Args:
        loss: The loss.
        start: Where to start.
        rtol: Relative gradient at which the minimum is found.
        batch: Examples to a mini-batch.
        batches: Mini-batches m.
        step: Length of the first step.
        epochs: Most passes over the data.
        momentum: Nesterov's momentum.
        clip: Gradients longer than so many times the first are shortened.
        progress: Whether to show a progress bar; ``None`` for after two seconds, in a terminal or notebook.

    Raises:
        NumericalError: If every step diverged.

    Cost:
        An epoch: one gradient over all data; one more for each time the descent seems to be done.
    """
    root = loss.prior.values.sqrt()[:, None]

    def epoch() -> Iterator[Gradient]:
        for scores in loss.scores(batch):
            yield WhitenedGradient(_gradients(scores), root, batches)

    def truth(z: Float[Tensor, "d 1"]) -> tuple[float, LossAt]:
        point = loss.at_weights((z / root)[:, 0])
        return loss.gradient(point)[1], point

    with Bar("descent", most=epochs, unit="epochs", progress=progress) as bar:

        def about(now: Descended) -> float:
            parts = torch.cat([now.gradient, now.value, now.value - now.gradient], dim=1)
            gradient, *whole = torch.linalg.vector_norm(wide(parts), dim=0).tolist()
            left = gradient / max(whole) if gradient > 0 else 0.0
            bar.update(said=f"gradient {left:.1e}, done at {rtol:.1e}")
            return left

        done = settle(
            root * start.weights[:, None],
            epoch,
            about,
            truth,
            rtol=rtol,
            step=step,
            steps=batches,
            epochs=epochs,
            schedule="linear",
            momentum=momentum,
            clip=clip,
        )
    point = done.found
    relative = loss.gradient(point)[1]
    stopped = "converged" if relative <= rtol else done.stopped
    return Mode(point.weights, point.nll, point.misfit, relative, done.steps, done.passes, stopped)


def _gradients(scores: Iterator[Callable[[Tensor], Tensor]]) -> Iterator[Gradient]:
    """The gradient of each piece, on columns, each read before the next."""
    for score in scores:
        yield partial(_minus, score)


def _minus(score: Callable[[Tensor], Tensor], w: Float[Tensor, "d 1"]) -> Float[Tensor, "d 1"]:
    return -score(w[:, 0])[:, None]
