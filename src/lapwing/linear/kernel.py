"""Curvature in the function view: what data make of the prior's functions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.linalg import Diagonal, FunctionOperator
from lapwing.linear.gauss_newton import Gram

COLUMNS = 64
"""Columns of a root that are multiplied together where its diagonal is asked for."""


@final
@dataclass(frozen=True, eq=False, repr=False)
class FunctionView(Gram):
    """``Rᵀ A⁻¹ R``, what the data make of the prior's functions, by products with R.

    Args:
        curvature: ``G = R Rᵀ``.
        prior: A.
    """

    curvature: Gram
    prior: Diagonal

    @property
    def shape(self) -> tuple[int, int]:
        """One coordinate a column of R."""
        columns = self.curvature.root.shape[1]
        return (columns, columns)

    @property
    def root(self) -> FunctionOperator:
        """``Rᵀ A^-½``."""
        root, unit = self.curvature.root, self.prior.inverse_root()
        size = (root.shape[1], root.shape[0])
        return FunctionOperator(lambda v: root.T @ (unit @ v), lambda u: unit @ (root @ u), size, self._like)

    def diagonal(self) -> Float[Tensor, " r"]:
        """The squared lengths of the columns of ``A^-½ R``, a product with a few of them at a time."""
        unit, root = self.prior.inverse_root(), self.curvature.root
        found: list[Tensor] = []
        for part in torch.arange(self.shape[0], device=self.device).split(COLUMNS):
            columns = self.prior.values.new_zeros(self.shape[0], len(part))
            columns[part, torch.arange(len(part))] = 1.0
            found.append((unit @ (root @ columns)).square().sum(0))
        return torch.cat(found)

    @property
    def _like(self) -> Tensor:
        return self.prior.values

    def _matmat(self, block: Float[Tensor, "r k"]) -> Float[Tensor, "r k"]:
        root = self.root
        return root @ (root.T @ block)
