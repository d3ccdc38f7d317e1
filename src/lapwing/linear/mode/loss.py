"""The convex loss of a linear model with a Gaussian prior, as minimisers see it: at weights, along lines, in pieces."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.precision import wide
from lapwing.ground.results import Ended, Stopped
from lapwing.linalg import Diagonal
from lapwing.linear.gauss_newton import SPARE, GGNProduct, outputs_at, signature
from lapwing.linear.model import Chunk, LinearModel, batches
from lapwing.linear.problem import CachedCurvature, Problem


@final
@dataclass(frozen=True, eq=False)
class Ray:
    """How the outputs of a chunk of the data move along a line, ``h + t J p``.

    Args:
        inputs: The signature of its inputs.
        outputs: h.
        change: ``J p``.
        targets: Its targets.
    """

    inputs: bytes
    outputs: Float[Tensor, "n *event c"]
    change: Float[Tensor, "n *event c"]
    targets: Tensor

    def outputs_at(self, length: float) -> Float[Tensor, "n *event c"]:
        """The outputs at ``t = length``."""
        return self.outputs + length * self.change


@final
@dataclass(frozen=True, eq=False)
class Mode(Ended):
    """The mode w* of the tangent model.

    Args:
        weights: w*.
        nll: Negative log likelihood of all targets at h(w*, ·), by the fitted likelihood, nats.
        misfit: For Gaussian noise the squared error at h(w*, ·), weighted by the fitted noise precision; 0 for others.
        gradient: ``|A^-½ ∇| / |w|_A`` with ∇ the gradient of the objective: with a convex loss w* is at most this far
            from the mode, in units of its own length in the norm of the prior.
        iterations: Newton steps, or steps of the descent.
        matvecs: Columns multiplied by the curvature, and gradients over all data.
        stopped: Why the iteration ended.
    """

    weights: Float[Tensor, " d"]
    nll: float
    misfit: float
    gradient: float
    iterations: int
    matvecs: int
    stopped: Stopped


@final
@dataclass(frozen=True, eq=False)
class LossAt:
    """What one pass over the data says at some weights.

    Args:
        weights: w.
        curvature: G with B at ``h(w, ·)``.
        score: Gradient of the log likelihood.
        nll: Negative log likelihood, nats.
        misfit: Squared error weighted by the noise precision; 0 where the loss is no square.
    """

    weights: Float[Tensor, " d"]
    curvature: GGNProduct
    score: Float[Tensor, " d"]
    nll: float
    misfit: float

    @classmethod
    def of(cls, weights: Float[Tensor, " d"], curvature: GGNProduct) -> LossAt:
        """A pass over the data."""
        likelihood = curvature.model.likelihood
        data = curvature.model.data
        score = torch.zeros_like(weights)
        nll = 0.0
        misfit = 0.0
        for chunk, h in curvature.visit():
            likelihood.check(h, chunk.targets)
            nll += float(likelihood.total_nll(h, chunk.targets))
            misfit += float(likelihood.misfit(h, chunk.targets))
            score += chunk.pull(likelihood.score(h, chunk.targets)[None])[:, 0]
        nll, misfit = data.added(torch.tensor([nll, misfit], dtype=torch.float64)).tolist()
        return cls(weights, curvature, data.added(score), nll, misfit)


@final
@dataclass(frozen=True, eq=False)
class Loss:
    """``s Σ_i ℓ(y_i, h(w, x_i)) + ½ |w|²_A``, convex in w.

    Args:
        model: The linear model.
        prior: A.
        scale: s.
        affine: Whether h has the model's own outputs as an offset.
        curvature_cache: Approximations of G, shared by all problems.
        spare: Bytes that the outputs of all data may take, to be kept.
    """

    model: LinearModel
    prior: Diagonal
    scale: float = 1.0
    affine: bool = True
    curvature_cache: dict[object, CachedCurvature] = field(default_factory=dict, repr=False)
    spare: int = SPARE

    def at_weights(self, weights: Float[Tensor, " d"]) -> LossAt:
        """A pass over the data."""
        return LossAt.of(weights, GGNProduct(self.model, weights, self.affine, spare=self.spare))

    def problem(self, point: LossAt) -> Problem:
        """Its second derivative: Newton's matrix Λ."""
        return Problem(point.curvature, self.prior, self.scale, self.curvature_cache)

    def value(self, point: LossAt) -> float:
        """What it is, up to a constant."""
        loss = point.nll if self.model.likelihood.noise is None else 0.5 * point.misfit
        return self.scale * loss + 0.5 * dot(point.weights, self.prior @ point.weights)

    def gradient(self, point: LossAt) -> tuple[Float[Tensor, " d"], float]:
        """Its gradient, and the length of that relative to those of its two parts, in the units of the prior."""
        pull = self.prior @ point.weights
        score = self.scale * point.score
        gradient = pull - score
        unit = wide(self.prior.values).rsqrt()
        length, *parts = (float(torch.linalg.vector_norm(unit * wide(part))) for part in (gradient, pull, score))
        return gradient, length / max(parts) if length > 0 else 0.0

    def line(self, point: LossAt, step: Float[Tensor, " d"]) -> Line:
        """Its part that the data have, along a step."""
        line = Line(self, point, step)
        rays = list[Ray]()
        room = self.spare
        for ray in line.rays:
            room -= 2 * ray.outputs.nbytes
            if room < 0:
                return line
            rays.append(ray)
        return replace(line, known_rays=rays)

    def scores(self, batch: int) -> Iterator[Iterator[Callable[[Tensor], Tensor]]]:
        """Minus the gradient of each chunk's part, chunks in mini-batches; see ``model.batches``."""
        for chunks in batches(self.model, batch=batch):
            yield (partial(self._score, chunk) for chunk in chunks)

    def _score(self, chunk: Chunk, w: Float[Tensor, " d"]) -> Float[Tensor, " d"]:
        h = outputs_at(chunk, self.model, w, self.affine)
        return self.scale * chunk.pull(self.model.likelihood.score(h, chunk.targets)[None])[:, 0]


@final
@dataclass(frozen=True, eq=False)
class Line:
    """A loss without its prior at ``w + t p``: the outputs move along a line too, ``h + t J p``.

    Args:
        loss: The loss.
        point: w.
        step: p.
        known_rays: How the outputs of all data move, where they fit the memory; else a pass over the data says, each
            time.
    """

    loss: Loss
    point: LossAt
    step: Float[Tensor, " d"]
    known_rays: list[Ray] | None = None

    @property
    def rays(self) -> Iterable[Ray]:
        """How the outputs of each chunk move."""
        return self._read() if self.known_rays is None else self.known_rays

    def _read(self) -> Iterator[Ray]:
        for chunk, h in self.point.curvature.visit():
            yield Ray(signature(chunk.inputs), h, chunk.push(self.step[:, None])[0], chunk.targets)

    def value(self, length: float) -> float:
        """What it is at ``t = length``."""
        total_nll = self.loss.model.likelihood.total_nll
        return self._added(float(total_nll(ray.outputs_at(length), ray.targets)) for ray in self.rays)

    def slope(self, length: float) -> float:
        """Its derivative in t, at ``t = length``."""
        score = self.loss.model.likelihood.score
        return -self._added(
            dot(score(ray.outputs_at(length), ray.targets).flatten(), ray.change.flatten()) for ray in self.rays
        )

    def _added(self, parts: Iterable[float]) -> float:
        """S times a sum over all data."""
        return self.loss.scale * float(self.loss.model.data.added(torch.tensor(sum(parts), dtype=torch.float64)))

    def end(self, length: float) -> LossAt:
        """The loss there, its outputs at hand."""
        weights = self.point.weights + length * self.step
        outputs = {ray.inputs: ray.outputs_at(length) for ray in self.known_rays or ()}
        return LossAt.of(weights, GGNProduct(self.loss.model, weights, self.loss.affine, outputs, self.loss.spare))


def dot(a: Float[Tensor, " d"], b: Float[Tensor, " d"]) -> float:
    """The inner product in float64."""
    return float(wide(a) @ wide(b))
