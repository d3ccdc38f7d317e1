"""Curvatures in which directions that the data leave to the prior are nothing but rounding: refused, or warned of."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.data.inputs import Inputs, take
from lapwing.ground.errors import ConvergenceWarning, NumericalError, PrecisionWarning, warn
from lapwing.ground.precision import wide
from lapwing.jacobian.model import Model
from lapwing.linalg import Dense, Structured

DROWNED = 1e3
"""The rounding of a curvature over the prior precision from which its posterior is refused."""

RESOLVED = 0.01
"""The relative error of variances by the rounding of products from which it is warned of."""

LARGEST = 0.5
"""What that error is at most over ``ε λ / α``, about."""

EXAMPLES = 4
"""Training inputs at which it is measured."""

DOUBLE_PRODUCTS = 'precision="double"'
"""The cure where products in float32 were asked for."""

DOUBLE_NETWORK = "the network in float64, model.double()"
"""The cure where its products are in its own type."""


def warn_of_products(
    epsilon: float, largest: float, prior: float, measured: Callable[[], float | None], cure: str = DOUBLE_PRODUCTS
) -> None:
    """Warn where a prior precision is weaker than products in float32 can resolve.

    Args:
        epsilon: Relative rounding of a product.
        largest: Largest eigenvalue λ of the curvature.
        prior: Smallest precision α of the prior.
        measured: The relative error of variances of outputs; ``None`` where there are no inputs to measure it at. It is
            asked for only where the bound ``.5 ε λ / α`` is larger than ``RESOLVED``.
        cure: What to try.
    """
    bound = LARGEST * epsilon * largest / prior
    if bound <= RESOLVED:
        return
    found = measured()
    error = bound if found is None else found
    if error <= RESOLVED:
        return
    about = "up to" if found is None else "about"
    if math.isinf(error):
        wrong = "are nothing but rounding"
    elif error >= 1:
        wrong = f"are wrong by a factor of {about} {1 + error:.2g}"
    else:
        wrong = f"are wrong by {about} {100 * error:.0f} %"
    warn(
        f"products in float32 do not resolve a prior precision of {prior:.2g} beside a curvature of up to "
        f"{largest:.2g}: variances of outputs {wrong}. Try {cure}, or a prior precision of "
        f"{prior * bound / RESOLVED:.1g} or more",
        PrecisionWarning,
    )


def warn_of_contrasts(
    dtype: torch.dtype, largest: float, prior: float, covariances: Callable[[], Float[Tensor, "*batch c c"] | None]
) -> None:
    """Warn where what a softmax sees of logits is lost in what they share, under a weak prior.

    Args:
        dtype: In which covariances of outputs are kept; of half precision, which has but three digits, nothing is said.
        largest: Largest eigenvalue λ of the curvature.
        prior: Smallest precision α of the prior; what outputs share has a variance of ``1 / α``, what data determine of
            ``1 / λ`` at least.
        covariances: Those of some logits, ``None`` where there are no inputs; asked for only where ``ε λ / α`` is
            larger than ``RESOLVED``.
    """
    epsilon = torch.finfo(dtype).eps
    if dtype.itemsize < torch.float32.itemsize:
        return
    if epsilon * largest / prior <= RESOLVED:
        return
    found = covariances()
    if found is None:
        return
    error = error_of_contrasts(found, epsilon)
    if error <= RESOLVED:
        return
    lost = f"are off by about {100 * error:.0f} %" if error < 1 else "are nothing but rounding"
    warn(
        f"logits in {str(dtype).removeprefix('torch.')} share a variance beside which their differences drown, under a "
        f"prior precision of {prior:.2g}: variances of differences {lost}. Try {DOUBLE_NETWORK}, or a larger prior "
        "precision",
        PrecisionWarning,
    )


def error_of_contrasts(covariances: Float[Tensor, "*batch c c"], epsilon: float) -> float:
    """What rounding makes of the smallest variance of a logit less the mean of all, relatively, at the worst position.

    Args:
        covariances: Those of logits.
        epsilon: Relative rounding of an entry.

    Example:
        >>> float(f"{error_of_contrasts(1e4 + torch.eye(3)[None], 1e-7):.2g}")
        0.0015
    """
    whole = wide(covariances)
    centred = whole - whole.mean(-1, keepdim=True) - whole.mean(-2, keepdim=True) + whole.mean((-1, -2), keepdim=True)
    smallest = variances(centred).amin(-1).clamp_min(torch.finfo(whole.dtype).tiny)
    return float((epsilon * variances(whole).amax(-1) / smallest).max())


def some_inputs(model: Model) -> Inputs | None:
    """Training inputs at which rounding is measured; ``None`` where a process has none, or but a part of them."""
    if model.source is None or model.source.shared:
        return None
    return take(model.source.first(), slice(0, EXAMPLES))


def excess(larger: Tensor, smaller: Tensor) -> float:
    """``larger / smaller`` over 1, on the mean; infinite where what should be smaller is not positive."""
    ratio = (larger / smaller).nan_to_num(nan=math.inf)
    return float(torch.where(smaller > 0, ratio - 1, math.inf).mean())


def variances(covariances: Float[Tensor, "*batch c c"]) -> Float[Tensor, "*batch c"]:
    """Their diagonals, float64, as they were computed: negative ones too."""
    return wide(covariances).diagonal(dim1=-2, dim2=-1)


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
