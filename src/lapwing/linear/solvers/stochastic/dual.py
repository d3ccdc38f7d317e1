"""Stochastic dual descent: solves in the function view that read a few rows of the kernel matrix at a time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lapwing.ground.errors import check_count, check_positive
from lapwing.ground.progress import Bar
from lapwing.ground.results import Solution, Stopped
from lapwing.linear.nesterov import WINDOW
from lapwing.linear.problem import Problem
from lapwing.linear.solvers.stochastic.base import Distance, Stochastic
from lapwing.linear.solvers.stochastic.deflation import Deflation
from lapwing.linear.solvers.stochastic.kernel_rows import (
    GROWTH,
    LOOKS,
    SAFE,
    coordinates,
    function_distance,
    largest_eigenvalue,
    shortened,
)

LEAST = 16
"""Coordinates of a step, unless fewer are asked for: what is done for all of them costs more than so few rows."""

FOLDED = 100
"""Steps after which what is deflated of them is folded in: kept apart both grow, and all but cancel."""

SKIPPED = 10
"""The average is taken of every so manyeth iterate."""


@final
@dataclass(frozen=True)
class SDD(Stochastic):
    """Stochastic dual descent for ``(s K + N) x = b``, all right-hand sides at once (Antorán 2024, algorithm 1).

        g_I = n/r ((s K + N) p - b)_I,   p = x + ρ v,   v ← ρ v - β g,   x ← x + v

    for r random coordinates I, with Nesterov's momentum and the geometric average of the iterates. It is descent on
    ``½ xᵀ (s K + N) x - bᵀ x``, whose condition is that of the matrix itself, in the norm of K, which bounds the error
    of the function everywhere (equation 4.32); its noise vanishes with the gradient. A step reads r rows. It makes for
    a useful function long before its residual is small, and never mind how small the noise is: where few products
    are affordable take it, where a few hundred are take ``CG``.

    The step is three quarters of the longest that Nesterov's method allows, ``2 (1 + ρ) / ((1 + 2ρ) λ₁)`` with λ₁ from
    the power method on some rows, or that r coordinates allow, ``2 (1 - ρ) r / n`` over the largest entry of the
    diagonal, where that is shorter; one that diverges is halved. Where inputs are so alike that λ₁ is what limits
    it, fewer coordinates do as well, and are taken.

    Long length-scales make λ₁ thousands of times larger than all but a few eigenvalues, and the steps as much shorter.
    So the largest are deflated: along ``rank`` vectors near their own a step is no longer than λ₁ asks for, and
    elsewhere as long as the other eigenvalues allow, see ``Deflation``. The solution is the same.

    Args:
        steps: Most steps T.
        batch: Most coordinates r of a step, none twice; as many where ``step`` is given.
        rtol: Relative residual ``|b - Λ x| / |b|`` at which it ends. In units of the noise it bounds how far
            predictions at the data are off, root mean square, as a part of the right-hand side's scale: ``error`` of
            the solution.
        step: β n, in the units of the source; ``None`` for the rule.
        momentum: ρ.
        rank: Eigenvectors that are deflated; 0 for none, as in the source, and none where ``step`` is given.
        seed: Of the coordinates.
        max_bytes: Memory the blocks may take; more columns than fit are solved one block after another.
        seconds: Time after which a block takes no further step, and says how far it is; ``None`` for any.
        progress: Whether to show a progress bar with the residual; ``None`` for after two seconds, in a terminal or
            notebook.

    Raises:
        ConfigError: If a number makes no sense; it names the one.

    Cost:
        A step: r rows, and r n multiplications a column. Twenty products with the matrix for residuals in all, and one
        with ``rank`` columns before. Memory of six blocks ``[n, k]`` and of two with ``rank`` columns.

    Example:
        >>> SDD(steps=20_000)
        SDD(steps=20000, batch=128, rtol=0.01, step=None, momentum=0.9, rank=100, seed=0, max_bytes=..., ...)
    """

    cure = "SDD with more steps, or CG()"
    blocks: ClassVar[int] = 6

    steps: int = 100_000
    batch: int = 128
    rtol: float = 1e-2
    step: float | None = None
    momentum: float = 0.9
    rank: int = 100
    seed: int = 0
    max_bytes: int = 2**30
    seconds: float | None = None
    progress: bool | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("steps", self.steps)
        check_count("rank", self.rank, 0)
        if self.seconds is not None:
            check_positive("seconds", self.seconds, "60.0")

    def descent(
        self, problem: Problem, columns: int
    ) -> Callable[[Float[Tensor, "n k"], Float[Tensor, "n k"]], Solution]:
        """See ``Stochastic.descent``."""
        generator = torch.Generator().manual_seed(self.seed)
        if self.step is not None:
            descend = partial(self._descend, problem, self.batch, None, generator)
            return shortened(descend, self.step, problem.size)
        deflation = Deflation.of(problem, min(self.rank, problem.size)) if self.rank else None
        batch, step = stable(problem, self.momentum, self.batch, generator, deflation)
        return shortened(partial(self._descend, problem, batch, deflation, generator), step, problem.size)

    def within(self, seconds: float) -> SDD:
        """See ``Solver.within``."""
        return replace(self, seconds=seconds)

    def with_progress(self, progress: bool) -> SDD:
        """See ``Solver.with_progress``."""
        return replace(self, progress=progress)

    def _descend(
        self,
        problem: Problem,
        batch: int,
        deflation: Deflation | None,
        generator: torch.Generator,
        b: Tensor,
        start: Tensor,
        step: float,
    ) -> Solution | None:
        """One descent with a constant step; ``None`` where it diverges."""
        n = problem.size
        noise = problem.prior.values[:, None]
        look = max(1, self.steps // LOOKS)
        path = _Path(start, self.momentum, min(1.0, WINDOW / self.steps), deflation)
        found: Distance | None = None
        stopped: Stopped = "interrupted"
        started = time.perf_counter()
        bar = Bar("dual descent", most=self.steps, progress=self.progress)
        with suppress(KeyboardInterrupt), bar:
            for index in coordinates(n, batch, b.device, generator):
                p = path.ahead()
                gradient = problem.scale * problem.curvature.product_rows(index, p) + noise[index] * p[index] - b[index]
                gradient += path.product_apart(index)
                path.move(index, gradient.mul_(-step * n / len(index)))
                bar.update()
                over = self.seconds is not None and time.perf_counter() - started > self.seconds
                if path.taken % look and path.taken < self.steps and not over:
                    continue
                found = function_distance(problem, b, path.average())
                bar.update(0, f"residual {found.worst:.1e}, done at {self.rtol:.1e}")
                if not found.worst < GROWTH:
                    return None
                if found.worst <= self.rtol:
                    stopped = "converged"
                elif over:
                    stopped = "seconds"
                elif path.taken == self.steps:
                    stopped = "iterations"
                else:
                    continue
                break
        if stopped == "interrupted" or found is None:
            found = function_distance(problem, b, path.average())
        matvecs = b.shape[1] * (path.taken * batch // n + path.taken // look)
        return Solution(path.average(), found.residual, path.taken, matvecs, stopped, found.error)


@final
class _Path:
    """The iterates of Nesterov's method, whose steps change a few coordinates only.

    With ``v_t = ρ v_{t-1} + d_t`` and ``x_t = x_{t-1} + v_t``, sums A of d_τ and W of ``ρ^-τ d_τ`` give
    ``x_t = x_0 + (A - ρ^{t+1} W) / (1 - ρ)``: no step touches the other coordinates.

    A step that is deflated, ``d - U (I - τ/Σ) Uᵀ d``, touches them all. Its second part is a path of its own, c in the
    span of U, and x is ``x + U c`` until c is folded in.

    Args:
        start: x₀.
        momentum: ρ.
        forget: χ, the weight of an iterate in the average.
        deflation: Of the steps; ``None`` for none.
    """

    def __init__(self, start: Tensor, momentum: float, forget: float, deflation: Deflation | None = None) -> None:
        self._start = start.clone()
        self._rho = momentum
        self._sum = torch.zeros_like(start)
        self._weighted = torch.zeros_like(start)
        self._mean = start.clone()
        self._ahead = torch.empty_like(start)
        self._share = 1 - (1 - forget) ** SKIPPED
        self._age = 0  # steps since the weighted sum was last rescaled
        self.taken = 0
        self._deflation = deflation
        self._apart: _Path | None = None
        if deflation is not None:
            self._apart = _Path(start.new_zeros(len(deflation.values), start.shape[1]), momentum, forget)

    def ahead(self) -> Float[Tensor, "n k"]:
        """``x + ρ v`` without c; overwritten by the next call."""
        return self._at(self._age + 2)

    def product_apart(self, index: Int[Tensor, " r"]) -> Float[Tensor, "r k"] | float:
        """Rows of the product of Λ with what ``ahead`` is without."""
        if self._deflation is None or self._apart is None:
            return 0.0
        return self._deflation.products[index] @ self._apart.ahead()

    def move(self, index: Int[Tensor, " r"], change: Float[Tensor, "r k"]) -> None:
        """A step ``d``, which is zero but for some coordinates."""
        self._step(index, change)
        if self._deflation is None or self._apart is None:
            return
        self._apart._step(slice(None), -self._deflation.shares * (self._deflation.vectors[index].mT @ change))
        if self.taken % FOLDED == 0:
            self._fold()

    def average(self) -> Float[Tensor, "n k"]:
        """The geometric average of the iterates."""
        self._fold()
        return self._mean.clone() if self.taken >= SKIPPED else self._at(self._age + 1).clone()

    def _step(self, index: Int[Tensor, " r"] | slice, change: Float[Tensor, "r k"]) -> None:
        """A step of this path alone."""
        self._age += 1
        self.taken += 1
        self._sum[index] += change
        if self._rho:
            self._weighted[index] += self._rho**-self._age * change
        if self.taken % SKIPPED == 0:
            self._mean.lerp_(self._at(self._age + 1), self._share)
        if self._rho and self._rho**self._age < 1e-3:
            self._weighted.mul_(self._rho**self._age)
            self._age = 0

    def _fold(self) -> None:
        """Go on from ``x + U c``, with c zero again: x and its average are linear in the parts of either path."""
        if self._deflation is None or self._apart is None:
            return
        for own, apart in zip(self._parts, self._apart._parts, strict=True):
            own.addmm_(self._deflation.vectors, apart)
            apart.zero_()

    @property
    def _parts(self) -> tuple[Tensor, ...]:
        """What x and its average are linear in."""
        return self._start, self._sum, self._weighted, self._mean

    def _at(self, power: int) -> Tensor:
        torch.sub(self._sum, self._weighted, alpha=self._rho**power, out=self._ahead)
        return self._ahead.div_(1 - self._rho).add_(self._start)


def stable(
    problem: Problem, momentum: float, most: int, generator: torch.Generator, deflation: Deflation | None = None
) -> tuple[int, float]:
    """Coordinates of a step, and ``β n``: a safe part of the longest that is stable with so many.

        β n < 2 (1 + ρ) n / ((1 + 2ρ) λ₁),    β n < 2 (1 - ρ) r / max_i (s K + N)_ii

    The one is of all rows. The other is of r of them, whose gradient g has a second moment of ``n / r`` times its
    diagonal: ``v`` adds up ``1 / (1 - ρ)`` of them, and a step β without momentum lessens the error where
    ``2 β |Λ p|² > β² E |g|²_Λ``. With the r whose limit is twice the first one, noise no longer counts. Of a matrix
    that is deflated both are those of what is left of it.
    """
    largest = largest_eigenvalue(problem, generator, deflation)
    whole = 2 * (1 + momentum) / ((1 + 2 * momentum) * largest) * problem.size
    diagonal = problem.scale * problem.curvature.diagonal() + problem.prior.values
    if deflation is not None:
        left = diagonal - deflation.removed(slice(None)).square().sum(1)
        diagonal = torch.maximum(left, problem.prior.values)
    each = 2 * (1 - momentum) / float(diagonal.max())
    batch = min(most, max(LEAST, math.ceil(2 * whole / each)))
    return batch, SAFE * min(whole, each * batch)
