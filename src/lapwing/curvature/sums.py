"""What adds up the layer factors of a sweep into a dense matrix or a diagonal, and what processes do with such sums.

KFAC has its own file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, final

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor

from lapwing.curvature.moment import Moment
from lapwing.ground.data.sources import Data
from lapwing.ground.distributed import all_of, all_or_none, handed, shares
from lapwing.ground.progress import Bar
from lapwing.jacobian.layers.factors import Factor, Outer, jacobian_rows, square_sums
from lapwing.jacobian.network.network import Network
from lapwing.likelihoods.base import COLUMNS
from lapwing.linalg import Dense, Diagonal, Structured
from lapwing.linalg.checks import finite
from lapwing.linalg.operators.eigenbasis import Eigenbasis

Outputs: TypeAlias = Float[Tensor, "n *event c"]

Entries: TypeAlias = Callable[[], Iterator[tuple[Outputs, Outputs | None]]]
"""Makes output Hessians B of consecutive positions: their diagonals, and v with ``B_jk = -v_j v_k`` beside them."""


@final
@dataclass(frozen=True, eq=False)
class Held:
    """Curvature in a structure.

    Args:
        operator: The matrix, on the flat vector of uncertain weights.
        partition: Parameters of each block, where the operator is a ``BlockDiagonal``; empty otherwise.
    """

    operator: Structured
    partition: tuple[tuple[str, ...], ...] = ()


class DenseSum:
    """Adds up ``sum_nk (J_nᵀ u_nk)(J_nᵀ u_nk)ᵀ``, d by d, in float64 whatever the network's dtype.

    Added up in float32, directions the data say nothing about would get a curvature of 1e-7 times the largest, more
    than a weak prior's precision.

    Args:
        network: The network whose weights are uncertain.
    """

    at_once = COLUMNS
    """Cotangents it takes at once: one, where more would share no work."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self.floats = network.layout.size
        """Numbers it needs for each example and cotangent, beyond the layer factors: here one explicit row."""
        self._total = torch.zeros(network.size, network.size, dtype=torch.float64, device=network.like.device)

    def add_outputs(self, head: Outer, entries: Entries) -> None:
        """Take in ``Σ B_nt ⊗ a_nt a_ntᵀ`` of one chunk, where the outputs are those of one layer at every position.

        Args:
            head: The layer, which knows its inputs a; its gradient is the identity, and nothing is pulled back.
            entries: The output Hessians B.
        """
        a, flat = head.columns.double().squeeze(1).mT.flatten(0, 1), torch.arange(self._network.size)
        own = head.matrix(self._network.part(head.names, flat).to(a.device))[0]
        diagonals, beside = zip(*entries(), strict=True)
        b, v = torch.cat(diagonals), None if beside[0] is None else torch.cat(beside)
        for j, row in enumerate(own):
            self._total[row[:, None], row] += a.mT @ (b[:, j, None] * a)
            if v is not None and j + 1 < len(own):
                bent = v[:, j, None] * v[:, j + 1 :]
                block, later = a.mT @ (bent[:, :, None] * a[:, None]).flatten(1), own[j + 1 :].flatten()
                self._total[row[:, None], later] -= block
                self._total[later[:, None], row] -= block.mT

    def add(self, factors: Iterator[Factor], *, again: bool = False) -> None:
        """Take in the factors of one block of cotangents of one chunk, ``again`` after the chunk's first block."""
        rows = jacobian_rows(self._network, factors).flatten(0, 1).double()
        self._total.addmm_(rows.mT, rows)

    def share(self, data: Data) -> None:
        """Add what other processes have, each of which reads its own part of the data."""
        data.added(self._total)

    def result(self) -> Held:
        """The matrix."""
        return Held(Dense(self._total))


class DiagonalSum:
    """Adds up ``sum_nk (J_nᵀ u_nk)²``, in float32 or better: half precision would soon stand still.

    Args:
        network: The network whose weights are uncertain.
    """

    floats, at_once = 0, COLUMNS

    def __init__(self, network: Network) -> None:
        self._network = network
        wide = torch.promote_types(network.like.dtype, torch.float32)
        self._total = torch.zeros(network.size, dtype=wide, device=network.like.device)

    def add_outputs(self, head: Outer, entries: Entries) -> None:
        """Take in one chunk of a head, whose gradient is the identity; see ``DenseSum``."""
        squares = head.columns.squeeze(1).mT.flatten(0, 1).square()
        diagonal = torch.cat([piece.to(squares) for piece, _ in entries()])
        matrix = (diagonal.mT @ squares)[None]
        self._total += self._network.joined([(head.names, head.flat(matrix))])

    def add(self, factors: Iterator[Factor], *, again: bool = False) -> None:
        """Take in the factors of one block of cotangents of one chunk."""
        self._total += square_sums(self._network, factors)

    def share(self, data: Data) -> None:
        """Add what other processes have; see ``DenseSum``."""
        data.added(self._total)

    def result(self) -> Held:
        """The diagonal.

        Raises:
            NumericalError: If a square overflowed.
        """
        return Held(Diagonal(finite(self._total)))


def decompose(moments: Sequence[Moment]) -> list[Tensor | Eigenbasis]:
    """Sums by their eigenvalues and eigenvectors, each of which is kept; what takes long has a bar.

    Args:
        moments: The sums.
    """
    with Bar("eigendecompositions", sum(moment.effort for moment in moments), unit="multiplications") as bar:
        found: list[Tensor | Eigenbasis] = []
        for moment in moments:
            effort = moment.effort
            found.append(moment.decomposed)
            bar.update(effort)
    return found


def decompose_dealt(moments: Sequence[Moment]) -> None:
    """Decompose sums that all processes have, each some of them, and hand the results round.

    Args:
        moments: The sums.

    Raises:
        NumericalError: If one is not finite, in all of them.

    Cost:
        The time of the decompositions over the number of processes; a broadcast of each, with all pairs m² numbers.
    """
    like = moments[0].total
    owners = shares([moment.effort for moment in moments])
    own = [i for i, owner in enumerate(owners) if owner == dist.get_rank()]
    found: dict[int, Any] = all_or_none(lambda: dict(zip(own, decompose([moments[i] for i in own]), strict=True)))
    known = all_of({i: (it.values.shape, it.vectors.shape, it.rest, it.error) for i, it in found.items()})
    for i, (moment, owner) in enumerate(zip(moments, owners, strict=True)):
        *shapes, rest, error = known[owner][i]
        there = [found[i].values, found[i].vectors] if i in found else map(like.new_empty, shapes)
        values, vectors = (handed(part.contiguous(), owner) for part in there)
        moment.take(Eigenbasis(values, vectors, rest, error))
