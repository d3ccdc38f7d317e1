"""The diagonal of the curvature: the squares of the layer factors of a sweep added up."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from lapwing.curvature.blocked import BlockedCurvature
from lapwing.curvature.last_layer.outputs import Entries
from lapwing.curvature.second_moments import Share
from lapwing.ground.data.sources import Data
from lapwing.jacobian.layers.base import Factor, square_sums
from lapwing.jacobian.layers.linear import OuterProducts
from lapwing.jacobian.network.network import Network
from lapwing.likelihoods.base import COLUMNS
from lapwing.linalg import Diagonal
from lapwing.linalg.checks import finite


class DiagonalSum:
    """Adds up ``sum_nk (J_nᵀ u_nk)²``, in float32 or better: half precision would soon stand still.

    Args:
        network: The network whose weights are uncertain.
    """

    floats = 0
    at_once = COLUMNS
    by_factors = False
    """Whether the Jacobian of a layer with several positions is not written down."""

    def __init__(self, network: Network) -> None:
        self._network = network
        wide = torch.promote_types(network.like.dtype, torch.float32)
        self._total = torch.zeros(network.size, dtype=wide, device=network.like.device)

    def add_outputs(self, head: OuterProducts, entries: Entries) -> None:
        """Take in one chunk of a head, whose gradient is the identity; see ``DenseSum``."""
        squares = head.columns.squeeze(1).mT.flatten(0, 1).square()
        diagonal = torch.cat([piece.to(squares) for piece, _ in entries()])
        matrix = (diagonal.mT @ squares)[None]
        self._total += self._network.joined([(head.names, head.flat(matrix))])

    def add(self, factors: Iterator[Factor], *, again: bool = False, share: Share | None = None) -> None:
        """Take in the factors of one block of cotangents of one chunk."""
        self._total += square_sums(self._network, factors)

    def share(self, data: Data) -> None:
        """Add what other processes have; see ``DenseSum``."""
        data.added(self._total)

    def result(self) -> BlockedCurvature:
        """The diagonal.

        Raises:
            NumericalError: If a square overflowed.
        """
        return BlockedCurvature(Diagonal(finite(self._total)))
