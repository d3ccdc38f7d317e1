"""The whole curvature matrix, from explicit Jacobian rows of one chunk at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.curvature.sums import Held
from lapwing.jacobian.layers.factors import Factor
from lapwing.jacobian.network.network import Network
from lapwing.linalg import Dense


class DenseSum:
    """Adds up ``sum_nk (J_nᵀ u_nk)(J_nᵀ u_nk)ᵀ``, d by d, in float64 whatever the network's dtype.

    Added up in float32, directions the data say nothing about would get a curvature of 1e-7 times the largest, more
    than a weak prior's precision.

    Args:
        network: The network whose weights are uncertain.
    """

    def __init__(self, network: Network) -> None:
        self._network = network
        self._total = torch.zeros(network.size, network.size, dtype=torch.float64, device=network.like.device)

    @property
    def floats(self) -> int:
        """One explicit row."""
        return self._network.layout.size

    def add(self, factors: Iterator[Factor], *, again: bool = False) -> None:
        """Take in the factors of one block of cotangents of one chunk."""
        rows = jacobian_rows(self._network, factors).flatten(0, 1).double()
        self._total.addmm_(rows.mT, rows)

    def result(self) -> Held:
        """The matrix."""
        return Held(Dense(self._total))


def jacobian_rows(network: Network, factors: Iterable[Factor]) -> Float[Tensor, "n k d"]:
    """The explicit Jacobian of a chunk in the uncertain weights, in the order of the flat vector."""
    parts: dict[str, Tensor] = {}
    for factor in factors:
        parts.update(network.split(factor.names, factor.rows()))
    rows = torch.cat([parts[name] for name in network.names], dim=-1)
    return rows if network.index is None else rows[..., network.index]
