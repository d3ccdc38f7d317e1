"""A curvature seen from the outputs: what the data make of the functions of the prior."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.linalg import Diagonal, FunctionOperator
from lapwing.linalg.operators.base import unit_vectors
from lapwing.linear.psd_operator import PSDOperator

COLUMNS = 64
"""Columns of a root that are multiplied together where the diagonal in the function view is asked for."""


@final
@dataclass(frozen=True, eq=False, repr=False)
class FunctionView(PSDOperator):
    """``Rᵀ A⁻¹ R``, what the data make of the prior's functions, by products with R.

    Args:
        curvature: ``G = R Rᵀ``.
        prior: A.
    """

    curvature: PSDOperator
    prior: Diagonal

    @property
    def shape(self) -> tuple[int, int]:
        """One coordinate a column of R."""
        columns = self.curvature.root.shape[1]
        return (columns, columns)

    @property
    def root(self) -> FunctionOperator:
        """``Rᵀ A^-½``."""
        root = self.curvature.root
        unit = self.prior.inverse_root()

        def forward(block: Tensor) -> Tensor:
            return root.T @ (unit @ block)

        def adjoint(block: Tensor) -> Tensor:
            return unit @ (root @ block)

        return FunctionOperator(forward, adjoint, (root.shape[1], root.shape[0]), self._like)

    def diagonal(self) -> Float[Tensor, " r"]:
        """The squared lengths of the columns of ``A^-½ R``, a product with a few of them at a time."""
        unit = self.prior.inverse_root()
        root = self.curvature.root
        lengths: list[Tensor] = []
        for index in torch.arange(self.shape[0], device=self.device).split(COLUMNS):
            columns = unit_vectors(index, self.shape[0], self._like)
            lengths.append((unit @ (root @ columns)).square().sum(0))
        return torch.cat(lengths)

    @property
    def _like(self) -> Tensor:
        return self.prior.values

    def _matmat(self, block: Float[Tensor, "r k"]) -> Float[Tensor, "r k"]:
        root = self.root
        return root @ (root.T @ block)
