"""The loss of a linear model as minimisers see it: at points, along lines, and piece by piece."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.errors import ShapeError
from lapwing.linalg import Diagonal, Structured
from lapwing.linear.gauss_newton import GGNProduct
from lapwing.linear.model import Chunk, LinearModel
from lapwing.linear.problem import Problem
from lapwing.linear.shift import Ray, Shift
from lapwing.linear.solvers.newton import Point, gradient_of, search
from lapwing.linear.solvers.stochastic import Piece

Target: TypeAlias = Literal["affine", "simplified"]
"""Whether the linear model has its outputs at w̃ as an offset."""


@final
@dataclass(frozen=True, eq=False)
class Points:
    """Weights w of a linear model; what the last ones took is at hand.

    Args:
        model: The linear model and its data.
        target: ``"affine"`` or ``"simplified"``.
    """

    model: LinearModel
    target: Target
    _last: list[tuple[Tensor, GGNProduct]] = field(default_factory=list, init=False, repr=False)
    _kept: dict[object, Structured] = field(default_factory=dict, init=False, repr=False)

    @property
    def affine(self) -> bool:
        """Whether the outputs at w̃ are added."""
        return self.target == "affine"

    def checked(self, weights: Float[Tensor, " d"]) -> Float[Tensor, " d"]:
        """The weights, if they are as many as are uncertain.

        Raises:
            MismatchError: If what the model stands on was changed since.
            ShapeError: If they are not.
        """
        self.model.check()
        like = self.model.weights
        if weights.shape != like.shape:
            hint = "the uncertain weights as one flat vector"
            raise ShapeError(f"weights of shape {list(like.shape)}", f"{list(weights.shape)}", hint)
        return weights.detach().to(like)

    def curvature(self, weights: Float[Tensor, " d"]) -> GGNProduct:
        """G with B at ``h(w, ·)``."""
        for known, curvature in list(self._last):
            if torch.equal(known, weights):
                return curvature
        found = GGNProduct(self.model).at(weights, affine=self.affine)
        self._last[:] = [(weights, found)]
        return found

    def know(self, weights: Float[Tensor, " d"], shift: Shift) -> None:
        """Have the outputs at w at hand from now on."""
        self._last[:] = [(weights, GGNProduct(self.model, shift))]

    def forget(self) -> None:
        """Compute the next outputs afresh: those at the end of a line differ from them by rounding."""
        self._last.clear()

    def score(self, weights: Float[Tensor, " d"]) -> tuple[Float[Tensor, " d"], float, float]:
        """Gradient of the log likelihood at ``h(w, ·)``, the negative log likelihood, and the misfit."""
        likelihood = self.model.likelihood
        total, nll, misfit = torch.zeros_like(weights), 0.0, 0.0
        for chunk, h in self.curvature(weights).visit():
            likelihood.check(h, chunk.targets)
            nll += float(likelihood.nll(h, chunk.targets).double().sum())
            misfit += float(likelihood.misfit(h, chunk.targets))
            total += chunk.pull(likelihood.score(h, chunk.targets)[None])[:, 0]
        return total, nll, misfit

    def problem(self, weights: Float[Tensor, " d"], prior: Diagonal, scale: float) -> Problem:
        """Newton's matrix; approximations of G are shared by all of them."""
        return Problem(self.curvature(weights), prior, scale, self._kept)


@final
@dataclass(frozen=True, eq=False)
class TangentLoss:
    """``s Σ_i ℓ(y_i, h(w, x_i))``; see ``newton.Loss``.

    Args:
        points: The linear model.
        prior: A, of the objective's other part.
        scale: s.
    """

    points: Points
    prior: Diagonal
    scale: float

    def lowest(self) -> Point:
        """Where to start: the best point on the way from w̃ to 0."""
        weights = self.points.model.weights
        point = self.evaluate(weights)
        slope, _ = gradient_of(point, self.prior)
        if not float(slope.double() @ weights.double()) > 0:
            return point
        line = self.line(point, -weights)
        return line.end(search(line, point, -weights, self.prior))

    def evaluate(self, weights: Float[Tensor, " d"]) -> Point:
        """A pass over the data."""
        score, nll, misfit = self.points.score(weights)
        loss = nll if self.points.model.likelihood.noise is None else 0.5 * misfit
        return Point(weights, self.scale * score, self.scale * loss, (nll, misfit))

    def problem(self, weights: Float[Tensor, " d"]) -> Problem:
        """Newton's matrix."""
        return self.points.problem(weights, self.prior, self.scale)

    def line(self, point: Point, step: Float[Tensor, " d"]) -> _Line:
        """The outputs move along a line with the weights: one pass tells all of it, where they fit the memory."""
        product = self.points.curvature(point.weights)
        ray = None if product.shift is None else Ray.of(product.model.visit(), product.shift, step)
        return _Line(self, point.weights, step, ray)

    def batches(self, batch: int) -> Iterator[Iterator[Piece]]:
        """The loss chunk by chunk, in mini-batches in the order of the data; see ``LinearModel.batches``."""
        for chunks in self.points.model.batches(batch=batch):
            yield (self._piece(chunk) for chunk in chunks)

    def _piece(self, chunk: Chunk) -> Piece:
        likelihood, affine = self.points.model.likelihood, self.points.affine
        offset = self.points.model.weights if affine else 0.0

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
            return self.loss.scale * self.ray.loss(self.loss.points.model.likelihood, length)
        return self.loss.evaluate(self.weights + length * self.step).loss

    def slope(self, length: float) -> float:
        """Its derivative in t."""
        if self.ray is not None:
            return self.loss.scale * self.ray.slope(self.loss.points.model.likelihood, length)
        score = self.loss.evaluate(self.weights + length * self.step).score
        return -float(score.double() @ self.step.double())

    def end(self, length: float) -> Point:
        """The loss and its gradient."""
        weights = self.weights + length * self.step
        if self.ray is not None:
            self.loss.points.know(weights, self.ray.end(length))
        return self.loss.evaluate(weights)
