"""Kronecker products of two symmetric factors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeAlias, final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.errors import ShapeError, UnsupportedError
from lapwing.ground.precision import wide
from lapwing.linalg.operators.base import Structured, check_operator_tensor, common_value
from lapwing.linalg.operators.eigenbasis import Eigenbasis, decompose, decompose_nonzero
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
        corrected: Eigenvalues in place of the products ``λ_L λ_R``, where the matrix is known to be diagonal in the
            eigenbasis of both factors but is no product of them; before scale and shift. The factors are then taken for
            their eigenvectors alone, of which they must have all.
        factored: Whether a shift s is shared out among the factors, ``(scale * L + π √s) ⊗ (R + √s / π)`` with
            ``π² = scale tr(L) / o : tr(R) / i`` (Martens & Grosse 2015, section 6.3): larger than what was asked for.
            Shifts add up before they are shared out.
        copy_of: The operator of which this one is a scaled and shifted copy: it has the decompositions.
        undamped: The product among whose factors ``damping`` was shared out, which ``corrected`` is made of.
        damping: The shifts that were, added up.

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
    corrected: Tensor | None = None
    factored: bool = False
    copy_of: Kronecker | None = field(default=None, kw_only=True)
    undamped: Kronecker | None = field(default=None, kw_only=True)
    damping: float | Tensor = field(default=0.0, kw_only=True)

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
        if self.corrected is not None and self.corrected.shape != self.array_shape:
            raise ShapeError(
                f"corrected eigenvalues {list(self.array_shape)}", f"{list(self.corrected.shape)}", "one for each pair"
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
        if self.corrected is not None:
            return self._eigenvalue_arrays
        left, right = self.bases
        return self._eigenvalue(left.spectrum, right.spectrum).expand(self.array_shape)

    @property
    def basis_eigenvalues(self) -> Float[Tensor, " vw"]:
        """See ``Structured.basis_eigenvalues``; for each pair of them of both factors."""
        return self._eigenvalue_arrays.reshape(-1)

    @property
    def _eigenvalue_arrays(self) -> Float[Tensor, "p v w"]:
        values = self.scale * self.unscaled_eigenvalues + self.shift
        return values.expand(self.array_shape[0], -1, -1)

    @property
    def unscaled_eigenvalues(self) -> Float[Tensor, "*p v w"]:
        """``λ_L λ_R`` of each pair of eigenvectors, or what is in their place; float64, before scale and shift."""
        if self.corrected is not None:
            return wide(self.corrected)
        left, right = self.bases
        return left.basis_eigenvalues[..., :, None] * right.basis_eigenvalues[..., None, :]

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
        if self.corrected is not None:
            return float(self.scale * self.corrected.amax())
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
        """See ``Structured.raised``; by that of either factor, or of eigenvalues of their own."""
        if self.corrected is not None:
            more = ROUNDING * epsilon * float(self.corrected.amax())
            return replace(self, corrected=self.corrected + more, copy_of=None, undamped=None)
        left, right = self.bases
        return replace(self, left=_raised(left, epsilon), right=_raised(right, epsilon), copy_of=None)

    def inverse_form(self) -> KroneckerForm:
        """See ``Structured.inverse_form``; in the eigenbasis of both factors."""
        left, right = self.complete_bases
        variances = 1 / self._complete_eigenvalues
        own = None if left.vectors.ndim == 1 else wide(left.vectors)
        other = None if right.vectors.ndim == 1 else wide(right.vectors)
        return KroneckerForm(own, other, variances)

    @property
    def complete_bases(self) -> tuple[Eigenbasis, Eigenbasis]:
        """The decompositions, each with a pair for every direction."""
        left, right = self.bases
        return left.completed if left.others else left, right.completed if right.others else right

    @property
    def _complete_eigenvalues(self) -> Float[Tensor, "p o i"]:
        """The eigenvalue of each pair of ``complete_bases``."""
        if self.corrected is not None:
            return self.spectrum
        left, right = self.complete_bases
        return self._eigenvalue(left.spectrum, right.spectrum).expand(self.array_shape)

    def plus(self, other: Structured) -> Structured:
        """See ``Structured.plus``; the sum is diagonal in no eigenbasis of this form: its diagonal in one is kept.

            A + B ≈ (Q ⊗ P) diag(dᴬ + dᴮ) (Q ⊗ P)ᵀ,    d_ab = (q_a ⊗ p_b)ᵀ A (q_a ⊗ p_b)

        for the eigenvectors Q and P of the sums of the partial traces of A and B. No other diagonal in that basis is
        nearer to the sum, by the norm of Frobenius (George et al. 2018, section 3), and its trace is kept.
        """
        if not isinstance(other, Kronecker) or other.array_shape != self.array_shape:
            return super().plus(other)
        left = _common_basis(self._left_trace, other._left_trace)
        right = _common_basis(self._right_trace, other._right_trace)
        corrected = self._diagonal_in(left, right) + other._diagonal_in(left, right)
        return Kronecker(left, right, corrected=corrected)

    def pooled(self, other: Structured) -> Structured:
        """See ``Structured.pooled``: factors are added up, where the scale is one over the inputs a of each.

            (Σ g gᵀ + Σ' g gᵀ) ⊗ (Σ a aᵀ + Σ' a aᵀ) / (n + n')

        which is what all data together give; of corrected or shifted eigenvalues the sum, see ``plus``.
        """
        if not isinstance(other, Kronecker) or not (self._is_plain and other._is_plain):
            return self.plus(other)
        count = 1 / self.scale + 1 / other.scale
        sides = zip(self.bases, other.bases, strict=True)
        left, right = (_factor_sum(own, theirs) for own, theirs in sides)
        return Kronecker(left, right, 1 / count, factored=self.factored)

    @property
    def _is_plain(self) -> bool:
        """Whether it is ``scale * L ⊗ R`` and nothing else."""
        return self.corrected is None and not bool(self.shift)

    @property
    def _left_trace(self) -> Float[Tensor, "..."]:
        """``Σ_b (I ⊗ e_b)ᵀ A (I ⊗ e_b)``, its entries where the left eigenvectors are those of a diagonal."""
        return _recomposed(self.complete_bases[0], self._complete_eigenvalues.sum(2))

    @property
    def _right_trace(self) -> Float[Tensor, "..."]:
        """The same of the other side."""
        return _recomposed(self.complete_bases[1], self._complete_eigenvalues.sum(1))

    def _diagonal_in(self, left: Eigenbasis, right: Eigenbasis) -> Float[Tensor, "p o i"]:
        """The diagonal in the eigenvectors of two other factors."""
        own_left, own_right = self.complete_bases
        by_left = _in_other_basis(left, own_left, self._complete_eigenvalues)
        return _in_other_basis(right, own_right, by_left.mT).mT

    def diagonal(self) -> Float[Tensor, " d"]:
        """``scale * diag L ⊗ diag R + shift``."""
        if self.corrected is not None:
            _, o, i = self.array_shape
            entries = self._diagonal_in(decompose(self._like.new_ones(o)), decompose(self._like.new_ones(i)))
            return entries.reshape(-1).to(self._like)
        entries = self._eigenvalue(_diagonal(self.left), _diagonal(self.right))
        return entries.expand(self.array_shape).reshape(-1)

    def eigenvalues(self) -> Float[Tensor, " d"]:
        """The spectrum, flat; one ``eigh`` a factor for this operator and all its copies."""
        return self.spectrum.reshape(-1)

    @property
    def _like(self) -> Tensor:
        return self.left.values if isinstance(self.left, Eigenbasis) else self.left

    def _matmat(self, block: Float[Tensor, "d k"]) -> Float[Tensor, "d k"]:
        if self.corrected is not None:
            return self._from_basis(self.basis_eigenvalues.to(block)[:, None] * self._to_basis(block))
        product = _contract(_times(self.left), _times(self.right), block.unflatten(0, self.array_shape))
        return self.scale * product.reshape(block.shape) + self.shift * block

    def _from_basis(self, block: Float[Tensor, "w k"]) -> Float[Tensor, "d k"]:
        left, right = self.bases
        arrays = block.view(*self._eigenvalue_arrays.shape, block.shape[1])
        return _contract(left.out_of, right.out_of, arrays).flatten(0, 2)

    def _to_basis(self, block: Float[Tensor, "d k"]) -> Float[Tensor, "w k"]:
        left, right = self.bases
        return _contract(left.into, right.into, block.unflatten(0, self.array_shape)).flatten(0, 2)

    @property
    def shifts_exactly(self) -> bool:
        """See ``Structured.shifts_exactly``; not where shifts are shared out among the factors."""
        return not self.factored and self.undamped is None

    def damped_by_factors(self) -> Kronecker:
        """See ``Structured.damped_by_factors``; corrected eigenvalues have no factors."""
        return self if self.corrected is not None else replace(self, factored=True)

    def _affine(self, c: float | Tensor, s: float | Tensor) -> Kronecker:
        if self.undamped is not None:
            return self.undamped._affine(c, 0.0)._damped(c * self.damping + s)
        copy = replace(self, scale=c * self.scale, shift=c * self.shift, copy_of=self.copy_of or self)
        if self.factored and not (isinstance(s, float) and s == 0.0):
            return copy._damped(s)
        return replace(copy, shift=copy.shift + s)

    def _damped(self, s: float | Tensor) -> Kronecker:
        """``(scale L + π √s) ⊗ (R + √s / π)``, in the eigenbasis of both factors."""
        left, right = self.complete_bases
        scaled = self.scale * left.spectrum
        ratio = scaled.mean(-1, keepdim=True) / right.spectrum.mean(-1, keepdim=True)
        balance = torch.where((ratio > 0) & ratio.isfinite(), ratio, 1.0).sqrt()
        root = torch.as_tensor(s, dtype=scaled.dtype, device=scaled.device).sqrt()
        by_left = scaled + balance * root
        by_right = right.spectrum + root / balance
        eigenvalues = (by_left[..., :, None] * by_right[..., None, :]).expand(self.array_shape)
        return Kronecker(left, right, shift=self.shift, corrected=eigenvalues, undamped=self, damping=s)

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


def _recomposed(basis: Eigenbasis, values: Float[Tensor, "p m"]) -> Float[Tensor, "..."]:
    """``Q diag(values) Qᵀ``, with the leading axis that Q has; entries alone where Q is the identity."""
    if basis.vectors.ndim == 1:
        return values.sum(0)
    vectors = wide(basis.vectors)
    matrices = (vectors * values[:, None, :]) @ vectors.mT
    return matrices if vectors.ndim == 3 else matrices.sum(0)


def _common_basis(own: Float[Tensor, "..."], other: Float[Tensor, "..."]) -> Eigenbasis:
    """The eigenbasis of the sum of two partial traces, each a matrix, or entries where it is diagonal."""
    if own.ndim == other.ndim:
        return decompose(own + other)
    written = [side.diag() if side.ndim == 1 else side for side in (own, other)]
    return decompose(written[0] + written[1])


def _in_other_basis(basis: Eigenbasis, own: Eigenbasis, values: Float[Tensor, "p m k"]) -> Float[Tensor, "p m k"]:
    """``Σ_b (q_aᵀ u_b)² v_b`` for the eigenvectors q of a basis and u of the one that the values v belong to."""
    if basis.vectors.ndim == own.vectors.ndim == 1:
        return values
    turned = own.vectors if basis.vectors.ndim == 1 else basis.into(wide(own.written_vectors))
    return wide(turned).square() @ values


def _factor_sum(own: Eigenbasis, other: Eigenbasis) -> Tensor | Eigenbasis:
    """The sum of two factors."""
    if own.vectors.ndim == other.vectors.ndim == 1:
        return own.values + other.values
    return decompose_nonzero(own.matrix + other.matrix)


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
