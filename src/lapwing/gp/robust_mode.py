"""The mode of a Gaussian process under Student-t noise, whose loss is not convex: by reweighting, from wide scales."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.errors import NumericalError
from lapwing.ground.progress import Bar
from lapwing.ground.results import Stopped
from lapwing.likelihoods import StudentT
from lapwing.likelihoods.student_t import LARGEST
from lapwing.linalg.cholesky import cholesky_or_none
from lapwing.linear.mode.loss import Mode

WIDENED = (256.0, 64.0, 16.0, 4.0)
"""Factors of the scale at which minima are looked for: from those of the one before, and from its Gaussian start."""

LOOSELY = 1e-3
"""Relative gradient at which a minimum at one scale is left for the next."""

ALIKE = 0.1
"""Minima whose outputs are nowhere further apart, in units of the scale, are taken for one."""

STEPS = 300
"""Most steps of a descent."""

ROUNDING = 1e-13
"""Part of a loss that is taken for rounding."""

ESCAPES = tuple(sign * 4.0**power for power in range(-12, 3) for sign in (1, -1))
"""Lengths of the steps tried along a direction in which a stationary point is no minimum; u is of size 1."""


@final
@dataclass(frozen=True, eq=False)
class RobustLoss:
    """``ψ(u) = -log p(y | L u) + ½ |u|²`` of a process with Student-t noise and one output.

    Args:
        root: L, with ``K = L Lᵀ``, float64.
        targets: y, float64.
        likelihood: p(y | f).
        kernel_matrix: K.
    """

    root: Float[Tensor, "n n"]
    targets: Float[Tensor, " n"]
    likelihood: StudentT
    kernel_matrix: Float[Tensor, "n n"]

    @classmethod
    def of(cls, root: Float[Tensor, "n n"], targets: Float[Tensor, " n"], likelihood: StudentT) -> RobustLoss:
        """The loss of a factor L."""
        return cls(root, targets, likelihood, root @ root.mT)

    def widened(self, factor: float) -> RobustLoss:
        """The same with a wider scale."""
        scale = min(factor * self.likelihood.scale, LARGEST)
        return replace(self, likelihood=replace(self.likelihood, scale=scale))

    def at(self, u: Float[Tensor, " n"]) -> RobustPoint:
        """The loss at some u."""
        return RobustPoint(self, u)

    def with_gaussian_noise(self) -> RobustPoint:
        """Where its minimum would be if all targets had the noise of those that are near."""
        nothing = torch.zeros_like(self.targets)
        largest = self.likelihood.noise_precisions(nothing, nothing)
        return self.at(self.solve(largest, self.root.mT @ (largest * self.targets)))

    def precision(self, curvature: Float[Tensor, " n"]) -> Float[Tensor, "n n"]:
        """``1 + Lᵀ C L`` of a diagonal C."""
        matrix = self.root.mT @ (curvature[:, None] * self.root)
        matrix = 0.5 * (matrix + matrix.mT)
        matrix.diagonal().add_(1.0)
        return matrix

    def solve(self, curvature: Float[Tensor, " n"], right: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        """``(1 + Lᵀ C L)⁻¹ b = b - Lᵀ √C (1 + √C K √C)⁻¹ √C L b`` where C is not negative.

        Rasmussen & Williams 2006, equations 3.26 and 3.27.

        Args:
            curvature: C.
            right: b.

        Raises:
            NumericalError: If entries overflow.
        """
        root = curvature.sqrt()
        matrix = root[:, None] * self.kernel_matrix * root
        matrix.diagonal().add_(1.0)
        lower = cholesky_or_none(matrix)
        if lower is None or not bool(lower.isfinite().all()):
            got = f"a scale of {self.likelihood.scale:.3g} for targets up to {float(self.targets.abs().max()):.3g}"
            raise NumericalError("a finite loss under Student-t noise", got, "targets and a scale of size 1")
        moved = torch.cholesky_solve((root * (self.root @ right))[:, None], lower)[:, 0]
        return right - self.root.mT @ (root * moved)


@final
@dataclass(frozen=True, eq=False)
class RobustPoint:
    """What a loss is at some u.

    Args:
        loss: ψ.
        u: u.
    """

    loss: RobustLoss
    u: Float[Tensor, " n"]

    @cached_property
    def outputs(self) -> Float[Tensor, " n"]:
        """``f = L u``."""
        return self.loss.root @ self.u

    @cached_property
    def nll(self) -> float:
        """``-log p(y | f)``, nats."""
        return float(self.loss.likelihood.nll(self.outputs[:, None], self.loss.targets[:, None]).sum())

    @property
    def value(self) -> float:
        """ψ."""
        return self.nll + 0.5 * float(self.u.square().sum())

    @cached_property
    def gradient(self) -> Float[Tensor, " n"]:
        """``u - Lᵀ ∇ log p(y | f)``."""
        return self.u - self._pull

    @cached_property
    def relative(self) -> float:
        """The length of the gradient relative to those of its two parts."""
        length = float(self.gradient.norm())
        return 0.0 if length == 0 else length / max(float(self.u.norm()), float(self._pull.norm()))

    @cached_property
    def curvature(self) -> Float[Tensor, " n"]:
        """W, the second derivative of the loss of each target: negative of those that are far off."""
        return self.loss.likelihood.second_derivative(self.outputs, self.loss.targets)

    @property
    def hessian(self) -> Float[Tensor, "n n"]:
        """``1 + Lᵀ W L``."""
        return self.loss.precision(self.curvature)

    @cached_property
    def is_near_all(self) -> bool:
        """Whether no target is so far off that its loss is bent downwards."""
        return bool((self.curvature >= 0).all())

    @cached_property
    def hessian_root(self) -> Float[Tensor, "n n"] | None:
        """A Cholesky factor of the Hessian; ``None`` where it is not positive definite."""
        return cholesky_or_none(self.hessian)

    @property
    def is_convex(self) -> bool:
        """Whether the Hessian is positive definite: a stationary point is then a strict minimum."""
        return self.is_near_all or self.hessian_root is not None

    def exceeds(self, least: float) -> bool:
        """Whether the Hessian is more than so many times that of the prior, which is 1, in every direction.

        Args:
            least: So many, below 1.
        """
        if self.is_near_all:
            return True
        matrix = self.hessian
        matrix.diagonal().sub_(least)
        return cholesky_or_none(matrix) is not None

    def newton(self) -> RobustPoint | None:
        """The point a step of Newton's method leads to; ``None`` where the loss is not convex."""
        if self.is_near_all:
            return self.loss.at(self.u - self.loss.solve(self.curvature, self.gradient))
        if self.hessian_root is None:
            return None
        step = torch.cholesky_solve(self.gradient[:, None], self.hessian_root)[:, 0]
        return self.loss.at(self.u - step)

    def reweighted(self) -> RobustPoint:
        """The point to which solving with the expected noise precisions leads: the step of EM, never to a higher loss.

        Given its precision the noise is Gaussian (Vanhatalo, Jylänki & Vehtari 2009). The loss lies below
        the quadratic that touches it here, whose minimum this is.
        """
        expected = self.loss.likelihood.noise_precisions(self.outputs, self.loss.targets)
        return self.loss.at(self.u - self.loss.solve(expected, self.gradient))

    def downhill(self) -> RobustPoint:
        """The lowest of some points along the direction in which the loss is bent down most."""
        _, vectors = torch.linalg.eigh(self.hessian)
        points = [self.loss.at(self.u + length * vectors[:, 0]) for length in ESCAPES]
        return min(points, key=lambda point: point.value)

    def improves(self, other: RobustPoint) -> bool:
        """Whether it is lower than another point, or as low up to rounding with a much smaller gradient."""
        slack = ROUNDING * (abs(other.nll) + abs(other.value) + len(self.u))
        lower = self.value < other.value - slack
        return lower or (self.value <= other.value + slack and self.relative < 0.5 * other.relative)

    @cached_property
    def _pull(self) -> Float[Tensor, " n"]:
        score = self.loss.likelihood.score(self.outputs[:, None], self.loss.targets[:, None])
        return self.loss.root.mT @ score[:, 0]


def robust_mode(
    loss: RobustLoss,
    starts: Sequence[Float[Tensor, " n"]],
    *,
    rtol: float,
    progress: bool | None = None,
) -> Mode:
    """The lowest minimum that is found from several starts.

    At a scale so wide that no target is far off the loss is convex where its minimum is, which is about that of
    Gaussian noise. As the scale narrows minima move and appear: each is followed, and each scale adds the one that is
    found from its Gaussian start. Where targets contradict each other there may be lower ones that are not found.

    Args:
        loss: ψ.
        starts: Further u to start from, at the scale itself.
        rtol: Relative gradient at which the mode is found.
        progress: Whether to show a progress bar; ``None`` for after two seconds, in a terminal or notebook.

    Cost:
        A few dozen Cholesky factors, and a product of n x n matrices for each of them while targets are far off.
    """
    with Bar("mode", progress=progress) as bar:
        followed: list[Float[Tensor, " n"]] = []
        for factor in WIDENED:
            followed = [point.u for point in minima_from(loss.widened(factor), followed, bar)]
        lowest = min(minima_from(loss, [*followed, *starts], bar), key=lambda point: point.value)
        best, stopped = descended(lowest, rtol, bar)
    return Mode(best.u, best.nll, 0.0, best.relative, bar.done, bar.done, stopped)


def minima_from(loss: RobustLoss, starts: Sequence[Float[Tensor, " n"]], bar: Bar) -> list[RobustPoint]:
    """The different minima below some starts and the Gaussian one, nearly.

    Args:
        loss: ψ.
        starts: u.
        bar: Of the steps.
    """
    minima: list[RobustPoint] = []
    for point in (loss.with_gaussian_noise(), *map(loss.at, starts)):
        found, _ = descended(point, LOOSELY, bar)
        if all(apart(found, other) > ALIKE for other in minima):
            minima.append(found)
    return minima


def descended(start: RobustPoint, rtol: float, bar: Bar, most: int = STEPS) -> tuple[RobustPoint, Stopped]:
    """The minimum below a start, and why the steps to it ended.

    Args:
        start: Where to start.
        rtol: Relative gradient at which it is found.
        bar: Of the steps.
        most: Most steps.
    """
    point = start
    for _ in range(most):
        if point.relative <= rtol:
            if point.is_convex:
                return point, "converged"
            following = point.downhill()
        else:
            newton = point.newton()
            following = newton if newton is not None and newton.improves(point) else point.reweighted()
        if not following.improves(point):
            return point, "stagnated"
        point = following
        bar.update(said=f"gradient {point.relative:.1e}, done at {rtol:.1e}")
    return point, "iterations"


def apart(one: RobustPoint, other: RobustPoint) -> float:
    """The largest distance of two points' outputs, in units of the scale."""
    return float((one.outputs - other.outputs).abs().max()) / one.loss.likelihood.scale
