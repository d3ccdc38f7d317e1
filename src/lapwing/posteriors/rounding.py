"""Curvatures in which directions that the data leave to the prior are nothing but rounding: refused, or warned of."""

from __future__ import annotations

from lapwing.ground.errors import ConvergenceWarning, NumericalError, PrecisionWarning, warn
from lapwing.ground.precision import WIDE, Precision
from lapwing.linalg import Dense, Structured

DROWNED = 1e3
"""The rounding of a curvature over the prior precision from which its posterior is refused."""


RESOLVED = 0.01
"""The relative error of covariances by the rounding of products from which it is warned of."""


def warn_of_products(precision: Precision, largest: float, prior: float) -> None:
    """Warn where a prior precision is weaker than products in float32 can resolve; see ``Precision.error``.

    Args:
        precision: In what they were made.
        largest: Largest eigenvalue of the curvature.
        prior: Smallest precision of the prior.
    """
    if precision.products == WIDE:
        return
    error = precision.error(largest, prior)
    if error <= RESOLVED:
        return
    warn(
        f"products in float32 do not resolve a prior precision of {prior:.2g} beside a curvature of up to "
        f"{largest:.2g}: variances of what the data say little about are wrong by about {100 * error:.0f} %. Try "
        f'precision="double", or a prior precision of {prior * error / RESOLVED:.1g} or more',
        PrecisionWarning,
    )


def check_rounding(curvature: Structured, prior: float, rank: int | None = None) -> None:
    """Refuse a curvature of whose undetermined directions nothing is left beside its rounding.

    Args:
        curvature: G.
        prior: Smallest precision of the prior.
        rank: Largest eigenvalues that were asked for, of a curvature held by those; ``None`` for all.

    Raises:
        NumericalError: If the rounding is ``DROWNED`` times the prior precision, and one of those eigenvalues is less.

    Cost:
        The trace; eigenvalues only where its rounding is that large.
    """
    rounding = rounding_of(curvature)
    if rounding <= DROWNED * prior:
        return
    largest = curvature.eigenvalues().sort(descending=True).values[:rank]
    if float(largest[-1]) >= rounding:
        return
    raise NumericalError(
        f"a curvature whose rounding is less than {DROWNED:g} times the prior precision, {prior:.2g}",
        f"a rounding of {rounding:.2g}: variances of what the data say little about would be wrong",
        "inputs, targets and log variances of size 1, a larger prior precision, or structure=KFAC()",
    )


def warn_of_rounding(curvature: Dense, prior: float) -> None:
    """Warn where directions that the data leave to the prior drown in the rounding of a dense curvature.

    Args:
        curvature: s G.
        prior: Smallest precision of the prior.

    Cost:
        The trace; an eigendecomposition only where its rounding is above the prior.
    """
    rounding = rounding_of(curvature)
    if rounding <= prior or float(curvature.eigenvalues()[0]) >= rounding:
        return
    warn(
        f"the rounding of the curvature, {rounding:.2g}, is larger than the prior precision, {prior:.2g}: "
        "variances of what the data say little about are wrong. "
        'Try Full(view="functions"), or a larger prior precision',
        ConvergenceWarning,
    )


def rounding_of(curvature: Structured) -> float:
    """What of the trace of a curvature is rounding, of the products behind it or of the dtype that holds it."""
    return float(curvature.diagonal().sum()) * curvature.relative_rounding
