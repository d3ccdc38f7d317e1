"""Stochastic dual descent: solves in the function view that read a few rows of the kernel matrix at a time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lapwing.ground import probes
from lapwing.ground.errors import check_count
from lapwing.ground.progress import Bar
from lapwing.ground.results import Solution, Stopped
from lapwing.linear.problem import Problem
from lapwing.linear.solvers.descent import WINDOW
from lapwing.linear.solvers.stochastic import Stochastic, announce, residual_of, shortened

SUBSET = 2000
"""Rows from which the largest eigenvalue is estimated; it grows with their number."""

POWER = 20
"""Steps of the power method on them."""

SAFE = 0.75
"""Part of the longest stable step that is taken; mini-batches leave that much room."""

LEAST = 16
"""Coordinates of a step, unless fewer are asked for: what is done for all of them costs more than so few rows."""

SKIPPED = 10
"""The average is taken of every so manyeth iterate."""

LOOKS = 20
"""Looks at the true residual in a whole descent; each is one product with the matrix."""

TIMED = 50
"""Steps after which it is said how long all will take."""

GROWTH = 10.0
"""A residual so many times that of zero tells of divergence."""


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

    Args:
        steps: Most steps T.
        batch: Most coordinates r of a step, none twice; as many where ``step`` is given.
        rtol: Relative residual ``|b - Λ x| / |b|`` at which it ends.
        step: β n, in the units of the source; ``None`` for the rule.
        momentum: ρ.
        seed: Of the coordinates.
        max_bytes: Memory the blocks may take; more columns than fit are solved one block after another.
        progress: Whether to show a progress bar with the residual; ``None`` for after two seconds, in a terminal or
            notebook.

    Raises:
        ConfigError: If a number makes no sense; it names the one.

    Cost:
        A step: r rows, and r n multiplications a column. Twenty products with the matrix for residuals in all. Memory
        of six blocks ``[n, k]``.

    Example:
        >>> SDD(steps=20_000)
        SDD(steps=20000, batch=128, rtol=0.01, step=None, momentum=0.9, seed=0, max_bytes=1073741824, progress=None)
    """

    cure = "SDD with more steps, or CG()"
    columns: ClassVar[int] = 6

    steps: int = 100_000
    batch: int = 128
    rtol: float = 1e-2
    step: float | None = None
    momentum: float = 0.9
    seed: int = 0
    max_bytes: int = 2**30
    progress: bool | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("steps", self.steps)

    def descent(
        self, problem: Problem, columns: int
    ) -> Callable[[Float[Tensor, "n k"], Float[Tensor, "n k"]], Solution]:
        """See ``Stochastic.descent``."""
        generator = torch.Generator().manual_seed(self.seed)
        batch, step = self.batch, self.step
        if step is None:
            batch, step = stable(problem, self.momentum, batch, generator)
        return shortened(partial(self._descend, problem, batch, generator), step, problem.size)

    def _descend(
        self, problem: Problem, batch: int, generator: torch.Generator, b: Tensor, start: Tensor, step: float
    ) -> Solution | None:
        """One descent with a constant step; ``None`` where it diverges."""
        path = _Path(start, self.momentum, min(1.0, WINDOW / self.steps))
        n, noise = problem.size, problem.prior.values[:, None]
        look, residual = max(1, self.steps // LOOKS), torch.zeros(0)
        stopped: Stopped = "interrupted"
        bar = Bar("dual descent", most=self.steps, progress=self.progress)
        begun = time.perf_counter()
        with suppress(KeyboardInterrupt), bar:
            order = coordinates(n, batch, b.device, generator)
            while path.taken < self.steps:
                index, p = next(order), path.ahead()
                gradient = problem.scale * problem.curvature.product_rows(index, p) + noise[index] * p[index] - b[index]
                path.move(index, gradient.mul_(-step * n / len(index)))
                bar.update()
                if path.taken == TIMED:
                    announce(self.steps, (time.perf_counter() - begun) / TIMED)
                if path.taken % look and path.taken < self.steps:
                    continue
                residual = residual_of(problem, b, path.average())
                worst = float(residual.max())
                bar.update(0, f"residual {worst:.1e}, done at {self.rtol:.1e}")
                if not worst < GROWTH:
                    return None
                if worst <= self.rtol:
                    stopped = "converged"
                    break
            else:
                stopped = "iterations"
        if stopped == "interrupted":
            residual = residual_of(problem, b, path.average())
        matvecs = b.shape[1] * (path.taken * batch // n + path.taken // look)
        return Solution(path.average(), residual, path.taken, matvecs, stopped)


@final
class _Path:
    """The iterates of Nesterov's method, whose steps change a few coordinates only.

    With ``v_t = ρ v_{t-1} + d_t`` and ``x_t = x_{t-1} + v_t``, sums A of d_τ and W of ``ρ^-τ d_τ`` give
    ``x_t = x_0 + (A - ρ^{t+1} W) / (1 - ρ)``: no step touches the other coordinates.

    Args:
        start: x₀.
        momentum: ρ.
        forget: χ, the weight of an iterate in the average.
    """

    def __init__(self, start: Tensor, momentum: float, forget: float) -> None:
        self._start, self._rho = start, momentum
        self._sum, self._weighted = torch.zeros_like(start), torch.zeros_like(start)
        self._mean, self._ahead = start.clone(), torch.empty_like(start)
        self._share = 1 - (1 - forget) ** SKIPPED
        self._age = 0  # steps since the weighted sum was last rescaled
        self.taken = 0

    def ahead(self) -> Float[Tensor, "n k"]:
        """``x + ρ v``; overwritten by the next call."""
        return self._at(self._age + 2)

    def move(self, index: Int[Tensor, " r"], change: Float[Tensor, "r k"]) -> None:
        """A step ``d``, which is zero but for some coordinates."""
        self._age += 1
        self.taken += 1
        self._sum.index_add_(0, index, change)
        if self._rho:
            self._weighted.index_add_(0, index, change, alpha=self._rho**-self._age)
        if self.taken % SKIPPED == 0:
            self._mean.lerp_(self._at(self._age + 1), self._share)
        if self._rho and self._rho**self._age < 1e-3:
            self._weighted.mul_(self._rho**self._age)
            self._age = 0

    def average(self) -> Float[Tensor, "n k"]:
        """The geometric average of the iterates."""
        return self._mean.clone() if self.taken >= SKIPPED else self._at(self._age + 1).clone()

    def _at(self, power: int) -> Tensor:
        torch.sub(self._sum, self._weighted, alpha=self._rho**power, out=self._ahead)
        return self._ahead.div_(1 - self._rho).add_(self._start)


def coordinates(n: int, batch: int, device: torch.device, generator: torch.Generator) -> Iterator[Int[Tensor, " r"]]:
    """Coordinates in random order, pass after pass without end."""
    while True:
        order = torch.tensor(probes.permutation(n, generator=generator), device=device)
        yield from (part for part in order.split(min(batch, n)) if len(part) == min(batch, n))


def stable(problem: Problem, momentum: float, most: int, generator: torch.Generator) -> tuple[int, float]:
    """Coordinates of a step, and ``β n``: a safe part of the longest that is stable with so many.

        β n < 2 (1 + ρ) n / ((1 + 2ρ) λ₁),    β n < 2 (1 - ρ) r / max_i (s K + N)_ii

    The one is of all rows. The other is of r of them, whose gradient g has a second moment of ``n / r`` times its
    diagonal: ``v`` adds up ``1 / (1 - ρ)`` of them, and a step β without momentum lessens the error where
    ``2 β |Λ p|² > β² E |g|²_Λ``. With the r whose limit is twice the first one, noise no longer counts.
    """
    whole = 2 * (1 + momentum) / ((1 + 2 * momentum) * largest_eigenvalue(problem, generator)) * problem.size
    diagonal = problem.scale * problem.curvature.diagonal() + problem.prior.values
    each = 2 * (1 - momentum) / float(diagonal.max())
    batch = min(most, max(LEAST, math.ceil(2 * whole / each)))
    return batch, SAFE * min(whole, each * batch)


def largest_eigenvalue(problem: Problem, generator: torch.Generator) -> float:
    """``λ₁`` of ``s K + N``: that of some rows and columns of ``s K``, raised in proportion to their number.

    Cost:
        2,000 rows, of which as many columns are kept, and twenty products with them.
    """
    n = problem.size
    order = probes.permutation(n, generator=generator)[: min(n, SUBSET)]
    index = torch.tensor(order, device=problem.prior.values.device)
    block = problem.curvature.rows(index, index)
    v = probes.gaussian([len(index)], like=block, generator=generator)
    largest = 0.0
    for _ in range(POWER):
        v = block @ (v / torch.linalg.vector_norm(v))
        largest = float(torch.linalg.vector_norm(v))
    return problem.scale * largest * n / len(index) + float(problem.prior.values.max())
