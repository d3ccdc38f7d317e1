"""The curvature as a dense matrix: the layer factors of a sweep added up as explicit rows."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from lapwing.curvature.blocked import BlockedCurvature
from lapwing.curvature.last_layer.outputs import Entries
from lapwing.curvature.second_moments import Share
from lapwing.ground.data.sources import Data
from lapwing.ground.precision import DOUBLE, Precision, wide_like
from lapwing.jacobian.layers.base import Factor, jacobian_rows
from lapwing.jacobian.layers.linear import OuterProducts
from lapwing.jacobian.network.network import Network
from lapwing.likelihoods.base import COLUMNS
from lapwing.linalg import Dense
from lapwing.linalg.products import add_product, product


class DenseSum:
    """Adds up ``sum_nk (J_nᵀ u_nk)(J_nᵀ u_nk)ᵀ``, d by d, in float64 whatever the network's dtype.

    Added up in float32, directions the data say nothing about would get a curvature of 1e-7 times the largest, more
    than a weak prior's precision.

    Args:
        network: The network whose weights are uncertain.
        precision: In what products are made.
    """

    at_once = COLUMNS
    """Cotangents it takes at once: one, where more would share no work."""
    by_factors = False
    """Whether the Jacobian of a layer with several positions is not written down."""

    def __init__(self, network: Network, precision: Precision = DOUBLE) -> None:
        self._network = network
        self._precision = precision
        self.floats = network.layout.size
        """Numbers it needs for each example and cotangent, beyond the layer factors: here one explicit row."""
        self._total = torch.zeros(network.size, network.size, **wide_like(network.like))

    def add_outputs(self, head: OuterProducts, entries: Entries) -> None:
        """Take in ``Σ B_nt ⊗ a_nt a_ntᵀ`` of one chunk, where the outputs are those of one layer at every position.

        Args:
            head: The layer, which knows its inputs a; its gradient is the identity, and nothing is pulled back.
            entries: The output Hessians B.
        """
        a = self._precision.operand(head.columns).squeeze(1).mT.flatten(0, 1)
        places = torch.arange(self._network.size)
        own = head.matrix(self._network.part(head.names, places).to(self._total.device))[0]
        diagonals, beside = zip(*entries(), strict=True)
        b = torch.cat(diagonals).to(a)
        v = None if beside[0] is None else torch.cat(beside).to(a)
        for j, row in enumerate(own):
            self._total[row[:, None], row] += product(a.mT, b[:, j, None] * a)
            if v is not None and j + 1 < len(own):
                products = v[:, j, None] * v[:, j + 1 :]
                block = product(a.mT, (products[:, :, None] * a[:, None]).flatten(1))
                later = own[j + 1 :].flatten()
                self._total[row[:, None], later] -= block
                self._total[later[:, None], row] -= block.mT

    def add(self, factors: Iterator[Factor], *, again: bool = False, share: Share | None = None) -> None:
        """Take in the factors of one block of cotangents of one chunk, ``again`` after the chunk's first block.

        Args:
            factors: The factors.
            again: Whether the chunk's inputs came with an earlier block.
            share: What they are of everything that will come, where that is known.
        """
        rows = self._precision.operand(jacobian_rows(self._network, factors).flatten(0, 1))
        add_product(self._total, rows.mT, rows)

    def share(self, data: Data) -> None:
        """Add what other processes have, each of which reads its own part of the data."""
        data.added(self._total)

    def result(self) -> BlockedCurvature:
        """The matrix."""
        return BlockedCurvature(Dense(self._total, epsilon=self._precision.epsilon))
