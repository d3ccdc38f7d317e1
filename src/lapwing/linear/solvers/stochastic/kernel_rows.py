"""What descents share that read a few rows of a kernel matrix a step: which, how long steps may be, when they end."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lapwing.ground import probes
from lapwing.ground.errors import NumericalError
from lapwing.ground.results import Solution
from lapwing.linear.problem import Problem
from lapwing.linear.solvers.base import relative
from lapwing.linear.solvers.stochastic.base import Distance
from lapwing.linear.solvers.stochastic.deflation import Deflation

logger = logging.getLogger(__name__)

SUBSET = 2000
"""Rows from which the largest eigenvalue is estimated; it grows with their number."""

POWER = 20
"""Steps of the power method on them."""

SAFE = 0.75
"""Part of the longest stable step that is taken; mini-batches leave that much room."""

LOOKS = 20
"""Looks at the true residual in a whole descent; each is one product with the matrix."""

GROWTH = 10.0
"""A residual so many times that of zero tells of divergence."""

SHORTER = 2.0
"""A step that diverges is divided by this."""

TRIES = 8
"""Lengths of steps that are tried, at most."""


def coordinates(n: int, batch: int, device: torch.device, generator: torch.Generator) -> Iterator[Int[Tensor, " r"]]:
    """Coordinates in random order, pass after pass without end."""
    width = min(batch, n)
    while True:
        order = torch.tensor(probes.permutation(n, generator=generator), device=device)
        for part in order.split(width):
            if len(part) == width:
                yield part


def largest_eigenvalue(problem: Problem, generator: torch.Generator, deflation: Deflation | None = None) -> float:
    """``λ₁`` of ``s K + N``: that of some rows and columns of ``s K``, raised in proportion to their number.

    Where some vectors are deflated it is that of what they leave.

    Cost:
        2,000 rows, of which as many columns are kept, and twenty products with them.
    """
    n = problem.size
    order = probes.permutation(n, generator=generator)[: min(n, SUBSET)]
    index = torch.tensor(order, device=problem.prior.values.device)
    block = problem.scale * problem.curvature.rows(index, index)
    if deflation is not None:
        removed = deflation.removed(index)
        block = block.addmm_(removed, removed.mT, alpha=-1.0)
    v = probes.gaussian([len(index)], like=block, generator=generator)
    largest = 0.0
    for _ in range(POWER):
        v = block @ (v / torch.linalg.vector_norm(v))
        largest = float(torch.linalg.vector_norm(v))
    largest = largest * n / len(index) + float(problem.prior.values.max())
    if deflation is None:
        return largest
    return max(largest, float(deflation.values[-1]))


def shortened(
    attempt: Callable[[Tensor, Tensor, float], Solution | None], step: float, n: int
) -> Callable[[Float[Tensor, "d k"], Float[Tensor, "d k"]], Solution]:
    """The solution from right-hand sides and starts, by shorter steps where longer ones diverge.

    Args:
        attempt: A descent from these with steps of some length β; ``None`` where it diverges.
        step: The first β, times n.
        n: Rows; lengths of steps are said as the source has them, βn.

    Raises:
        NumericalError: If every step diverged.
    """

    def solve(b: Tensor, start: Tensor) -> Solution:
        length = step
        for _ in range(TRIES):
            solution = attempt(b, start, length / n)
            if solution is not None:
                return solution
            length /= SHORTER
            logger.info("a step diverged; βn = %.3g now", length)
        got = f"divergence down to steps βn = {length:.3g}"
        raise NumericalError("a descent that converges", got, "a smaller step=, float64, or CG()")

    return solve


def function_distance(problem: Problem, b: Float[Tensor, "n k"], x: Float[Tensor, "n k"]) -> Distance:
    """How far from the solution of ``(s K + N) x = b`` some weights are, their predictions at most.

    With a residual r predictions at the data are off by ``s K (s K + N)⁻¹ r``, in units of the noise no longer than r:
    the error is ``|N⁻½ r| / |N⁻½ b|``.

    Args:
        problem: In the function view.
        b: Right-hand sides.
        x: The weights.

    Cost:
        A product with K.
    """
    rest = b - problem.precision @ x
    unit = problem.prior.values.sqrt()[:, None]
    return Distance(relative(rest, b), relative(rest / unit, b / unit))
