"""Inverse roots of a matrix from shifted solves, by a contour integral; the ends of the spectrum it has to enclose."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.errors import ConfigError, NumericalError
from lapwing.ground.precision import wide_like
from lapwing.ground.probes import gaussian
from lapwing.ground.results import Solution
from lapwing.linalg.lanczos import Krylov, lanczos
from lapwing.linalg.operators.base import Operator, Structured, check_operand, check_square, congruence
from lapwing.linalg.shifted import Method, shifted_solve


@final
@dataclass(frozen=True, eq=False)
class Quadrature:
    """The rule ``λ^{-½} ≈ Σ_q w_q / (λ + t_q)`` for every ``λ`` in an interval.

    Args:
        weights: ``w``, positive, ``[q]``, float64.
        shifts: ``t``, positive and ascending, ``[q]``, float64.
    """

    weights: Float[Tensor, " q"]
    shifts: Float[Tensor, " q"]


def inverse_root_rule(smallest: float, largest: float, points: int) -> Quadrature:
    """Nodes and weights for the inverse square root on an interval.

    With ``k² = smallest / largest``, the complete integral ``K'`` and the Jacobi functions of parameter ``1 - k²`` at
    ``u_q = (q - ½) K' / Q``,

        t_q = smallest (sn / cn)²,   w_q = 2 √smallest K' / (π Q) dn / cn²

    (Hale, Higham & Trefethen 2008, after Jacobi's imaginary transformation). The half of the
    nodes above the geometric mean, where ``cn`` cancels, is the mirror image of the other: ``t_q t_{Q+1-q} =
    smallest · largest`` and ``w_q / √t_q`` is the same in both. The relative error falls as
    ``exp(-2π² Q / (log(largest / smallest) + 3))``: 1e-11 for 10 points at a condition number of 1e2, 3e-5 at 1e6.

    Args:
        smallest: Lower end of the interval, positive; too high costs far more accuracy than too low.
        largest: Upper end.
        points: ``Q``.

    Raises:
        ConfigError: The ends are not positive, finite and in order, or there is no point.

    Example:
        >>> rule = inverse_root_rule(1.0, 100.0, points=8)
        >>> round((rule.weights / (25.0 + rule.shifts)).sum().item(), 8)
        0.2
    """
    if not (0 < smallest <= largest < math.inf and points >= 1):
        raise ConfigError(
            "0 < smallest <= largest, both finite, and points >= 1",
            f"smallest={smallest:.3g}, largest={largest:.3g}, points={points}",
            "inverse_root_rule(1.0, 1e4, points=10)",
        )
    from scipy.special import ellipj, ellipkm1  # a third of a second to import

    modulus = math.sqrt(smallest / largest)
    period = ellipkm1(modulus**2)
    u = (np.arange((points + 1) // 2) + 0.5) / points * period
    sn, cn, dn, _ = ellipj(u, 1 - modulus**2)
    t = torch.from_numpy(smallest * (sn / cn) ** 2)
    w = torch.from_numpy(2 * math.sqrt(smallest) * period / (math.pi * points) * dn / cn**2)
    mean = math.sqrt(smallest) * math.sqrt(largest)
    mirrored = slice(0, points // 2)
    return Quadrature(
        weights=torch.cat([w, (w * mean / t)[mirrored].flip(0)]),
        shifts=torch.cat([t, (mean / t * mean)[mirrored].flip(0)]),
    )


def contour_inverse_root(
    operator: Operator,
    b: Float[Tensor, "r *k"],
    *,
    points: int = 10,
    interval: tuple[float, float] | None = None,
    rtol: float = 1e-6,
    max_iterations: int = 1000,
    preconditioner: Structured | None = None,
    method: Method = "cg",
    generator: torch.Generator | None = None,
) -> Solution:
    """``A^{-½} b`` for a symmetric positive definite ``A``; with a preconditioner another root of ``A⁻¹``.

        A^{-½} b ≈ Σ_q w_q (A + t_q I)⁻¹ b                        (Hale et al. 2008; Pleiss et al. 2020)
        M b ≈ Σ_q w_q (A + t_q P)⁻¹ P^½ b,   M Mᵀ = A⁻¹           (with P, its root R in the place of P^½)

    The nodes suit the spectrum of ``P⁻¹A``. The rotated root ``M = P^{-½} (P^{-½} A P^{-½})^{-½}`` serves wherever only
    the covariance of ``M b`` matters.

    Args:
        operator: ``A``, ``[d, d]``.
        b: ``[d]`` or ``[d, k]`` in the operator's dtype; with a preconditioner as many rows as its root has columns.
        points: ``Q``; 10 give 3e-5 at a condition number of 1e6.
        interval: Smallest and largest eigenvalue of ``P⁻¹A``, or an interval around them; None estimates it.
        rtol: Relative residual of the shifted systems: in norm the result is off by at most ``rtol |b| / √smallest``
            for this, besides the quadrature.
        max_iterations: Steps allowed.
        preconditioner: ``P``, the identity unless given.
        method: Of the shifted systems; see ``shifted_solve``.
        generator: Source of the start from which the interval is estimated.

    Returns:
        The product, ``[d]`` or ``[d, k]``; the residual ``[k]`` is the largest of the shifts. The products spent on the
        interval are not in its counts.

    Raises:
        ShapeError: ``A``, ``b`` and the preconditioner do not fit together, or ``b`` has no column.
        UnsupportedError: ``b`` has another dtype than ``A``.
        ConfigError: An option makes no sense.
        NumericalError: ``A`` is not positive definite, or a number is not finite.

    Cost:
        The products of one solve whatever ``points``, up to 200 more for the interval; memory ``points + 7`` float64
        blocks ``[d, k]``.

    Example:
        >>> from lapwing.linalg import Diagonal
        >>> a = Diagonal(torch.tensor([1.0, 4.0, 16.0], dtype=torch.float64))
        >>> contour_inverse_root(a, torch.ones(3).double(), interval=(1.0, 16.0)).value.round(decimals=4).tolist()
        [1.0, 0.5, 0.25]

    Source: N. Hale, N. Higham and L. Trefethen, SIAM Journal on Numerical Analysis 46, 2008; G. Pleiss et al., NeurIPS
        2020.
    """
    if preconditioner is not None:
        root = preconditioner.root()
        b = (root @ check_operand(root, b.to(root.dtype), root.shape[1])).to(operator.device, operator.dtype)
    if interval is None:
        interval = spectral_interval(operator, preconditioner=preconditioner, generator=generator)
        if interval[0] <= 0:
            raise NumericalError(
                "a positive definite operator",
                f"a spectrum that may reach down to {interval[0]:.3g} (up to {interval[1]:.3g})",
                "interval=(prior precision, largest eigenvalue), or a preconditioner",
            )
    rule = inverse_root_rule(*interval, points)
    solution = shifted_solve(
        operator,
        b,
        rule.shifts,
        method=method,
        rtol=rtol,
        max_iterations=max_iterations,
        preconditioner=preconditioner,
        weights=rule.weights,
    )
    return replace(solution, residual=solution.residual.amax(0))


def spectral_interval(
    operator: Operator,
    *,
    steps: int = 200,
    margin: float = 1.1,
    generator: torch.Generator | None = None,
    preconditioner: Structured | None = None,
) -> tuple[float, float]:
    """An interval that holds the spectrum of ``A``, or of ``P⁻¹ A``, short of bad luck.

    Ritz values are inner bounds, so both ends move outward: the largest by the residual of its pair, the smallest,
    which converges last and at worst as one over the square of the steps, to where twice as many would take it,

        low = max(θ_min(j) (θ_min(j) / θ_min(2j/3))², θ_min(j) - residual) / margin,
        high = margin (θ_max(j) + residual),

    and by its residual where it is not positive. A quadrature bears an interval ten times too wide better than one
    that is twice too narrow. At condition numbers of 10⁶ and more ``low`` can still lie inside the spectrum: take more
    steps, or the prior precision, where that is known to be the smallest eigenvalue.

    Args:
        operator: Symmetric ``A``, ``[d, d]``.
        steps: Steps at most; fewer where both ends have converged to a hundredth.
        margin: Factor, above 1, by which the ends move outward in any case.
        generator: Source of the first vector, a Gaussian one.
        preconditioner: ``P``; then the interval is that of ``P⁻¹ A``.

    Returns:
        The ends, low first; not positive where ``A`` is not positive definite, to what its products resolve.

    Raises:
        ShapeError: ``A`` is not square.
        ConfigError: ``steps`` is less than 1, or ``margin`` not above 1.
        NumericalError: A product is not finite.

    Cost: one product a step; ``24 d`` bytes.

    Example:
        >>> from lapwing.linalg import Diagonal
        >>> low, high = spectral_interval(Diagonal(torch.linspace(1, 100, 50)))
        >>> low < 1 and high > 100
        True
    """
    if margin <= 1:
        raise ConfigError("a margin above 1", f"{margin}", "margin=1.1")
    if preconditioner is not None:
        operator = congruence(operator, preconditioner.inverse_root())
    like = torch.empty(0, **wide_like(operator.device))
    start = gaussian([check_square(operator)], like=like, generator=generator)
    krylov = lanczos(operator, start, steps, reorthogonalise=False, until=_ends_converged)
    low, high = _ends(krylov.ritz[0])
    below, above = _ends(krylov.ritz_residual)
    low -= min(below, low * (1 - _shrinking(krylov) ** 2)) if low > 0 else below
    return low - abs(low) * (1 - 1 / margin), high + above + abs(high) * (margin - 1)


def _ends_converged(krylov: Krylov) -> bool:
    low, high = _ends(krylov.ritz[0])
    below, above = _ends(krylov.ritz_residual)
    return krylov.steps > 1 and _shrinking(krylov) > 0.99 and below <= 0.01 * low and above <= 0.01 * high


def _shrinking(krylov: Krylov) -> float:
    """The smallest Ritz value, over what it was after two thirds of the steps."""
    now = krylov.ritz[0][0, 0].item()
    before = krylov.earlier.ritz[0][0, 0].item()
    return now / before if before > 0 else 1.0


def _ends(values: Float[Tensor, "1 j"]) -> tuple[float, float]:
    return values[0, 0].item(), values[0, -1].item()
