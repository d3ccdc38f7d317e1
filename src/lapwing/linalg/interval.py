"""The ends of a spectrum, from the Ritz values of one Krylov space."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.errors import ConfigError
from lapwing.ground.probes import gaussian
from lapwing.linalg.congruence import congruence
from lapwing.linalg.krylov import Krylov
from lapwing.linalg.lanczos import lanczos
from lapwing.linalg.operator import Operator, check_square
from lapwing.linalg.structured import Structured


def spectral_interval(
    operator: Operator,
    *,
    steps: int = 200,
    margin: float = 1.1,
    start: Float[Tensor, " d"] | None = None,
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
        start: First vector, float64 or the operator's dtype; None draws a Gaussian one.
        generator: Source of the start.
        preconditioner: ``P``; then the interval is that of ``P⁻¹ A``.

    Returns:
        The ends, low first; not positive where ``A`` is not positive definite, to what its products resolve.

    Raises:
        ShapeError: ``A`` is not square, or ``start`` does not fit.
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
    if start is None:
        like = torch.empty(0, dtype=torch.float64, device=operator.device)
        start = gaussian([check_square(operator)], like=like, generator=generator)
    krylov = lanczos(operator, start, steps, reorthogonalise="none", until=_ends_converged)
    low, high, below, above = *_ends(krylov.ritz[0]), *_ends(krylov.ritz_residual)
    low -= min(below, low * (1 - _shrinking(krylov) ** 2)) if low > 0 else below
    return low - abs(low) * (1 - 1 / margin), high + above + abs(high) * (margin - 1)


def _ends_converged(krylov: Krylov) -> bool:
    low, high, below, above = *_ends(krylov.ritz[0]), *_ends(krylov.ritz_residual)
    return krylov.steps > 1 and _shrinking(krylov) > 0.99 and below <= 0.01 * low and above <= 0.01 * high


def _shrinking(krylov: Krylov) -> float:
    """The smallest Ritz value, over what it was after two thirds of the steps."""
    now, before = krylov.ritz[0][0, 0].item(), krylov.earlier.ritz[0][0, 0].item()
    return now / before if before > 0 else 1.0


def _ends(values: Float[Tensor, "1 j"]) -> tuple[float, float]:
    return values[0, 0].item(), values[0, -1].item()
