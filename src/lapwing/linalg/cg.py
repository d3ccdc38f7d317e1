"""Conjugate gradients for many right-hand sides in one Krylov space."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.errors import NumericalError, ShapeError
from lapwing.ground.precision import wide
from lapwing.ground.progress import Bar
from lapwing.ground.results import Solution, Stopped
from lapwing.linalg.checks import finite
from lapwing.linalg.operators.base import Operator, Structured, check_operand, in_float64
from lapwing.linalg.systems import check_system, lengths, precondition

EPS = torch.finfo(torch.float64).eps


def conjugate_gradients(
    operator: Operator,
    b: Float[Tensor, "d *k"],
    *,
    rtol: float = 1e-6,
    max_iterations: int = 1000,
    preconditioner: Structured | None = None,
    initial: Float[Tensor, "..."] | None = None,
    unit: Float[Tensor, " d"] | None = None,
    seconds: float | None = None,
    progress: bool | None = None,
) -> Solution:
    """Solve ``A x = b`` for a symmetric positive definite ``A`` by breakdown-free block conjugate gradients.

    All columns share one Krylov space. With ``V`` an orthonormal basis of the search space and ``Q = A V``, a step is

        α = (VᵀQ)⁻¹ VᵀR,   X ← X + V α,   R ← R − Q α,   Z = P⁻¹R,   β = −(VᵀQ)⁻¹ QᵀZ,   V ← orth(Z + V β)

    (Ji & Li 2017, BFBCG), so that ``k`` columns need far fewer steps than ``k`` systems. Columns that are linear
    combinations of others cost no products, until rounding parts them. A column that meets ``rtol`` is frozen, but its
    residual goes on to steer the search: without it the directions would no longer be conjugate to the earlier ones,
    and the columns that are left would need more products than it saves. Residuals rise on the way where ``A`` is
    ill-conditioned: each column is returned where its residual was smallest. The true residual is computed at the end;
    where rounding has carried it away from the recurrence's, the iteration starts again from the value reached, as
    long as that halves it; a column that this makes worse stays as it was.

    Args:
        operator: ``A``, ``[d, d]``.
        b: Right-hand sides, ``[d]`` or ``[d, k]``, in the operator's dtype.
        rtol: A column has converged when ``|b - A x| <= rtol |b|``.
        max_iterations: Steps allowed; without a smaller residual in the worst column over a quarter of them (at
            least 50) the iteration has stagnated.
        preconditioner: ``P``, near ``A`` and cheap to solve with.
        initial: Where to start, shaped as ``b``; 0 unless given.
        unit: What each entry of a residual counts: all lengths are those of ``unit * (b - A x)``.
        seconds: Time after which no further step begins; ``None`` for any.
        progress: Whether to show a progress bar with the residual; ``None`` for after two seconds, in a terminal or
            notebook.

    Returns:
        The value, shaped as ``b`` and in the operator's dtype. "converged" only if the true residual of every column
        is within ``rtol``; "stagnated" where rounding keeps it above, in float32 often near ``1e-7`` times the
        condition number; "breakdown" where ``A`` is singular to rounding along a search direction;
        "seconds" where they were over, "interrupted" by Ctrl-C, with what was reached.

    Raises:
        ShapeError: ``A``, ``b``, ``initial`` and the preconditioner do not fit together, or ``b`` has no column.
        UnsupportedError: ``b`` or ``initial`` has another dtype than ``A``.
        ConfigError: An option makes no sense.
        NumericalError: ``A`` is not positive definite, or a number is not finite.

    Cost:
        A step: one product and one preconditioner solve with at most ``k`` columns, and about ``16 d k²`` operations in
        float64; one product more at the end, and one at the start if ``initial`` is given. Memory: ten float64
        blocks ``[d, k]``, nothing ``d x d``. No gradient flows through.

    Example:
        >>> from lapwing.linalg import Diagonal
        >>> a = Diagonal(torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64))
        >>> solution = conjugate_gradients(a, torch.ones(3, dtype=torch.float64))
        >>> solution.value.round(decimals=6).tolist(), solution.stopped
        ([1.0, 0.5, 0.25], 'converged')

    Source: H. Ji and Y. Li, A breakdown-free block conjugate gradient method, BIT Numerical Mathematics 57, 2017.
    """
    block = check_system(operator, b, rtol, max_iterations, preconditioner)
    deadline = math.inf if seconds is None else time.perf_counter() + seconds
    weights = None if unit is None else unit.to(block)[:, None]
    size = _measured(block, weights)
    size = torch.where(size > 0, size, 1.0)
    matvecs = 0
    a = in_float64(operator)

    def product(columns: Tensor) -> Tensor:
        nonlocal matvecs
        matvecs += columns.shape[1]
        return a @ columns

    x = torch.zeros_like(block)
    rest = block
    if initial is not None:
        x = _start(operator, b, initial)
        rest = block - product(x)
    residual = _measured(rest, weights) / size
    reached = math.inf
    steps = 0
    while True:
        goal = rtol * size
        rounding = torch.finfo(operator.dtype).eps ** 0.5
        start = x.clone()
        recurrence = _recurrence(product, preconditioner, x, rest, goal, weights, rounding)
        steps, stopped = _run(recurrence, steps, max_iterations, rtol, deadline, progress)
        rest = block - product(x)
        earlier = residual
        residual = _measured(rest, weights) / size
        x = torch.where(residual > earlier, start, x)
        residual = torch.minimum(residual, earlier)
        before = reached
        reached = residual.max().item()
        if reached <= rtol:
            stopped = "converged"
        elif stopped == "converged" and reached <= before / 2 and steps < max_iterations:
            continue
        elif stopped == "converged":
            stopped = "iterations" if steps == max_iterations else "stagnated"
        return Solution(x.to(b).reshape(b.shape), residual, steps, matvecs, stopped)


def _start(operator: Operator, b: Tensor, initial: Tensor) -> Float[Tensor, "d k"]:
    """A copy of the first value, as float64 columns."""
    if check_operand(operator, initial, len(b)).shape != b.shape:
        raise ShapeError(f"initial shaped as b, {list(b.shape)}", f"{list(initial.shape)}", "the value of a solve of b")
    return wide(finite(initial.detach()), copy=True).reshape(len(b), -1)


def _run(
    recurrence: Iterator[float],
    steps: int,
    max_iterations: int,
    rtol: float,
    deadline: float,
    progress: bool | None,
) -> tuple[int, Stopped]:
    """Step until the recurrence ends by itself or one of the rules ends it.

    Args:
        recurrence: Yields the largest residual over the one that is asked for, after each step.
        steps: Those taken before.
        max_iterations: Most steps in all.
        rtol: The residual that is asked for, to be shown.
        deadline: A reading of the clock after which no further step begins.
        progress: As for ``conjugate_gradients``.
    """
    patience = max(50, max_iterations // 4)
    best = math.inf
    since = steps
    ratio = math.inf
    bar = Bar("conjugate gradients", most=max_iterations, done=steps, progress=progress)
    with suppress(KeyboardInterrupt), bar:
        for ratio in recurrence:
            steps += 1
            bar.update(said=f"residual {ratio * rtol:.1e}, done at {rtol:.1e}")
            if ratio > 1 and steps == max_iterations:
                return steps, "iterations"
            if ratio > 1 and time.perf_counter() > deadline:
                return steps, "seconds"
            if ratio < best:
                best = ratio
                since = steps
            elif steps - since == patience:
                return steps, "stagnated"
        return steps, "converged" if ratio <= 1 else "breakdown"
    return steps, "interrupted"


def _recurrence(
    product: Callable[[Tensor], Tensor],
    preconditioner: Structured | None,
    x: Float[Tensor, "d k"],
    r: Float[Tensor, "d k"],
    goal: Float[Tensor, " k"],
    unit: Float[Tensor, "d 1"] | None,
    rounding: float,
) -> Iterator[float]:
    """The steps of BFBCG on the columns above their goal, ``x`` overwritten: yields the largest residual over its goal.

    Columns of ``x`` are where their residual was smallest. Ends where all are within their goal, where the curvature
    ``VᵀAV`` is singular, or no direction is left.
    """
    entered = (_measured(r, unit) > goal).nonzero()[:, 0]
    r = r[:, entered]
    goal = goal[entered]
    now = x[:, entered]
    least = _measured(r, unit) / goal
    ratio = torch.full_like(goal, math.inf)
    largest = 0.0
    v = q = r[:, :0]
    factor: Tensor | None = goal.new_empty(0, 0)
    while bool((ratio > 1).any()):
        z = precondition(preconditioner, r)
        v = _orthonormal(torch.addmm(z, v, torch.cholesky_solve(q.mT @ z, factor), alpha=-1))
        if not v.shape[1]:
            return
        q = product(v)
        curvature = finite(v.mT @ q)
        largest = max(largest, curvature.diagonal().max().item())
        factor = _cholesky(curvature, rounding * largest)
        if factor is None:
            return
        alpha = torch.cholesky_solve(v.mT @ r, factor)
        now.addmm_(v, alpha * (ratio > 1))
        r.addmm_(q, alpha, alpha=-1)
        ratio = torch.where(ratio > 1, _measured(r, unit) / goal, ratio)
        better = ratio < least
        least = torch.where(better, ratio, least)
        x[:, entered[better]] = now[:, better]
        yield ratio.max().item()


def _measured(block: Float[Tensor, "d k"], unit: Float[Tensor, "d 1"] | None) -> Float[Tensor, " k"]:
    """The length of each column in the units of its entries."""
    return lengths(block if unit is None else unit * block)


def _orthonormal(block: Float[Tensor, "d k"]) -> Float[Tensor, "d r"]:
    """A basis of the span of the columns, in which a short column counts as much as a long one.

    Directions are dropped only where they are rounding. Every other one, however weak, carries part of the conjugacy:
    to drop those below 1e-7 multiplies the steps by ten and more.
    """
    basis, upper = torch.linalg.qr(block)
    size = lengths(finite(upper))
    directions, weights, _ = torch.linalg.svd(upper / torch.where(size > 0, size, 1.0), full_matrices=False)
    kept = weights > 10 * EPS * block.shape[1] * weights[0]
    return basis if bool(kept.all()) else basis @ directions[:, kept]


def _cholesky(curvature: Float[Tensor, "r r"], rounding: float) -> Float[Tensor, "r r"] | None:
    """The Cholesky factor of ``VᵀAV``; None where it is singular to rounding."""
    factor, info = torch.linalg.cholesky_ex((curvature + curvature.mT) / 2)
    if info.item() == 0:
        return factor
    lowest = torch.linalg.eigvalsh(curvature)[0].item()
    if lowest < -rounding or rounding <= 0:
        raise NumericalError(
            "a positive definite operator",
            f"curvature vᵀAv = {lowest:.3g} along a search direction v of length 1",
            "a larger prior precision; GGN in place of Hessian; minres for indefinite operators",
        )
    return None
