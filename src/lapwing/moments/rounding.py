"""What rounding makes of variances and eigenvalues: small negative numbers, which are 0."""

from __future__ import annotations

import torch
from torch import Tensor

from lapwing.ground.errors import NumericalError
from lapwing.ground.tracing import traced


def clamp_rounding(values: Tensor, what: str, dtype: torch.dtype | None = None) -> Tensor:
    """Values with what rounding made negative put to 0.

    Args:
        values: Variances or eigenvalues, all of one computation.
        what: Their name in the message.
        dtype: Precision they were computed in, that of ``values`` by default; values above -√eps times the
            largest magnitude count as rounding.

    Raises:
        NumericalError: If one is negative beyond that, or not finite.
    """
    if traced():
        return values.clamp(min=0.0)
    if not values.numel():
        return values
    largest = float(values.detach().abs().max())
    lowest = float(values.detach().min())
    if not (lowest >= -(torch.finfo(dtype or values.dtype).eps ** 0.5) * largest and largest < float("inf")):
        raise NumericalError(
            "a finite, positive semi-definite covariance of the outputs",
            f"a smallest {what} of {lowest:g} where the largest magnitude is {largest:g}",
            "float64, or a larger prior precision",
        )
    return values.clamp(min=0.0)
