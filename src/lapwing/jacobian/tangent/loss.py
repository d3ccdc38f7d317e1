"""The loss of the tangent model as minimisers see it: at points, along lines, and piece by piece."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

from jaxtyping import Float
from torch import Tensor

from lapwing.jacobian.products.linear import Linear, Ray
from lapwing.jacobian.tangent.points import Points
from lapwing.linalg import Diagonal
from lapwing.linear.problem import Problem
from lapwing.linear.solvers.newton import Point, gradient_of, search
from lapwing.linear.solvers.stochastic import Piece


@final
@dataclass(frozen=True, eq=False)
class TangentLoss:
    """``s Σ_i ℓ(y_i, h(w, x_i))``; see ``newton.Loss``.

    Args:
        points: The tangent model.
        prior: A, of the objective's other part.
        scale: s.
    """

    points: Points
    prior: Diagonal
    scale: float

    def lowest(self) -> Point:
        """Where to start: the best point on the way from the trained weights to 0."""
        weights = self.points.training.network.weights
        point = self.evaluate(weights)
        slope, _ = gradient_of(point, self.prior)
        if not float(slope.double() @ weights.double()) > 0:
            return point
        line = self.line(point, -weights)
        return line.end(search(line, point, -weights, self.prior))

    def evaluate(self, weights: Float[Tensor, " d"]) -> Point:
        """A pass over the data."""
        score, nll, misfit = self.points.score(weights)
        loss = nll if self.points.training.likelihood.noise is None else 0.5 * misfit
        return Point(weights, self.scale * score, self.scale * loss, (nll, misfit))

    def problem(self, weights: Float[Tensor, " d"]) -> Problem:
        """Newton's matrix."""
        return self.points.problem(weights, self.prior, self.scale)

    def line(self, point: Point, step: Float[Tensor, " d"]) -> _Line:
        """The outputs move along a line with the weights: one pass tells all of it, where they fit the memory."""
        product = self.points.curvature(point.weights)
        ray = None if product.shift is None else Ray.of(product.linearisation.visit(), product.shift, step)
        return _Line(self, point.weights, step, ray)

    def batches(self, batch: int) -> Iterator[Iterator[Piece]]:
        """The loss chunk by chunk, in mini-batches in the order of the data; see ``Linearisation.batches``."""
        for chunks in self.points.product.linearisation.batches(batch=batch):
            yield (self._piece(chunk) for chunk in chunks)

    def _piece(self, chunk: Linear) -> Piece:
        likelihood, affine = self.points.training.likelihood, self.points.affine
        offset = self.points.training.network.weights if affine else 0.0

        def score(w: Tensor) -> Tensor:
            h = chunk.at(w - offset, affine)
            return self.scale * chunk.pull(likelihood.score(h, chunk.targets)[None])[:, 0]

        return Piece(score, chunk.examples)


@final
@dataclass(frozen=True, eq=False)
class _Line:
    """The loss at ``w + t p``; see ``Line``."""

    loss: TangentLoss
    weights: Float[Tensor, " d"]
    step: Float[Tensor, " d"]
    ray: Ray | None

    def value(self, length: float) -> float:
        """What it is, up to a constant."""
        if self.ray is not None:
            return self.loss.scale * self.ray.loss(self.loss.points.training.likelihood, length)
        return self.loss.evaluate(self.weights + length * self.step).loss

    def slope(self, length: float) -> float:
        """Its derivative in t."""
        if self.ray is not None:
            return self.loss.scale * self.ray.slope(self.loss.points.training.likelihood, length)
        score = self.loss.evaluate(self.weights + length * self.step).score
        return -float(score.double() @ self.step.double())

    def end(self, length: float) -> Point:
        """The loss and its gradient."""
        weights = self.weights + length * self.step
        if self.ray is not None:
            self.loss.points.know(weights, self.ray.end(length))
        return self.loss.evaluate(weights)
