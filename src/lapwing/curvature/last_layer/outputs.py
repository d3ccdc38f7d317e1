"""The sum of output Hessians, which is the left factor of a head: all of it, or a part of it for many outputs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lapwing.ground.data.sources import Data
from lapwing.ground.distributed import check_alone
from lapwing.ground.precision import DOUBLE, Precision
from lapwing.linalg import Kronecker, Structured
from lapwing.linalg.operators.eigenbasis import Eigenbasis, decompose_nonzero
from lapwing.linalg.products import outer_sum

logger = logging.getLogger(__name__)

Entries: TypeAlias = Callable[[], Iterator[tuple[Float[Tensor, "n *event c"], Float[Tensor, "n *event c"] | None]]]
"""Makes output Hessians B of consecutive positions: their diagonals, and v with ``B_jk = -v_j v_k`` beside them."""

TOGETHER = 1024
"""Outputs that are kept together, c × c; of more these, of most curvature in the first chunk, the others apart."""


class OutputSum:
    """Adds up ``Σ B`` for ``B = diag(b) - v vᵀ`` beside its diagonal: never c × c where c is large.

    What couples the outputs that are apart is left out; the log says which part of the absolute sum of all entries
    beside the diagonal is kept, in per cent.

    Args:
        precision: In what products are made.
        most: Outputs that are kept together.
    """

    def __init__(self, precision: Precision = DOUBLE, most: int = TOGETHER) -> None:
        self._precision = precision
        self._most = most
        self.together: Int[Tensor, " k"] | None = None
        self._block: Tensor | None = None
        self._diagonal: Tensor | None = None

    def add(self, entries: Entries) -> None:
        """Take in one chunk."""
        if self._diagonal is None:
            self._begin(entries)
        assert self._block is not None and self._diagonal is not None
        own: list[Tensor] = []
        for diagonal, beside in entries():
            self._diagonal += diagonal.sum(0)
            if beside is not None:
                own.append(beside[:, self.together])
        if own:
            v = self._precision.operand(torch.cat(own))
            self._block -= outer_sum(v.mT)
        self._block.diagonal().copy_(self._diagonal[self.together])

    def _begin(self, entries: Entries) -> None:
        """Choose the outputs that are kept together; the output Hessians of the first chunk are made twice for it."""
        diagonals, beside = zip(*((diagonal.sum(0), beside is not None) for diagonal, beside in entries()), strict=True)
        sums = torch.stack(diagonals).sum(0)
        if len(sums) <= self._most:
            together = len(sums)
        elif beside[0]:
            together = self._most
        else:
            together = 0
        most = sums.topk(together).indices
        self.together = most.sort().values
        self._diagonal = torch.zeros_like(sums)
        self._block = sums.new_zeros(len(most), len(most))

    def share(self, data: Data) -> None:
        """Add what other processes have.

        Raises:
            UnsupportedError: If there are so many outputs that each would keep others together.
        """
        if self._block is None or self._diagonal is None:
            return
        check_alone(
            data.shared and len(self._diagonal) > self._most, f"KFAC of over {self._most} outputs", "Diagonal()"
        )
        data.added(self._block)
        data.added(self._diagonal)

    def blocks(
        self, right: Tensor | Eigenbasis, count: int, index: Int[Tensor, " d"]
    ) -> Iterator[tuple[Structured, Int[Tensor, " k"]]]:
        """``Σ B ⊗ A / count`` as blocks: of the outputs together, and of those apart; with their places.

        Args:
            right: A.
            count: Inputs it was summed over.
            index: Places of the weights, output by output.
        """
        assert self._block is not None and self._diagonal is not None
        alone = torch.ones_like(self._diagonal, dtype=torch.bool)
        alone[self.together] = False
        rows = index.view(len(alone), -1)
        if len(self._block):
            left = decompose_nonzero(self._block, self._precision.epsilon)
            yield Kronecker(left, right, 1.0 / max(count, 1)), rows[self.together].flatten()
        if bool(alone.any()):
            yield Kronecker(self._diagonal[alone], right, 1.0 / max(count, 1)), rows[alone].flatten()
            level = logging.INFO
            share = 1.0
            if len(self._block):  # rows of B add up to 0: what is beside the diagonal is as much as the diagonal
                beside = self._block.diagonal().sum() - self._block.sum()
                level = logging.WARNING
                share = float(beside / self._diagonal.sum().clamp(min=1e-300))
            logger.log(
                level,
                "of %d outputs the %d of most curvature are kept together and the others apart, by their diagonal: "
                "%.3g %% of the curvature between outputs is kept; 100 %% is exact",
                len(alone),
                len(self._block),
                100 * share,
            )
