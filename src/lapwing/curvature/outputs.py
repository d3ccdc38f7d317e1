"""The sum of output Hessians, which is the left factor of a head: all of it, or a part of it for many outputs."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import torch
from jaxtyping import Int
from torch import Tensor

from lapwing.curvature.sums import Outputs
from lapwing.ground.data import Data
from lapwing.ground.ranks import check_alone
from lapwing.linalg import Kronecker, Structured
from lapwing.linalg.spectral import Spectral, whole

logger = logging.getLogger(__name__)

TOGETHER = 1024
"""Outputs that are kept together, c × c; of more these, of most curvature in the first chunk, the others apart."""


class OutputSum:
    """Adds up ``Σ B`` for ``B = diag(b) - v vᵀ`` beside its diagonal: never c × c where c is large.

    What couples the outputs that are apart is left out; the log says what part of the absolute sum of all entries
    beside the diagonal is kept.
    """

    def __init__(self) -> None:
        self.together: Int[Tensor, " k"] | None = None
        self._block: Tensor | None = None
        self._diagonal: Tensor | None = None
        self._beside = 0.0

    def add(self, diagonal: Outputs, beside: Outputs | None) -> None:
        """Take in one chunk."""
        sums = diagonal.flatten(0, -2).sum(0)
        if self._diagonal is None:
            few = len(sums) <= TOGETHER
            most = sums.topk(len(sums) if few else TOGETHER if beside is not None else 0).indices
            self.together, self._diagonal = most.sort().values, torch.zeros_like(sums)
            self._block = sums.new_zeros(len(most), len(most))
        assert self._block is not None and self.together is not None
        self._diagonal += sums
        self._block.diagonal().add_(sums[self.together])
        if beside is not None:
            v = beside.flatten(0, -2)
            self._beside += float((v.sum(1).square() - v.square().sum(1)).sum())
            v = v[:, self.together]
            self._block -= (v.mT @ v).fill_diagonal_(0.0)

    def share(self, data: Data) -> None:
        """Add what other processes have.

        Raises:
            UnsupportedError: If there are so many outputs that each would keep others together.
        """
        if self._block is None or self._diagonal is None:
            return
        check_alone(data.shared and len(self._diagonal) > TOGETHER, f"KFAC of over {TOGETHER} outputs", "Diagonal()")
        data.added(self._block)
        data.added(self._diagonal)

    def blocks(
        self, right: Tensor | Spectral, count: int, index: Int[Tensor, " d"]
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
            yield Kronecker(whole(self._block), right, 1.0 / max(count, 1)), rows[self.together].flatten()
        if bool(alone.any()):
            yield Kronecker(self._diagonal[alone], right, 1.0 / max(count, 1)), rows[alone].flatten()
            kept = float(self._block.diagonal().sum() - self._block.sum()) / max(self._beside, 1e-300)
            words = "%d of %d outputs together, which keeps %.3g of what couples them; the others by the diagonal"
            level, share = (logging.WARNING, kept) if self._beside else (logging.INFO, 1.0)
            logger.log(level, words, len(self._block), len(alone), share)
