"""Numbers that travel with what is needed to trust them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from torch import Tensor


@final
@dataclass(frozen=True)
class Solution:
    """What a solver returns: the value and how far it got.

    Args:
        value: The solution ``x`` of ``A x = b``, shape ``[d]`` or ``[d, k]``.
        converged: Whether every column met the stopping rule.
        iterations: Matvec blocks spent.
        residual: Relative residual ``|b - A x| / |b|`` of each column, shape ``[k]``.
    """

    value: Tensor
    converged: bool
    iterations: int
    residual: Tensor


@final
@dataclass(frozen=True)
class Estimate:
    """A number that came from random probes, with its standard error.

    Args:
        value: The estimate.
        stderr: Standard error of ``value``; 0 where the number is exact.
        samples: Independent probes behind it.

    Example:
        >>> Estimate(value=2.0, stderr=0.1, samples=32)
        Estimate(value=2.0, stderr=0.1, samples=32)
    """

    value: float
    stderr: float
    samples: int
