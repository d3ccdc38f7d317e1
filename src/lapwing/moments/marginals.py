"""A Gaussian output by itself: its quantiles, the nodes that integrate over it, and what its exponential is."""

from __future__ import annotations

import abc
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lapwing.ground.errors import NumericalError
from lapwing.ground.precision import wide, wide_like
from lapwing.ground.tracing import traced

REACH = 6.0
"""Standard deviations, to each side of the mean, over which a Gaussian number is integrated."""

NODES = 385
"""Points of the trapezoid rule there: even beside a step, quantiles are right to 1/64 of a standard deviation."""


def quantile_of_normal(probability: float) -> float:
    """That of a standard normal number."""
    return torch.special.ndtri(torch.tensor(probability, dtype=torch.float64, device="cpu")).item()


def normal_nodes(device: torch.device) -> Float[Tensor, " nodes"]:
    """Points of the trapezoid rule over a standard normal number, float64."""
    return torch.linspace(-REACH, REACH, NODES, **wide_like(device))


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
    if not traced() and not bool(torch.isfinite(values).all()):
        raise NumericalError(
            f"finite {what}",
            f"an exponent of {float(exponents.max()):g}",
            "a larger prior precision, or float64",
        )
    return values


class GaussianMarginals(abc.ABC):
    """What is known of Gaussian outputs, each by itself: all of it follows from their means and variances."""

    sampled: ClassVar[bool] = False
    """Whether all that is known are draws."""

    mean: Tensor

    @property
    @abc.abstractmethod
    def variance(self) -> Float[Tensor, "*batch c"]:
        """Variance of each output, ``[n, *event, c]``."""

    @property
    def std(self) -> Float[Tensor, "*batch c"]:
        """Standard deviation of each output, ``[n, *event, c]``."""
        return self.variance.sqrt()

    @abc.abstractmethod
    def sample(self, k: int, *, generator: torch.Generator | None = None) -> Float[Tensor, "k *batch c"]:
        """Draws, ``[k, n, *event, c]``.

        Args:
            k: Number of draws.
            generator: Source of randomness; ``None`` draws from PyTorch's global one.
        """

    def draws(self, samples: int, *, generator: torch.Generator | None = None) -> Float[Tensor, "k *batch c"]:
        """Draws behind an average over f, ``[k, n, *event, c]``; as many as asked for."""
        return self.sample(samples, generator=generator)

    def quantile(self, probability: float) -> Float[Tensor, "*batch c"]:
        """Quantile of each output by itself, ``[n, *event, c]``."""
        return self.mean + quantile_of_normal(probability) * self.std

    def node_weights(self) -> Float[Tensor, " nodes"]:
        """Weights of ``nodes``, float64; they add up to 1."""
        return normal_weights(self.mean.device)

    def nodes(self, some: Int[Tensor, " m"]) -> Float[Tensor, "nodes m"]:
        """Values over which averages over single outputs are sums, float64.

        Args:
            some: Which outputs, counted over all axes.
        """
        centre = wide(self.mean).flatten()[some]
        return centre + normal_nodes(self.mean.device)[:, None] * wide(self.variance).sqrt().flatten()[some]

    def components(self) -> tuple[Float[Tensor, "k m"], Float[Tensor, "k m"]]:
        """Means and variances, float64, of the k Gaussian numbers, alike in weight, of which each output is a mixture.

        The outputs are counted over all axes.
        """
        return wide(self.mean).reshape(1, -1), wide(self.variance).reshape(1, -1)

    def expected_exp(self, what: str) -> Float[Tensor, "*batch c"]:
        """``E e^f``, ``[n, *event, c]``; ``what`` names e^f where it overflows.

        Raises:
            NumericalError: If one overflows.
        """
        return expected_exp(self.mean, self.variance, what)
