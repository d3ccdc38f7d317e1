"""What Lanczos finds: small tridiagonal matrices, their Ritz values and their quadratures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias, final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lapwing.ground.errors import NumericalError

Function: TypeAlias = Callable[[Tensor], Tensor]


@final
@dataclass(frozen=True, eq=False)
class Krylov:
    """``j`` steps of Lanczos from each of ``k`` starts: ``A Q = Q T + β_j q_{j+1} e_jᵀ`` with ``q_1 = b / |b|``.

    ``T`` is tridiagonal with ``alpha`` on its diagonal and ``beta`` beside it. Its eigenvalues ``θ`` (Ritz
    values) lie within the spectrum of ``A``; with the squared first entries ``τ²`` of its eigenvectors for
    weights they are the Gauss quadrature of ``bᵀ f(A) b`` (Golub & Meurant 2010, chapter 6).

    A start whose Krylov space is exhausted keeps ``β = 0`` from there on, and diagonal entries of no weight.

    Args:
        alpha: Diagonals of ``T``, ``[k, j]``, float64.
        beta: Entries beside them ``[k, j]``; the last one leads out of the space.
        length: ``|b|``, ``[k]``.
        basis: ``Qᵀ``, ``[k, j, d]``; None where it was not kept.
    """

    alpha: Float[Tensor, "k j"]
    beta: Float[Tensor, "k j"]
    length: Float[Tensor, " k"]
    basis: Float[Tensor, "k j d"] | None

    @property
    def steps(self) -> int:
        """``j``."""
        return self.alpha.shape[1]

    @property
    def exhausted(self) -> Bool[Tensor, " k"]:
        """Which starts have nothing left to explore: their Ritz values are eigenvalues, their quadratures exact."""
        return (self.beta == 0).any(1)

    def first(self, steps: int) -> Krylov:
        """The same recurrence after fewer steps."""
        basis = None if self.basis is None else self.basis[:, :steps]
        return Krylov(self.alpha[:, :steps], self.beta[:, :steps], self.length, basis)

    @cached_property
    def earlier(self) -> Krylov:
        """The recurrence after two thirds of its steps: what it has to agree with to have converged."""
        return self.first(max(1, 2 * self.steps // 3))

    @cached_property
    def ritz(self) -> tuple[Float[Tensor, "k j"], Float[Tensor, "k j j"]]:
        """Eigenvalues, ascending, and eigenvectors (in columns) of ``T``; found on the CPU: they are small."""
        side = self.beta[:, :-1]
        tridiagonal = self.alpha.diag_embed() + side.diag_embed(1) + side.diag_embed(-1)
        if not bool(tridiagonal.isfinite().all()):
            raise NumericalError("finite products", "NaN or infinity", "finite weights, data and probes")
        values, vectors = torch.linalg.eigh(tridiagonal.cpu())
        return values.to(self.alpha.device), vectors.to(self.alpha.device)

    @property
    def ritz_residual(self) -> Float[Tensor, "k j"]:
        """``|A y - θ y| = β_j |last entry of the eigenvector|`` of each Ritz pair (Parlett 1998, section 13.2)."""
        return self.beta[:, -1:] * self.ritz[1][:, -1].abs()

    def coefficients(self, function: Function) -> Float[Tensor, "k j"]:
        """``f(T) e₁``, so that ``f(A) b ≈ |b| Q f(T) e₁``."""
        values, vectors = self.ritz
        return (vectors @ (function(values) * vectors[:, 0])[..., None])[..., 0]

    def quadrature(self, function: Function) -> Float[Tensor, " k"]:
        """``bᵀ f(A) b ≈ |b|² Σ τ² f(θ)``, exact where ``f`` is a polynomial of degree below ``2 j``."""
        values, vectors = self.ritz
        return self.length.square() * (function(values) * vectors[:, 0].square()).sum(1)
