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
from lapwing.ground.precision import wide
from lapwing.ground.progress import Bar
from lapwing.ground.results import Solution, Stopped
from lapwing.linalg import Dense, Diagonal, FunctionOperator, Structured
from lapwing.linear.nesterov import Gradient, descend
from lapwing.linear.problem import Problem
from lapwing.linear.psd_operator import PSDOperator
from lapwing.linear.solvers.base import relative
from lapwing.linear.solvers.stochastic.base import Distance, Stochastic, squared_error
from lapwing.linear.solvers.stochastic.kernel_rows import (
    GROWTH,
    LOOKS,
    SAFE,
    coordinates,
    function_distance,
    largest_eigenvalue,
    shortened,
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
    blocks: ClassVar[int] = 6

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

    def with_progress(self, progress: bool) -> PrimalSGD:
        """See ``Solver.with_progress``."""
        return replace(self, progress=progress)

    def descent(
        self, problem: Problem, columns: int
    ) -> Callable[[Float[Tensor, "n k"], Float[Tensor, "n k"]], Solution]:
        """See ``Stochastic.descent``."""
        generator = torch.Generator().manual_seed(self.seed)
        noise = problem.prior.values
        n = problem.size
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
        place = slice(None) if points is None else points

        def epoch() -> Iterator[Gradient]:
            return islice(self._gradients(problem, b, points, generator), look)

        def distance(x: Float[Tensor, "n k"], within: float) -> Distance:
            if induced is None:
                return function_distance(problem, b, x)
            return induced.distance(problem, b, x, within)

        descent = descend(start[place], epoch, step=step, steps=self.steps, momentum=self.momentum)
        x = start
        taken = 0
        within = self.rtol
        stopped: Stopped = "interrupted"
        bar = Bar("primal descent", most=self.steps, progress=self.progress)
        with suppress(KeyboardInterrupt), bar:
            for now in islice(descent, math.ceil(self.steps / look)):
                x = torch.zeros_like(start)
                x[place] = now.value
                found = distance(x, within)
                residual = float(found.residual.max())
                bar.update(now.steps - taken, f"residual {residual:.1e}, done at {self.rtol:.1e}")
                taken = now.steps
                if now.diverged or not residual < GROWTH:
                    return None
                if found.worst <= self.rtol:
                    stopped = "converged"
                    break
                if residual <= within:
                    within = residual / 2
            else:
                stopped = "iterations"
        found = distance(x, math.inf)
        matvecs = b.shape[1] * (2 * taken * self.batch // problem.size + LOOKS)
        return Solution(x, found.residual, taken, matvecs, stopped, found.error)

    def _gradients(
        self, problem: Problem, b: Tensor, points: Tensor | None, generator: torch.Generator
    ) -> Iterator[Gradient]:
        """Unbiased estimates of the gradient, without end."""
        noise = problem.prior.values
        level = float(noise.mean())
        for index in coordinates(problem.size, self.batch, b.device, generator):
            yield PrimalGradient(
                rows=problem.scale * problem.curvature.rows(index, points),
                targets=b[index],
                weight=level / noise[index, None] * problem.size / len(index),
                features=problem.curvature.features(self.features, generator, points),
                level=level * problem.scale,
            )


@final
@dataclass(frozen=True, eq=False)
class PrimalGradient:
    """``Kᵀ_I (W (K_I x - b_I)) + ν Φ Φᵀ x`` for some rows I and random features Φ.

    Args:
        rows: ``K_I``.
        targets: ``b_I``.
        weight: W, of each row.
        features: Φ.
        level: ν.
    """

    rows: Float[Tensor, "r n"]
    targets: Float[Tensor, "r k"]
    weight: Float[Tensor, "r 1"]
    features: Float[Tensor, "n D"]
    level: float

    def __call__(self, x: Float[Tensor, "n k"]) -> Float[Tensor, "n k"]:
        """The gradient at x."""
        gradient = self.rows.mT @ (self.weight * (self.rows @ x - self.targets))
        return gradient.addmm_(self.features, self.features.mT @ x, alpha=self.level)


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
        kernel = problem.curvature
        points = thinned(kernel, correlation, generator)
        diagonal = wide(kernel.diagonal()[points])
        if 8 * len(points) ** 2 > FACTOR:
            return cls(points, Diagonal(diagonal))
        rounding = torch.finfo(kernel.dtype).eps ** 0.5 * float(diagonal.max())
        return cls(points, Dense(wide(kernel.rows(points, points)), shift=rounding))

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
        kernel = problem.curvature
        scale = problem.scale
        noise = problem.prior.values[:, None]
        points = self.points

        def precision(block: Float[Tensor, "m k"]) -> Float[Tensor, "m k"]:
            whole = block.new_zeros(problem.size, block.shape[1]).index_copy_(0, points, block)
            values = kernel @ whole
            return (kernel @ (scale * values / noise))[points] + values[points]

        target = (kernel @ (b / noise))[points]
        rest = target - precision(x[points])
        residual = relative(rest, target)
        if not float(residual.max()) <= within:
            return Distance(residual, torch.full_like(residual, math.inf))
        shape = (len(points), len(points))
        off = squared_error(FunctionOperator(precision, precision, shape, noise), rest, self.prior)
        size = torch.linalg.vector_norm(wide(b / noise.sqrt()), dim=0)
        return Distance(residual, (scale * off).sqrt() / torch.where(size > 0, size, 1.0))


def thinned(kernel: PSDOperator, correlation: float, generator: torch.Generator) -> Int[Tensor, " m"]:
    """Points of a kernel matrix none two of which are more alike, with every other one near one of them.

    Args:
        kernel: K.
        correlation: ``k(x, x') / √(k(x, x) k(x', x'))`` above which one of two is left out.
        generator: The order in which they are gone through.

    Cost:
        A row for each that is kept; memory of 128 rows.
    """
    root = kernel.diagonal().sqrt()
    order = torch.tensor(probes.permutation(len(root), generator=generator), device=root.device)
    is_left = torch.ones_like(root, dtype=torch.bool)
    chosen = list[Tensor]()
    for part in order.split(128):
        block = part[is_left[part]]
        near = kernel.rows(block) > correlation * root[block, None] * root
        for point, neighbours in zip(block, near, strict=True):
            if is_left[point]:
                chosen.append(point)
                is_left &= ~neighbours
    return torch.stack(chosen).sort().values
