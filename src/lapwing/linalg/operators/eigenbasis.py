"""Symmetric matrices by their eigenvalues and eigenvectors: all of them, few, or the leading ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.errors import ShapeError
from lapwing.ground.precision import wide, wide_like
from lapwing.linalg.checks import finite, symmetric


@final
@dataclass(frozen=True, eq=False)
class Eigenbasis:
    """The matrix ``M = Q diag(λ) Qᵀ + ρ (I - Q Qᵀ)``: some eigenpairs, and one eigenvalue for all other directions.

    Any function of M is ``f(M) = W diag(f(λ), f(ρ), ..., f(ρ)) Wᵀ`` with ``W = [Q, I - Q Qᵀ]``, which is Q where there
    are as many pairs as rows: never written down, and ``W Wᵀ = I``.

    Args:
        values: λ.
        vectors: Q, orthonormal columns ``[..., m, r]``; ones ``[m]`` for a diagonal matrix, whose Q is the identity.
        rest: ρ.
        error: What M stands for is ``Q diag(λ) Qᵀ`` and something positive with at most this eigenvalue; 0 where M is
            exact.

    Example:
        >>> few = Eigenbasis(torch.tensor([3.0]).double(), torch.tensor([[1.0], [0.0], [0.0]]).double(), rest=2.0)
        >>> few.matrix.tolist(), few.spectrum.tolist()
        ([[3.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 2.0]], [3.0, 2.0, 2.0])
    """

    values: Float[Tensor, "..."]
    vectors: Float[Tensor, "..."]
    rest: float = 0.0
    error: float = 0.0

    def __post_init__(self) -> None:
        if self.vectors.shape[-1] != self.values.shape[-1]:
            shapes = f"{list(self.values.shape)} and {list(self.vectors.shape)}"
            raise ShapeError("eigenvalues [..., r] and eigenvectors [..., m, r]", shapes, "torch.linalg.eigh(matrix)")

    @property
    def shape(self) -> tuple[int, ...]:
        """That of M, ``[..., m, m]``."""
        return (*self.vectors.shape[:-1], self.vectors.shape[0 if self.vectors.ndim == 1 else -2])

    @property
    def dtype(self) -> torch.dtype:
        """That of what it holds."""
        return self.vectors.dtype

    @property
    def others(self) -> int:
        """Directions without an eigenpair of their own."""
        return self.shape[-1] - self.values.shape[-1]

    @property
    def spectrum(self) -> Float[Tensor, "*p m"]:
        """All eigenvalues with their multiplicity, those of the pairs first; float64."""
        return self._followed_by_rest(self.others)

    @property
    def largest_eigenvalue(self) -> float:
        """The largest λ, 0 of a matrix without any."""
        return float(self.values.max()) if self.values.numel() else 0.0

    @property
    def basis_eigenvalues(self) -> Float[Tensor, "*p w"]:
        """The eigenvalue of each row of ``into``: λ, and where there are other directions ρ for each of the m rows."""
        return self._followed_by_rest(self.shape[-1] if self.others else 0)

    @property
    def diagonal(self) -> Float[Tensor, "*p m"]:
        """The diagonal entries."""
        if self.vectors.ndim == 1:
            return self.values
        return (self.vectors.square() * (self.values - self.rest)[..., None, :]).sum(-1) + self.rest

    @property
    def written_vectors(self) -> Float[Tensor, "..."]:
        """Q, as a matrix for a diagonal matrix too."""
        return self.vectors.diag() if self.vectors.ndim == 1 else self.vectors

    @property
    def completed(self) -> Eigenbasis:
        """The same matrix with a pair for every direction."""
        others = torch.linalg.qr(self.vectors, mode="complete").Q[..., self.values.shape[-1] :]
        return Eigenbasis(self.spectrum, torch.cat([self.vectors, others], -1), error=self.error)

    @property
    def matrix(self) -> Float[Tensor, "*p m m"]:
        """M, written down."""
        eye = torch.eye(self.shape[-1], **wide_like(self.values))
        return self.times(eye)

    def times(self, block: Float[Tensor, "*b m k"]) -> Float[Tensor, "*b2 m k"]:
        """``M`` times columns, in their dtype."""
        eigenvalues = self.basis_eigenvalues.to(block)[..., None]
        return self.out_of(eigenvalues * self.into(block))

    def into(self, block: Float[Tensor, "*b m k"]) -> Float[Tensor, "*b2 w k"]:
        """``Wᵀ`` times columns, in their dtype."""
        if self.vectors.ndim == 1:
            return block
        vectors = self.vectors.to(block)
        coordinates = vectors.mT @ block
        if not self.others:
            return coordinates
        return torch.cat([coordinates, block - vectors @ coordinates], -2)

    def out_of(self, block: Float[Tensor, "*b w k"]) -> Float[Tensor, "*b2 m k"]:
        """``W`` times columns, in their dtype."""
        if self.vectors.ndim == 1:
            return block
        vectors = self.vectors.to(block)
        if not self.others:
            return vectors @ block
        pairs, rest = block.split([self.values.shape[-1], self.shape[-1]], -2)
        return rest + vectors @ (pairs - vectors.mT @ rest)

    def _followed_by_rest(self, count: int) -> Float[Tensor, "*p w"]:
        """λ, then ρ so many times."""
        values = wide(self.values)
        if not count:
            return values
        return torch.cat([values, values.new_full((*values.shape[:-1], count), self.rest)], -1)


@final
class SharedEigenbasis:
    """The eigenbasis of a matrix, computed when it is first asked for: all scaled and shifted copies have one.

    Args:
        matrix: The matrix.
        known: Its eigenbasis, where it is at hand.
        epsilon: Relative rounding of its entries; see ``decompose``.
    """

    def __init__(self, matrix: Float[Tensor, "m m"], known: Eigenbasis | None, epsilon: float | None = None) -> None:
        self._matrix = matrix
        self._epsilon = epsilon
        self._value = known

    @property
    def is_known(self) -> bool:
        """Whether it is at hand."""
        return self._value is not None

    @property
    def value(self) -> Eigenbasis:
        """It; the first time, one ``eigh``."""
        if self._value is None:
            self._value = decompose(self._matrix, self._epsilon)
        return self._value


def decompose(matrix: Float[Tensor, "..."], epsilon: float | None = None) -> Eigenbasis:
    """``M = Q diag(λ) Qᵀ`` for a symmetric matrix, float64, by one ``eigh``; eigenvalues ascend.

    Negative eigenvalues that are rounding of a positive semi-definite ``M`` (smaller than ``sqrt(eps)`` of
    the largest) are set to 0. A 1-D tensor stands for a diagonal
    matrix, here and in the eigenvectors: its ``Q`` is the identity, kept as ones, its eigenvalues in its own order.

    Args:
        matrix: ``[..., m, m]``, or ``[m]`` for a diagonal matrix.
        epsilon: Relative rounding of its entries, ``eps``; ``None`` for that of its dtype.
    """
    if matrix.ndim == 1:
        values = wide(finite(matrix))
        vectors = torch.ones_like(values)
    else:
        values, vectors = torch.linalg.eigh(symmetric(matrix, epsilon=epsilon))
    eps = torch.finfo(matrix.dtype).eps if epsilon is None else epsilon
    rounding = eps**0.5 * values.abs().amax(-1, keepdim=True)
    return Eigenbasis(values.masked_fill((values < 0) & (values >= -rounding), 0.0), vectors)


def decompose_nonzero(matrix: Float[Tensor, "*p m m"], epsilon: float | None = None) -> Eigenbasis:
    """All of a positive semi-definite matrix, but for rows and columns of zeros; one ``eigh``.

    Args:
        matrix: M.
        epsilon: Relative rounding of its entries; see ``decompose``.

    Cost:
        ``9 m³`` multiplications for the m rows that are not zero.
    """
    nonzero = matrix.diagonal(dim1=-2, dim2=-1) != 0
    if matrix.ndim > 2:
        nonzero = nonzero.flatten(0, -2).any(0)
    if 2 * int(nonzero.sum()) > len(nonzero):
        return decompose(matrix, epsilon)
    places = nonzero.nonzero().squeeze(1)
    vectors = wide(matrix.new_zeros(*matrix.shape[:-1], len(places)))
    if not len(places):
        return Eigenbasis(vectors.new_zeros(*matrix.shape[:-2], 0), vectors)
    inner = decompose(matrix[..., places[:, None], places], epsilon)
    vectors[..., places, :] = inner.vectors
    return Eigenbasis(inner.values, vectors)


def decompose_root(root: Float[Tensor, "m r"], trace: float | None = None) -> Eigenbasis:
    """``X Xᵀ`` of fewer columns than rows: by their r × r triangle, not by the m × m matrix.

        X = Q T,   T Tᵀ = E diag(λ) Eᵀ,   X Xᵀ = (Q E) diag(λ) (Q E)ᵀ

    Args:
        root: X.
        trace: Of a matrix of which ``X Xᵀ`` is a part: what is left of it is spread evenly over all other directions.

    Cost:
        ``3 m r² + 9 r³`` multiplications.
    """
    if not root.numel():
        return Eigenbasis(wide(root.new_zeros(0)), wide(root))
    basis, triangle = torch.linalg.qr(wide(root))
    values, vectors = torch.linalg.eigh(symmetric(triangle @ triangle.mT))
    is_resolved = values > len(root) * torch.finfo(values.dtype).eps * values.amax()
    values = values[is_resolved].flip(0)
    vectors = (basis @ vectors[:, is_resolved]).flip(1)
    left = 0.0 if trace is None else max(0.0, trace - float(values.sum()))
    rest = left / max(1, len(root) - len(values))
    return Eigenbasis(values, vectors, rest, error=left)


def semidefinite(matrix: Float[Tensor, "m m"], epsilon: float | None = None) -> Float[Tensor, "m m"]:
    """The matrix in float64, negative eigenvalues that are rounding set to 0: weak priors would blow them up."""
    basis = decompose(matrix, epsilon)
    return (basis.vectors * basis.values) @ basis.vectors.mT
