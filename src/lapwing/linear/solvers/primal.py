"""Stochastic gradient descent in the function view: on the squared error of the data, with a random regulariser."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import ClassVar, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lapwing.ground import probes
from lapwing.ground.errors import check_count, check_fraction
from lapwing.ground.progress import Bar
from lapwing.ground.results import Solution, Stopped
from lapwing.linalg import Dense, Diagonal, FunctionOperator, Structured
from lapwing.linear.gauss_newton import Gram
from lapwing.linear.problem import Problem
from lapwing.linear.solvers.descent import Gradient, descend
from lapwing.linear.solvers.dual import GROWTH, LOOKS, SAFE, coordinates, largest_eigenvalue
from lapwing.linear.solvers.stochastic import (
    Distance,
    Stochastic,
    function_distance,
    relative,
    shortened,
    squared_error,
)

FACTOR = 2**31
"""Bytes the matrix of the inducing points may take to be factored (2 GiB)."""


@final
@dataclass(frozen=True)
class PrimalSGD(Stochastic):
    """Mini-batch descent on ``½ |b - K x|²_{N⁻¹} + ½ xᵀ K x``, whose minimum solves ``(K + N) x = b``.

        g = n/r Σ_{i∈I} (ν/N_i) k_i (k_iᵀ x - b_i) + ν Φ Φᵀ x                (Antorán 2024, equations 4.5 and 4.6)

    for r random rows of K, fresh random features Φ each step, and ν the mean noise variance. Its condition is that of K
    squared, so that steps are short and the solution itself is far, but what it predicts near data is good early: it
    stands for the method that ``SDD`` improves on. Draws are solved for in their low-variance form (equation 4.7): the
    noise enters through the regulariser, which no mini-batch perturbs.

    With ``inducing`` the mean and the draws are sums over fewer points: of those more alike than that, one is kept
    (section 4.3). A step then costs ``r m`` entries of K for m kept points. Where they are too sparse, about half a
    length-scale apart, what is not known is overstated.

    Args:
        steps: Steps T.
        batch: Rows r of a step, none twice.
        features: Random features of a step.
        inducing: Correlation under the prior above which one of two points is left out; ``None`` keeps all.
        rtol: Relative residual at which it ends, as ``SDD``'s. With inducing points it is that of the normal equations,
            whose largest eigenvalues hide all others, so that predictions at the data must be as near to those of the
            solution too, root mean square, in the scale of the targets. Of that there is an estimate, by
            ``squared_error``. It is what ``error`` of the solution says.
        step: β n, in the units of the source, whose objective is ν times the above; ``None`` for three quarters of the
            longest stable one, ``2 (1 + ρ) / ((1 + 2ρ) λ₁ (λ₁ + ν))``. One that diverges is halved.
        momentum: ρ.
        seed: Of everything random.
        max_bytes: Memory the blocks may take; more columns than fit are solved one block after another.
        progress: Whether to show a progress bar with the residual; ``None`` for after two seconds, in a terminal or
            notebook.

    Raises:
        ConfigError: If a number makes no sense; it names the one.

    Cost:
        A step: r rows, ``features`` random features of every point, and ``2 n (r + features)`` multiplications a
        column. Twenty products with the matrix for residuals in all; with inducing points forty, ten more for each look
        at the error where the residual is small, and the factor of their matrix for up to 16,384 of them.

    Example:
        >>> PrimalSGD(steps=5_000).features
        100
    """

    cure = "more steps, SDD(), or CG()"
    columns: ClassVar[int] = 6

    steps: int = 100_000
    batch: int = 128
    features: int = 100
    inducing: float | None = None
    rtol: float = 1e-2
    step: float | None = None
    momentum: float = 0.9
    seed: int = 0
    max_bytes: int = 2**30
    progress: bool | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("steps", self.steps)
        check_count("features", self.features)
        if self.inducing is not None:
            check_fraction("inducing", self.inducing, "PrimalSGD(inducing=0.8)")

    def drawn(
        self,
        problem: Problem,
        values: Float[Tensor, "d k"],
        noise: Float[Tensor, "d k"],
        *,
        initial: Float[Tensor, "d k"] | None = None,
    ) -> Solution:
        """See ``Solver.drawn``; with all points by ``x = γ + N⁻¹ ε``, where γ has no noise among its targets."""
        if self.inducing is not None:
            return super().drawn(problem, values, noise, initial=initial)
        shift = noise / problem.prior.values[:, None]
        rest = values - problem.scale * (problem.curvature @ shift)
        length = torch.linalg.vector_norm(rest, dim=0) / torch.linalg.vector_norm(values + noise, dim=0)
        solver = replace(self, rtol=self.rtol / max(1.0, float(length.max())))
        found = solver.solve(problem, rest, initial=-shift if initial is None else initial - shift)
        unit = problem.prior.values.sqrt()[:, None]
        share = relative(rest / unit, (values + noise) / unit)
        error = None if found.error is None else found.error * share
        return replace(found, value=found.value + shift, residual=found.residual * length, error=error)

    def descent(
        self, problem: Problem, columns: int
    ) -> Callable[[Float[Tensor, "n k"], Float[Tensor, "n k"]], Solution]:
        """See ``Stochastic.descent``."""
        generator = torch.Generator().manual_seed(self.seed)
        noise, n = problem.prior.values, problem.size
        level = float(noise.mean())
        step = self.step
        if step is None:
            largest = largest_eigenvalue(problem, generator)
            curvature = largest * (largest * level / float(noise.min()) + level)
            step = SAFE * 2 * (1 + self.momentum) / ((1 + 2 * self.momentum) * curvature) * n
        induced = None if self.inducing is None else InducingPoints.thinned(problem, self.inducing, generator)
        return shortened(partial(self._descend, problem, induced, generator), step, n)

    def _descend(
        self,
        problem: Problem,
        induced: InducingPoints | None,
        generator: torch.Generator,
        b: Tensor,
        start: Tensor,
        step: float,
    ) -> Solution | None:
        """One descent with a constant step; ``None`` where it diverges."""
        look = max(1, self.steps // LOOKS)
        points = None if induced is None else induced.points
        at = slice(None) if points is None else points
        passes = descend(
            start[at],
            lambda: islice(self._gradients(problem, b, points, generator), look),
            step=step,
            steps=self.steps,
            momentum=self.momentum,
        )

        def distance(within: float) -> Distance:
            if induced is None:
                return function_distance(problem, b, x)
            return induced.distance(problem, b, x, within)

        x, taken = start, 0
        within = self.rtol
        stopped: Stopped = "interrupted"
        bar = Bar("primal descent", most=self.steps, progress=self.progress)
        with suppress(KeyboardInterrupt), bar:
            for now in islice(passes, -(-self.steps // look)):
                since = now.steps - taken
                x, taken = torch.zeros_like(start), now.steps
                x[at] = now.value
                found = distance(within)
                left = float(found.residual.max())
                bar.update(since, f"residual {left:.1e}, done at {self.rtol:.1e}")
                if now.diverged or not left < GROWTH:
                    return None
                if found.worst <= self.rtol:
                    stopped = "converged"
                    break
                if left <= within:
                    within = left / 2
            else:
                stopped = "iterations"
        found = distance(math.inf)
        matvecs = b.shape[1] * (2 * taken * self.batch // problem.size + LOOKS)
        return Solution(x, found.residual, taken, matvecs, stopped, found.error)

    def _gradients(
        self, problem: Problem, b: Tensor, points: Tensor | None, generator: torch.Generator
    ) -> Iterator[Gradient]:
        """Unbiased estimates of the gradient, without end."""
        noise, n, gram = problem.prior.values, problem.size, problem.curvature
        level = float(noise.mean())
        for index in coordinates(n, self.batch, b.device, generator):
            rows = problem.scale * gram.rows(index, points)
            phi = gram.features(self.features, generator, points)
            weight = level / noise[index, None] * n / len(index)

            def gradient(
                x: Tensor, rows: Tensor = rows, phi: Tensor = phi, weight: Tensor = weight, index: Tensor = index
            ) -> Tensor:
                found = rows.mT @ (weight * (rows @ x - b[index]))
                return found.addmm_(phi, phi.mT @ x, alpha=level * problem.scale)

            yield gradient


@final
@dataclass(frozen=True, eq=False)
class InducingPoints:
    """Fewer points Z than observations, whose weights solve ``(K_ZX N⁻¹ s K_XZ + K_ZZ) x = K_ZX N⁻¹ b``.

    Args:
        points: Which of the observations.
        prior: ``K_ZZ``, to rounding; its diagonal where it would take more than 2 GiB.
    """

    points: Int[Tensor, " m"]
    prior: Structured

    @classmethod
    def thinned(cls, problem: Problem, correlation: float, generator: torch.Generator) -> InducingPoints:
        """Those no two of which are more alike; see ``thinned``."""
        gram = problem.curvature
        points = thinned(gram, correlation, generator)
        diagonal = gram.diagonal()[points].double()
        if 8 * len(points) ** 2 > FACTOR:
            return cls(points, Diagonal(diagonal))
        rounding = torch.finfo(gram.dtype).eps ** 0.5 * float(diagonal.max())
        return cls(points, Dense(gram.rows(points, points).double(), shift=rounding))

    def distance(self, problem: Problem, b: Float[Tensor, "n k"], x: Float[Tensor, "n k"], within: float) -> Distance:
        """How far from the solution some weights are.

        Args:
            problem: The problem of all observations.
            b: Right-hand sides.
            x: Weights, 0 at all other points.
            within: Residual of the normal equations up to which the error is estimated; infinite beyond.

        Cost:
            Three products with K; ten more for the error.
        """
        gram = problem.curvature
        scale = problem.scale
        noise = problem.prior.values[:, None]
        points = self.points

        def precision(block: Float[Tensor, "m k"]) -> Float[Tensor, "m k"]:
            whole = block.new_zeros(problem.size, block.shape[1]).index_copy_(0, points, block)
            values = gram @ whole
            return (gram @ (scale * values / noise))[points] + values[points]

        target = (gram @ (b / noise))[points]
        rest = target - precision(x[points])
        residual = relative(rest, target)
        if not float(residual.max()) <= within:
            return Distance(residual, torch.full_like(residual, math.inf))
        shape = (len(points), len(points))
        off = squared_error(FunctionOperator(precision, precision, shape, noise), rest, self.prior)
        size = torch.linalg.vector_norm(b / noise.sqrt(), dim=0, dtype=torch.float64)
        return Distance(residual, (scale * off).sqrt() / torch.where(size > 0, size, 1.0))


def thinned(gram: Gram, correlation: float, generator: torch.Generator) -> Int[Tensor, " m"]:
    """Points of a kernel matrix none two of which are more alike, with every other one near one of them.

    Args:
        gram: K.
        correlation: ``k(x, x') / √(k(x, x) k(x', x'))`` above which one of two is left out.
        generator: The order in which they are gone through.

    Cost:
        A row for each that is kept; memory of 128 rows.
    """
    root = gram.diagonal().sqrt()
    order = torch.tensor(probes.permutation(len(root), generator=generator), device=root.device)
    left, kept = torch.ones_like(root, dtype=torch.bool), list[Tensor]()
    for part in order.split(128):
        block = part[left[part]]
        near = gram.rows(block) > correlation * root[block, None] * root
        for point, neighbours in zip(block, near, strict=True):
            if left[point]:
                kept.append(point)
                left &= ~neighbours
    return torch.stack(kept).sort().values
