"""The largest eigenvectors of a kernel matrix, along which a descent takes shorter steps than elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lapwing.ground.precision import wide
from lapwing.linear.preconditioners import PivotedCholesky
from lapwing.linear.problem import Problem

ROUNDING = 10.0
"""Eigenvalues below so many times the rounding of the dtype, beside the largest, are not told from it."""


@final
@dataclass(frozen=True, eq=False)
class Deflation:
    """``M = I - U (I - τ/Σ) Uᵀ``, with which the steps of a descent on ``½ xᵀ Λ x - bᵀ x`` are multiplied.

    With U near eigenvectors of ``Λ = s K + N`` of its largest eigenvalues Σ, the eigenvalues of ``M Λ`` are τ there,
    the least of Σ, and as they were elsewhere (Ma & Belkin 2017). M is positive definite whatever U is, so that the
    descent still ends at the solution of ``Λ x = b``: how good U is decides the length of its steps alone.

    Args:
        vectors: U, orthonormal.
        products: ``Λ U``.
        values: Σ, descending.
    """

    vectors: Float[Tensor, "n q"]
    products: Float[Tensor, "n q"]
    values: Float[Tensor, " q"]

    @classmethod
    def of(cls, problem: Problem, rank: int) -> Deflation:
        """The best vectors in the span of a partial Cholesky factor, whose pivots find inputs far from all others too.

        Args:
            problem: In the function view.
            rank: Vectors q; fewer where the dtype resolves no more.

        Cost:
            ``rank`` rows of K, and a product with as many columns.
        """
        factor = PivotedCholesky(rank).curvature(problem).factor
        basis = torch.linalg.qr(factor).Q
        products = problem.precision @ basis
        ascending, vectors = torch.linalg.eigh(wide(basis.mT @ products))
        values = ascending.flip(0)
        resolved = int((values > ROUNDING * torch.finfo(basis.dtype).eps * values[0]).sum())
        rotation = vectors.flip(1)[:, :resolved].to(basis)
        return cls(basis @ rotation, products @ rotation, values[:resolved].to(basis))

    @property
    def shares(self) -> Float[Tensor, "q 1"]:
        """``1 - τ/Σ``: how much of a step along each vector is not taken."""
        return (1 - self.values[-1] / self.values)[:, None]

    def removed(self, index: Int[Tensor, " r"] | slice) -> Float[Tensor, "r q"]:
        """Rows of ``U (Σ - τ)^½``, whose square is what M removes from Λ.

        Args:
            index: Which.
        """
        return self.vectors[index] * (self.values - self.values[-1]).sqrt()
