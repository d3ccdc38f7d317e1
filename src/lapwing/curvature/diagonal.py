"""The diagonal of the curvature: the sum of squared Jacobian columns, from layer factors."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from lapwing.curvature.sums import Held
from lapwing.jacobian.layers.factors import Factor
from lapwing.jacobian.network.network import Network
from lapwing.linalg import Diagonal
from lapwing.linalg.eigenbasis import finite


class DiagonalSum:
    """Adds up ``sum_nk (J_nᵀ u_nk)²``, one number a weight.

    Args:
        network: The network whose weights are uncertain.
    """

    floats = 0

    def __init__(self, network: Network) -> None:
        self._network = network
        self._total = torch.zeros(network.layout.size, dtype=network.like.dtype, device=network.like.device)

    def add(self, factors: Iterator[Factor], *, again: bool = False) -> None:
        """Take in the factors of one block of cotangents of one chunk."""
        for factor in factors:
            squares = factor.square_sum()
            for name, part in self._network.split(factor.names, squares).items():
                self._total[self._network.layout.slices[name]] += part

    def result(self) -> Held:
        """The diagonal.

        Raises:
            NumericalError: If a square overflowed.
        """
        index, total = self._network.index, finite(self._total)
        return Held(Diagonal(total if index is None else total[index]))
