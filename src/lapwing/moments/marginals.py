"""A Gaussian output by itself: its quantiles, the nodes that integrate over it, and what its exponential is."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.errors import NumericalError

REACH = 6.0
"""Standard deviations, to each side of the mean, over which a Gaussian number is integrated."""

NODES = 385
"""Points of the trapezoid rule there: even beside a step, quantiles are right to 1/64 of a standard deviation."""


def quantile_of_normal(probability: float) -> float:
    """That of a standard normal number."""
    return torch.special.ndtri(torch.tensor(probability, dtype=torch.float64, device="cpu")).item()


def normal_nodes(device: torch.device) -> Float[Tensor, " nodes"]:
    """Points of the trapezoid rule over a standard normal number, float64."""
    return torch.linspace(-REACH, REACH, NODES, dtype=torch.float64, device=device)


def normal_weights(device: torch.device) -> Float[Tensor, " nodes"]:
    """Weights of ``normal_nodes``, which add up to 1."""
    return torch.softmax(-0.5 * normal_nodes(device).square(), 0)


def expected_exp(
    mean: Float[Tensor, "*batch c"], variance: Float[Tensor, "*batch c"], what: str
) -> Float[Tensor, "*batch c"]:
    """``E e^f = e^(m + v/2)`` of Gaussian numbers f.

    Args:
        mean: m.
        variance: v.
        what: Name of e^f in the message.

    Raises:
        NumericalError: If one overflows.
    """
    exponents = mean + 0.5 * variance
    return check_overflow(exponents.exp(), f"expected {what} exp(mean + variance / 2)", exponents)


def log_normal_covariance(
    mean: Float[Tensor, "*batch c"], covariance: Float[Tensor, "*batch c c"]
) -> Float[Tensor, "*batch c c"]:
    """That of numbers with these means whose logarithms have this covariance."""
    return mean[..., :, None] * mean[..., None, :] * torch.expm1(covariance)


def check_overflow(values: Tensor, what: str, exponents: Tensor) -> Tensor:
    """The values, if none of them overflowed.

    Args:
        values: Exponentials.
        what: Their name in the message.
        exponents: What they are exponentials of.

    Raises:
        NumericalError: Naming the largest exponent.
    """
    if not bool(torch.isfinite(values).all()):
        raise NumericalError(
            f"finite {what}",
            f"an exponent of {float(exponents.max()):g}",
            "a larger prior precision, or float64",
        )
    return values
