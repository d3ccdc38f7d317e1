"""Kronecker products of two symmetric factors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeAlias, final

from jaxtyping import Float
from torch import Tensor

from lapwing.ground.errors import ShapeError, UnsupportedError
from lapwing.ground.precision import wide
from lapwing.linalg.operators.base import Structured, check_operator_tensor, common_value
from lapwing.linalg.operators.eigenbasis import Eigenbasis, decompose
from lapwing.linalg.operators.inverse_forms import KroneckerForm

Columns: TypeAlias = Callable[[Tensor], Tensor]

ROUNDING = 0.3
"""What rounding adds to an eigenvalue of a factor, over that of one product of the largest: as measured."""


@final
@dataclass(frozen=True, eq=False, repr=False)
class Kronecker(Structured):
    """The matrix ``scale * (L ⊗ R) + shift * I`` acting on arrays ``[p, o, i]`` flattened row by row.

    On one array ``X [o, i]`` the product is ``scale * L X Rᵀ + shift * X``. With ``L = Q_L Λ_L Q_Lᵀ`` and
    ``R = Q_R Λ_R Q_Rᵀ`` the matrix is ``(Q_L ⊗ Q_R) diag(spectrum) (Q_L ⊗ Q_R)ᵀ``, where every exact method
    works. The two decompositions are computed once, in float64, and shared by all scaled and shifted copies;
    negative eigenvalues of a factor that are rounding count as 0. A factor can be its decomposition, ``Eigenbasis``: of
    low rank, it costs what its rank does.

    A leading axis ``p`` of a factor gives ``p`` independent blocks (grouped convolutions); a factor without
    it serves every block. A 1-D factor is a diagonal matrix (embeddings). A product or a solve costs
    ``p o i (o + i)`` multiplications a column; nothing of size ``(o i)²`` is built. As curvature: Martens &
    Grosse 2015, arXiv:1503.05671, section 3.

    Args:
        left: Positive semi-definite ``L``: ``[o, o]``, ``[p, o, o]``, ``[o]`` for a diagonal, or decomposed.
        right: Positive semi-definite ``R``: ``[i, i]``, ``[p, i, i]``, ``[i]`` for a diagonal, or decomposed.
        scale: Factor of the product.
        shift: Added to the diagonal, such as a prior precision.
        copy_of: The operator of which this one is a scaled and shifted copy: it has the decompositions.

    Example:
        >>> import torch
        >>> curvature = Kronecker(torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([3.0, 0.0]))
        >>> curvature.shifted(1.0).diagonal().tolist()
        [7.0, 1.0, 4.0, 1.0]
        >>> curvature.shifted(1.0).spectrum.tolist()
        [[[4.0, 1.0], [7.0, 1.0]]]
    """

    left: Tensor | Eigenbasis
    right: Tensor | Eigenbasis
    scale: float | Tensor = 1.0
    shift: float | Tensor = 0.0
    copy_of: Kronecker | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        """Check the shapes."""
        for side in (self.left, self.right):
            if isinstance(side, Tensor):
                fits = side.ndim == 1 or (side.ndim in (2, 3) and side.shape[-2] == side.shape[-1])
                check_operator_tensor(
                    side, fits, "a factor [m, m], [p, m, m] or, diagonal, [m]", "one square matrix a side"
                )
        counts = {side.shape[0] for side in (self.left, self.right) if len(side.shape) == 3}
        if len(counts) > 1 or self.left.dtype != self.right.dtype:
            raise ShapeError(
                "factors with one dtype and the same number p of blocks",
                f"{self.left.dtype} {list(self.left.shape)} and {self.right.dtype} {list(self.right.shape)}",
                "a factor without the leading axis to share it among the blocks",
            )

    @property
    def array_shape(self) -> tuple[int, int, int]:
        """The ``(p, o, i)`` of the arrays the operator acts on; ``p`` is 1 where no factor has the axis."""
        p = max(side.shape[0] if len(side.shape) == 3 else 1 for side in (self.left, self.right))
        return (p, self.left.shape[-1], self.right.shape[-1])

    @property
    def shape(self) -> tuple[int, int]:
        """``p o i`` rows and columns."""
        p, o, i = self.array_shape
        return (p * o * i, p * o * i)

    @property
    def spectrum(self) -> Float[Tensor, "p o i"]:
        """Eigenvalues ``scale * λ_L λ_R + shift``, float64, arranged as the array the operator acts on."""
        left, right = self.bases
        return self._eigenvalue(left.spectrum, right.spectrum).expand(self.array_shape)

    @property
    def basis_eigenvalues(self) -> Float[Tensor, " vw"]:
        """See ``Structured.basis_eigenvalues``; for each pair of them of both factors."""
        return self._eigenvalue_arrays.reshape(-1)

    @property
    def _eigenvalue_arrays(self) -> Float[Tensor, "p v w"]:
        left, right = self.bases
        values = self._eigenvalue(left.basis_eigenvalues, right.basis_eigenvalues)
        return values.expand(self.array_shape[0], -1, -1)

    def _eigenvalue(self, left: Float[Tensor, "... v"], right: Float[Tensor, "... w"]) -> Float[Tensor, "... v w"]:
        return self.scale * left[..., :, None] * right[..., None, :] + self.shift

    @cached_property
    def bases(self) -> tuple[Eigenbasis, Eigenbasis]:
        """The decompositions of ``L`` and ``R``, the same for all scaled and shifted copies."""
        if self.copy_of is not None:
            return self.copy_of.bases
        return _decomposed(self.left), _decomposed(self.right)

    @property
    def rounding_scale(self) -> float:
        """See ``Structured.rounding_scale``: the largest eigenvalue, from those of both factors."""
        largest = float(self.scale)
        for side in self.bases:
            largest *= float(side.spectrum.amax()) if side.spectrum.numel() else 0.0
        return largest

    @property
    def root_cost(self) -> int:
        """See ``Structured.root_cost``; those of eigenvectors that are no diagonal's."""
        sides = sum(basis.shape[-1] for basis in self.bases if basis.vectors.ndim > 1)
        return self.shape[0] * max(1, sides)

    def raised(self, epsilon: float) -> Kronecker:
        """See ``Structured.raised``; by that of either factor."""
        left, right = self.bases
        return replace(self, left=_raised(left, epsilon), right=_raised(right, epsilon), copy_of=None)

    def inverse_form(self) -> KroneckerForm:
        """See ``Structured.inverse_form``; in the eigenbasis of both factors."""
        left, right = (basis.completed if basis.others else basis for basis in self.bases)
        variances = 1 / self._eigenvalue(left.spectrum, right.spectrum).expand(self.array_shape)
        own = None if left.vectors.ndim == 1 else wide(left.vectors)
        other = None if right.vectors.ndim == 1 else wide(right.vectors)
        return KroneckerForm(own, other, variances)

    def diagonal(self) -> Float[Tensor, " d"]:
        """``scale * diag L ⊗ diag R + shift``."""
        entries = self._eigenvalue(_diagonal(self.left), _diagonal(self.right))
        return entries.expand(self.array_shape).reshape(-1)

    def eigenvalues(self) -> Float[Tensor, " d"]:
        """The spectrum, flat; one ``eigh`` a factor for this operator and all its copies."""
        return self.spectrum.reshape(-1)

    @property
    def _like(self) -> Tensor:
        return self.left.values if isinstance(self.left, Eigenbasis) else self.left

    def _matmat(self, block: Float[Tensor, "d k"]) -> Float[Tensor, "d k"]:
        product = _contract(_times(self.left), _times(self.right), block.unflatten(0, self.array_shape))
        return self.scale * product.reshape(block.shape) + self.shift * block

    def _from_basis(self, block: Float[Tensor, "w k"]) -> Float[Tensor, "d k"]:
        left, right = self.bases
        arrays = block.view(*self._eigenvalue_arrays.shape, block.shape[1])
        return _contract(left.out_of, right.out_of, arrays).flatten(0, 2)

    def _to_basis(self, block: Float[Tensor, "d k"]) -> Float[Tensor, "w k"]:
        left, right = self.bases
        return _contract(left.into, right.into, block.unflatten(0, self.array_shape)).flatten(0, 2)

    def _affine(self, c: float | Tensor, s: float | Tensor) -> Kronecker:
        return replace(self, scale=c * self.scale, shift=c * self.shift + s, copy_of=self.copy_of or self)

    def _plus_diagonal(self, entries: Float[Tensor, " d"]) -> Kronecker:
        shift = common_value(entries)
        if shift is None:
            raise UnsupportedError(
                "one value for all entries of a diagonal that is added to a Kronecker product",
                f"values from {entries.min().item():.3g} to {entries.max().item():.3g}",
                "an Isotropic or Layerwise prior, or Diagonal(), LowRank(), MatrixFree() or Full(view='weights')",
            )
        return self._affine(1.0, shift)


def _contract(left: Columns, right: Columns, arrays: Float[Tensor, "p o i k"]) -> Float[Tensor, "p v w k"]:
    """``(left ⊗ right)`` times each column, as one matrix product a factor."""
    half = left(arrays.flatten(2)).unflatten(2, arrays.shape[2:]).transpose(1, 2)
    return right(half.flatten(2)).unflatten(2, half.shape[2:]).transpose(1, 2)


def _decomposed(factor: Tensor | Eigenbasis) -> Eigenbasis:
    return factor if isinstance(factor, Eigenbasis) else decompose(factor)


def _raised(basis: Eigenbasis, epsilon: float) -> Eigenbasis:
    """A factor of which rounding made all eigenvalues larger; one that is diagonal has none in common."""
    if basis.vectors.ndim == 1:
        return basis
    more = ROUNDING * epsilon * basis.largest_eigenvalue
    return replace(basis, values=basis.values + more, rest=basis.rest + more)


def _times(factor: Tensor | Eigenbasis) -> Columns:
    """The product of a factor with columns."""
    if isinstance(factor, Eigenbasis):
        return factor.times
    if factor.ndim == 1:
        return lambda columns: factor[:, None] * columns
    return lambda columns: factor @ columns


def _diagonal(factor: Tensor | Eigenbasis) -> Float[Tensor, "*p m"]:
    if isinstance(factor, Eigenbasis):
        return factor.diagonal
    if factor.ndim == 1:
        return factor
    return factor.diagonal(dim1=-2, dim2=-1)
