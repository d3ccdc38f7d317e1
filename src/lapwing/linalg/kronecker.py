"""Kronecker products of two symmetric factors."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.errors import ShapeError, UnsupportedError
from lapwing.linalg.eigenbasis import Eigenbasis, nonnegative, positive
from lapwing.linalg.operator import FunctionOperator, check_shape
from lapwing.linalg.structured import Diagonal, Structured


@final
@dataclass(frozen=True, eq=False, repr=False)
class Kronecker(Structured):
    """The matrix ``scale * (L ⊗ R) + shift * I`` acting on arrays ``[p, o, i]`` flattened row by row.

    On one array ``X [o, i]`` the product is ``scale * L X Rᵀ + shift * X``. With ``L = Q_L Λ_L Q_Lᵀ`` and
    ``R = Q_R Λ_R Q_Rᵀ`` the matrix is ``(Q_L ⊗ Q_R) diag(spectrum) (Q_L ⊗ Q_R)ᵀ``, where every exact method
    works. The two decompositions are computed once, in float64, and shared by all scaled and shifted copies;
    negative eigenvalues of a factor that are rounding count as 0.

    A leading axis ``p`` of a factor gives ``p`` independent blocks (grouped convolutions); a factor without
    it serves every block. A 1-D factor is a diagonal matrix (embeddings). A product or a solve costs
    ``p o i (o + i)`` multiplications a column; nothing of size ``(o i)²`` is built. As curvature: Martens &
    Grosse 2015, arXiv:1503.05671, section 3.

    Args:
        left: Positive semi-definite ``L``: ``[o, o]``, ``[p, o, o]``, or ``[o]`` for a diagonal.
        right: Positive semi-definite ``R``: ``[i, i]``, ``[p, i, i]``, or ``[i]`` for a diagonal.
        scale: Factor of the product.
        shift: Added to the diagonal, such as a prior precision.

    Example:
        >>> curvature = Kronecker(torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([3.0, 0.0]))
        >>> curvature.shifted(1.0).diagonal().tolist()
        [7.0, 1.0, 4.0, 1.0]
        >>> curvature.shifted(1.0).spectrum.tolist()
        [[[4.0, 1.0], [7.0, 1.0]]]
    """

    left: Tensor
    right: Tensor
    scale: float | Tensor = 1.0
    shift: float | Tensor = 0.0
    shared: tuple[Eigenbasis, Eigenbasis] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        """Check the shapes."""
        for side in (self.left, self.right):
            fits = side.ndim == 1 or (side.ndim in (2, 3) and side.shape[-2] == side.shape[-1])
            check_shape(side, fits, "a factor [m, m], [p, m, m] or, diagonal, [m]", "one square matrix a side")
        counts = {len(side) for side in (self.left, self.right) if side.ndim == 3}
        if len(counts) > 1 or self.left.dtype != self.right.dtype:
            raise ShapeError(
                "factors with one dtype and the same number p of blocks",
                f"{self.left.dtype} {list(self.left.shape)} and {self.right.dtype} {list(self.right.shape)}",
                "a factor without the leading axis to share it among the blocks",
            )

    @property
    def array_shape(self) -> tuple[int, int, int]:
        """The ``(p, o, i)`` of the arrays the operator acts on; ``p`` is 1 where no factor has the axis."""
        p = max(len(side) if side.ndim == 3 else 1 for side in (self.left, self.right))
        return (p, self.left.shape[-1], self.right.shape[-1])

    @property
    def shape(self) -> tuple[int, int]:
        """``p o i`` rows and columns."""
        p, o, i = self.array_shape
        return (p * o * i, p * o * i)

    @property
    def spectrum(self) -> Float[Tensor, "p o i"]:
        """Eigenvalues ``scale * λ_L λ_R + shift``, float64, arranged as the array the operator acts on."""
        left, right = (basis.values for basis in self.bases)
        return (self.scale * left[..., :, None] * right[..., None, :] + self.shift).expand(self.array_shape)

    @property
    def left_vectors(self) -> Float[Tensor, "..."]:
        """Eigenvectors ``Q_L`` in columns, in the operator's dtype, shaped as ``left``; ones if diagonal."""
        return self.bases[0].vectors.to(self.dtype)

    @property
    def right_vectors(self) -> Float[Tensor, "..."]:
        """Eigenvectors ``Q_R`` in columns, in the operator's dtype, shaped as ``right``; ones if diagonal."""
        return self.bases[1].vectors.to(self.dtype)

    @cached_property
    def bases(self) -> tuple[Eigenbasis, Eigenbasis]:
        """The decompositions of ``L`` and ``R``, the same for all scaled and shifted copies."""
        return self.shared or (Eigenbasis(self.left), Eigenbasis(self.right))

    def root(self) -> FunctionOperator:
        """``(Q_L ⊗ Q_R) √spectrum``."""
        return self._columns(nonnegative(self.spectrum).sqrt())

    def inverse_root(self) -> FunctionOperator:
        """``(Q_L ⊗ Q_R) / √spectrum``."""
        return self._columns(positive(self.spectrum).rsqrt())

    def logdet(self) -> Float[Tensor, ""]:
        """``Σ log spectrum``."""
        return positive(self.spectrum).log().sum()

    def diagonal(self) -> Float[Tensor, " d"]:
        """``scale * diag L ⊗ diag R + shift``."""
        left, right = (m if m.ndim == 1 else m.diagonal(dim1=-2, dim2=-1) for m in (self.left, self.right))
        product = self.scale * left[..., :, None] * right[..., None, :] + self.shift
        return product.expand(self.array_shape).reshape(-1)

    def eigenvalues(self) -> Float[Tensor, " d"]:
        """The spectrum, flat; one ``eigh`` a factor for this operator and all its copies."""
        return self.spectrum.reshape(-1)

    @property
    def _like(self) -> Tensor:
        return self.left

    def _matmat(self, block: Float[Tensor, "d k"]) -> Float[Tensor, "d k"]:
        product = _contract(self.left, self.right, self._arrays(block))
        return self.scale * product.reshape(block.shape) + self.shift * block

    def _solve(self, block: Float[Tensor, "d k"]) -> Float[Tensor, "d k"]:
        return self._from_basis(self._to_basis(block) / positive(self.eigenvalues())[:, None])

    def _columns(self, weights: Float[Tensor, "p o i"]) -> FunctionOperator:
        """The operator ``(Q_L ⊗ Q_R) diag(weights)``."""
        column = weights.reshape(-1, 1)
        return self._in_float64(
            lambda noise: self._from_basis(column * noise), lambda block: column * self._to_basis(block)
        )

    def _from_basis(self, block: Float[Tensor, "d k"]) -> Float[Tensor, "d k"]:
        left, right = (basis.vectors for basis in self.bases)
        return _contract(left, right, self._arrays(block)).reshape(block.shape)

    def _to_basis(self, block: Float[Tensor, "d k"]) -> Float[Tensor, "d k"]:
        left, right = (basis.vectors for basis in self.bases)
        return _contract(_adjoint(left), _adjoint(right), self._arrays(block)).reshape(block.shape)

    def _arrays(self, block: Float[Tensor, "d k"]) -> Float[Tensor, "p o i k"]:
        return block.reshape(*self.array_shape, block.shape[1])

    def _scaled(self, c: float | Tensor) -> Kronecker:
        return replace(self, scale=c * self.scale, shift=c * self.shift, shared=self.bases)

    def _shifted(self, s: float | Tensor) -> Kronecker:
        return replace(self, shift=self.shift + s, shared=self.bases)

    def _plus_diagonal(self, other: Diagonal) -> Kronecker:
        shift = other.constant
        if shift is None:
            raise UnsupportedError(
                "one value for all entries of a diagonal that is added to a Kronecker product",
                f"values from {other.values.min().item():.3g} to {other.values.max().item():.3g}",
                "an Isotropic or Layerwise prior, or Diagonal(), LowRank(), MatrixFree() or Full(view='weights')",
            )
        return self._shifted(shift)


def _contract(left: Tensor, right: Tensor, arrays: Float[Tensor, "p o i k"]) -> Float[Tensor, "p o i k"]:
    """``(left ⊗ right)`` times each column, as one matrix product a factor."""
    arrays = left[:, None, None] * arrays if left.ndim == 1 else torch.einsum("...ab,...bik->...aik", left, arrays)
    if right.ndim == 1:
        return right[:, None] * arrays
    return torch.einsum("...ab,...obk->...oak", right, arrays)


def _adjoint(factor: Tensor) -> Tensor:
    return factor if factor.ndim == 1 else factor.mT
