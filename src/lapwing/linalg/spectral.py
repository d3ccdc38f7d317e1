"""Symmetric matrices by their eigenvalues and eigenvectors: all of them, few, or the leading ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.errors import NumericalError, ShapeError
from lapwing.linalg.structured import finite

LARGE = 3
"""Rows to an eigenpair from which finding some pairs takes less than a quarter of the time of finding all."""

TILE = 256
"""Rows and columns of a matrix that are read together with their mirror."""


@final
@dataclass(frozen=True, eq=False)
class Spectral:
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
        >>> few = Spectral(torch.tensor([3.0]).double(), torch.tensor([[1.0], [0.0], [0.0]]).double(), rest=2.0)
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
        return self._with_rest(self.others)

    @property
    def weights(self) -> Float[Tensor, "*p w"]:
        """What ``into`` has to be multiplied with before ``out_of`` for a product with M: λ, and ρ for each row."""
        return self._with_rest(self.shape[-1] if self.others else 0)

    @property
    def diagonal(self) -> Float[Tensor, "*p m"]:
        """The diagonal entries."""
        if self.vectors.ndim == 1:
            return self.values
        return (self.vectors.square() * (self.values - self.rest)[..., None, :]).sum(-1) + self.rest

    @property
    def completed(self) -> Spectral:
        """The same matrix with a pair for every direction."""
        others = torch.linalg.qr(self.vectors, mode="complete").Q[..., self.values.shape[-1] :]
        return Spectral(self.spectrum, torch.cat([self.vectors, others], -1), error=self.error)

    @property
    def matrix(self) -> Float[Tensor, "*p m m"]:
        """M, written down."""
        eye = torch.eye(self.shape[-1], dtype=torch.float64, device=self.values.device)
        return self.times(eye)

    def times(self, block: Float[Tensor, "*b m k"]) -> Float[Tensor, "*b2 m k"]:
        """``M`` times columns, in their dtype."""
        return self.out_of(self.weights.to(block)[..., None] * self.into(block))

    def into(self, block: Float[Tensor, "*b m k"]) -> Float[Tensor, "*b2 w k"]:
        """``Wᵀ`` times columns, in their dtype."""
        if self.vectors.ndim == 1:
            return block
        vectors = self.vectors.to(block)
        found = vectors.mT @ block
        return torch.cat([found, block - vectors @ found], -2) if self.others else found

    def out_of(self, block: Float[Tensor, "*b w k"]) -> Float[Tensor, "*b2 m k"]:
        """``W`` times columns, in their dtype."""
        if self.vectors.ndim == 1:
            return block
        vectors = self.vectors.to(block)
        if not self.others:
            return vectors @ block
        pairs, rest = block.split([self.values.shape[-1], self.shape[-1]], -2)
        return rest + vectors @ (pairs - vectors.mT @ rest)

    def _with_rest(self, count: int) -> Float[Tensor, "*p w"]:
        values = self.values.double()
        return torch.cat([values, values.new_full((*values.shape[:-1], count), self.rest)], -1) if count else values


def whole(matrix: Float[Tensor, "*p m m"]) -> Spectral:
    """All of a positive semi-definite matrix, but for rows and columns of zeros; one ``eigh``.

    Args:
        matrix: M.

    Cost:
        ``9 m³`` multiplications for the m rows that are not zero.
    """
    alive = matrix.diagonal(dim1=-2, dim2=-1).flatten(0, -2).any(0) if matrix.ndim > 2 else matrix.diagonal() != 0
    if 2 * int(alive.sum()) > len(alive):
        return decompose(matrix)
    place, vectors = alive.nonzero().squeeze(1), matrix.new_zeros(*matrix.shape[:-1], int(alive.sum())).double()
    if not len(place):
        return Spectral(vectors.new_zeros(*matrix.shape[:-2], 0), vectors)
    inner = decompose(matrix[..., place[:, None], place])
    vectors[..., place, :] = inner.vectors
    return Spectral(inner.values, vectors)


def of_root(root: Float[Tensor, "m r"], trace: float | None = None) -> Spectral:
    """``X Xᵀ`` of fewer columns than rows: by their r × r triangle, not by the m × m matrix.

    Args:
        root: X.
        trace: Of a matrix of which ``X Xᵀ`` is a part: what is left of it is spread evenly over all other directions.

    Cost:
        ``3 m r² + 9 r³`` multiplications.
    """
    if not root.numel():
        return Spectral(root.new_zeros(0).double(), root.double())
    basis, triangle = torch.linalg.qr(root.double())
    values, vectors = torch.linalg.eigh(symmetric(triangle @ triangle.mT))
    kept = values > len(root) * torch.finfo(values.dtype).eps * values.amax()
    values, vectors = values[kept].flip(0), (basis @ vectors[:, kept]).flip(1)
    left = 0.0 if trace is None else max(0.0, trace - float(values.sum()))
    return Spectral(values, vectors, left / max(1, len(root) - len(values)), left)


def symmetric(
    matrix: Float[Tensor, "*batch m m"], found: Float[Tensor, "*batch m m"] | None = None
) -> Float[Tensor, "*batch m m"]:
    """The symmetric part in float64; raise where the rest is more than rounding, or not finite.

    A tile and its mirror at a time, so that each is read from memory once.

    Args:
        matrix: The matrix.
        found: Written over; it may be the matrix. ``None`` for a tensor of its own.
    """
    found = torch.empty_like(matrix, dtype=torch.float64) if found is None else found
    skew, size = matrix.detach().new_zeros(2).unbind()
    tiles = [slice(start, start + TILE) for start in range(0, matrix.shape[-1], TILE)]
    for i, rows in enumerate(tiles):
        for columns in tiles[: i + 1]:
            tile, mirror = matrix[..., rows, columns], matrix[..., columns, rows].mT
            skew = torch.maximum(skew, (tile.detach() - mirror.detach()).abs_().max())
            size = torch.maximum(size, torch.linalg.vector_norm(tile.detach(), torch.inf))
            mean = torch.add(tile, mirror.double()).div_(2)
            found[..., rows, columns] = mean
            found[..., columns, rows] = mean.mT
    apart, largest = skew.item(), size.item()
    if not apart <= torch.finfo(matrix.dtype).eps ** 0.5 * largest < torch.inf:
        finite(matrix)
        raise NumericalError(
            "a symmetric matrix",
            f"entries that differ from their mirror by up to {apart:.3g} (largest entry {largest:.3g})",
            "(M + M.mT) / 2 if the difference is meant to be noise",
        )
    return found


def decompose(matrix: Float[Tensor, "..."]) -> Spectral:
    """``M = Q diag(λ) Qᵀ`` for a symmetric matrix, float64, by one ``eigh``; eigenvalues ascend.

    Negative eigenvalues that are rounding of a positive semi-definite ``M`` (smaller than ``sqrt(eps)`` of
    the largest, with the ``eps`` of the matrix's own dtype) are set to 0. A 1-D tensor stands for a diagonal
    matrix, here and in the eigenvectors: its ``Q`` is the identity, kept as ones, its eigenvalues in its own order.

    Args:
        matrix: ``[..., m, m]``, or ``[m]`` for a diagonal matrix.
    """
    if matrix.ndim == 1:
        values, vectors = finite(matrix).double(), torch.ones_like(matrix, dtype=torch.float64)
    else:
        values, vectors = torch.linalg.eigh(symmetric(matrix))
    rounding = torch.finfo(matrix.dtype).eps ** 0.5 * values.abs().amax(-1, keepdim=True)
    return Spectral(values.masked_fill((values < 0) & (values >= -rounding), 0.0), vectors)
