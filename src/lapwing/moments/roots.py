"""Roots R of covariances, R Rᵀ = Σ, whose derivatives are finite also where eigenvalues of Σ coincide."""

from __future__ import annotations

from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from lapwing.ground.precision import wide
from lapwing.ground.tracing import traced
from lapwing.moments.rounding import clamp_rounding


def covariance_root(covariance: Float[Tensor, "*batch c c"]) -> Float[Tensor, "*batch c c"]:
    """The Cholesky factor; where a covariance is singular the symmetric root, by eigenvalues; in float64.

    Args:
        covariance: Positive semidefinite up to rounding in its dtype.

    Raises:
        NumericalError: If one is indefinite beyond rounding.

    Cost:
        ``c³ / 3`` multiplications; of a singular one ``9 c³``.

    Example:
        >>> covariance_root(torch.tensor([[4.0, 2.0], [2.0, 2.0]])).tolist()
        [[2.0, 0.0], [1.0, 1.0]]
    """
    double = wide(covariance)
    symmetric = 0.5 * (double + double.mT)
    if traced():  # what is recorded may not depend on whether one is singular
        values, vectors = torch.linalg.eigh(symmetric)
        return (vectors * clamp_rounding(values, "eigenvalue", covariance.dtype).sqrt().unsqueeze(-2)) @ vectors.mT
    lower, failed = torch.linalg.cholesky_ex(symmetric)
    singular = failed > 0
    if not bool(singular.any()):
        return lower
    roots: Any = SymmetricRoot.apply(symmetric[singular], covariance.dtype)
    if bool(singular.all()):
        return roots.view(symmetric.shape)
    definite = torch.linalg.cholesky(symmetric[~singular])
    whole = torch.zeros_like(symmetric)
    return whole.index_put((singular,), roots).index_put((~singular,), definite)


@final
class SymmetricRoot(torch.autograd.Function):
    """``Σ^½`` by eigenvalues λ and eigenvectors V.

        d Σ^½ = V [(Vᵀ dΣ V)_ij / (√λ_i + √λ_j)] Vᵀ

    Nothing is divided by differences of eigenvalues, which may coincide; 0 where both of a pair are zero.
    """

    @staticmethod
    def forward(ctx: Any, covariance: Float[Tensor, "p c c"], dtype: torch.dtype) -> Float[Tensor, "p c c"]:
        """The roots.

        Args:
            ctx: Of automatic differentiation.
            covariance: In float64.
            dtype: In which it was computed, whose rounding its eigenvalues have.
        """
        values, vectors = torch.linalg.eigh(covariance)
        roots = clamp_rounding(values, "eigenvalue", dtype).sqrt()
        ctx.save_for_backward(roots, vectors)
        return (vectors * roots.unsqueeze(-2)) @ vectors.mT

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The gradient in the covariances."""
        roots, vectors = ctx.saved_tensors
        sums = roots.unsqueeze(-1) + roots.unsqueeze(-2)
        scale = torch.where(sums > 0, sums.reciprocal(), 0.0)
        inside = vectors.mT @ grads[0] @ vectors
        found = vectors @ (scale * inside) @ vectors.mT
        return 0.5 * (found + found.mT), None
