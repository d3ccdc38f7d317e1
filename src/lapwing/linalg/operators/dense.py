"""A symmetric matrix held entry by entry."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.errors import NumericalError, ShapeError
from lapwing.ground.precision import wide
from lapwing.ground.probes import gaussian
from lapwing.linalg.checks import is_symmetric, symmetric
from lapwing.linalg.cholesky import cholesky_or_none
from lapwing.linalg.operators.base import Operator, Structured, check_operator_tensor, common_value
from lapwing.linalg.operators.eigenbasis import Eigenbasis, SharedEigenbasis, semidefinite

ROUNDING = 0.1
"""What rounding adds to an eigenvalue, over that of one product of the largest: as measured."""

STEPS = 20
"""Products by which the largest eigenvalue is found, within a few hundredths."""


@final
@dataclass(frozen=True, eq=False, repr=False)
class Dense(Structured):
    """The matrix ``scale * M + shift * I`` for a symmetric ``M``.

    ``solve`` and ``logdet`` use the eigendecomposition of ``M`` once it is known (``eigenvalues()`` computes
    it; scaled and shifted copies share it) and a Cholesky factor until then. The roots are Cholesky factors
    either way, so a sample does not depend on what was asked before it. Where Cholesky breaks down, ``M``
    being singular up to rounding, the eigendecomposition takes over: negative eigenvalues of ``M`` that are
    rounding count as 0.

    Args:
        matrix: Symmetric ``M``, ``[d, d]``.
        scale: Factor of ``M``.
        shift: Added to the diagonal, such as a prior precision.
        epsilon: Relative rounding of the entries of ``M``, such as that of the products it was added up of; ``None``
            for that of its dtype.
        basis: The eigenbasis of ``M``, where it is at hand.
        copy_of: The operator of which this one is a scaled and shifted copy: it has the eigenbasis of ``M``.

    Example:
        >>> gram = Dense(torch.tensor([[2.0, 2.0], [2.0, 2.0]]))
        >>> gram.shifted(1.0).solve(torch.tensor([5.0, 5.0])).tolist()
        [1.0, 1.0]
    """

    matrix: Tensor
    scale: float | Tensor = 1.0
    shift: float | Tensor = 0.0
    epsilon: float | None = field(default=None, kw_only=True)
    basis: Eigenbasis | None = field(default=None, kw_only=True)
    copy_of: Dense | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        """Check the shape."""
        is_square = self.matrix.ndim == 2 and self.matrix.shape[0] == self.matrix.shape[-1]
        check_operator_tensor(self.matrix, is_square, "a square matrix [d, d]", "LowRank for a root [d, r]")

    def root(self) -> Operator:
        """The Cholesky factor ``L``, or ``Q √Λ`` where ``A`` is singular.

        Cost: ``d³/3`` multiplications once, then ``d²/2`` a column.
        """
        lower = self._cholesky
        if lower is None:
            return super().root()
        return self._in_float64(lambda e: lower @ e, lambda v: lower.mT @ v)

    def inverse_root(self) -> Operator:
        """``L⁻ᵀ``, by triangular solves."""
        lower = self._cholesky
        if lower is None:
            return super().inverse_root()
        return self._in_float64(
            lambda e: torch.linalg.solve_triangular(lower.mT, e, upper=True),
            lambda v: torch.linalg.solve_triangular(lower, v, upper=False),
        )

    @cached_property
    def written_inverse_root(self) -> Float[Tensor, "d d"]:
        """``L⁻ᵀ`` entry by entry, upper triangular.

        Raises:
            NumericalError: If ``A`` is singular up to rounding; see ``has_cholesky``.

        Cost: ``d³/3`` multiplications once, and as many bytes as ``A``.
        """
        lower = self._definite_cholesky
        identity = torch.eye(len(lower), dtype=lower.dtype, device=lower.device)
        return torch.linalg.solve_triangular(lower.mT, identity, upper=True)

    def written_inverse(self) -> Float[Tensor, "d d"]:
        """``A⁻¹`` entry by entry.

        Raises:
            NumericalError: If ``A`` is singular up to rounding; see ``has_cholesky``.

        Cost: ``d³/3`` multiplications, and as many bytes as ``A``.
        """
        return torch.cholesky_inverse(self._definite_cholesky)

    def logdet(self) -> Float[Tensor, ""]:
        """``Σ log Λ``, or ``2 Σ log diag L``."""
        lower = None if self.has_eigenbasis else self._cholesky
        if lower is None:
            return super().logdet()
        return 2 * lower.diagonal().log().sum()

    @property
    def root_cost(self) -> int:
        """See ``Structured.root_cost``."""
        return self.shape[0] ** 2

    def diagonal(self) -> Float[Tensor, " d"]:
        """``scale * diag M + shift``."""
        return self.scale * self.matrix.diagonal() + self.shift

    def eigenvalues(self) -> Float[Tensor, " d"]:
        """All ``d``, ascending, float64; one ``eigh`` (``9 d³``) for this operator and all its copies."""
        return self.scale * self.eigenbasis.spectrum + self.shift

    @property
    def basis_eigenvalues(self) -> Float[Tensor, " w"]:
        """See ``Structured.basis_eigenvalues``."""
        return self.scale * self.eigenbasis.basis_eigenvalues + self.shift

    @property
    def origin(self) -> Dense:
        """The operator of which this one is a scaled and shifted copy; where of none, itself."""
        return self.copy_of or self

    @property
    def eigenbasis(self) -> Eigenbasis:
        """The eigenbasis of ``M``, one for all scaled and shifted copies."""
        return self._shared_basis.value

    @property
    def has_eigenbasis(self) -> bool:
        """Whether its eigenvectors are at hand."""
        return self._shared_basis.is_known

    @cached_property
    def _shared_basis(self) -> SharedEigenbasis:
        if self.copy_of is not None:
            return self.copy_of._shared_basis
        return SharedEigenbasis(self.matrix, self.basis, self.epsilon)

    @property
    def relative_rounding(self) -> float:
        """See ``Structured.relative_rounding``; or that of the products it was added up of."""
        return super().relative_rounding if self.epsilon is None else self.epsilon

    @property
    def eigenvalue_bound(self) -> float:
        """What no eigenvalue exceeds in size: ``|scale| ‖M‖ + |shift|``, by the norm of Frobenius."""
        norm = torch.linalg.matrix_norm(self.matrix)
        return abs(float(self.scale)) * float(norm) + abs(float(self.shift))

    @property
    def rounding_scale(self) -> float:
        """See ``Structured.rounding_scale``; the largest eigenvalue, where it is not at hand nearly.

        Cost: ``STEPS`` products.
        """
        if self.has_eigenbasis:
            return float(self.eigenvalues()[-1])
        matrix = wide(self.matrix)
        generator = torch.Generator().manual_seed(0)
        vector = gaussian([len(matrix)], like=matrix, generator=generator)
        for _ in range(STEPS):
            vector = matrix @ torch.nn.functional.normalize(vector, dim=0)
        return float(self.scale * torch.linalg.vector_norm(vector) + self.shift)

    def raised(self, epsilon: float) -> Structured:
        """See ``Structured.raised``."""
        return self.shifted(ROUNDING * epsilon * self.rounding_scale)

    @property
    def plain_entries(self) -> Float[Tensor, "d d"] | None:
        """See ``Structured.plain_entries``."""
        if self.has_eigenbasis or self.dtype != torch.float64:
            return None
        return self.dense()

    def in_units(self, relative: Float[Tensor, " d"]) -> Dense:
        """See ``Structured.in_units``; negative eigenvalues that are rounding are set to 0."""
        root = wide(relative).rsqrt()
        return Dense(semidefinite(root[:, None] * wide(self.dense()) * root, self.epsilon), epsilon=self.epsilon)

    def check_plus_diagonal(self, entries: Float[Tensor, " d"]) -> None:
        """See ``Structured.check_plus_diagonal``; any sum is exact."""

    def plus(self, other: Structured) -> Dense:
        """See ``Structured.plus``; of any other matrix, written out.

        Raises:
            ShapeError: If that is of another size.
        """
        if other.shape != self.shape:
            raise ShapeError(f"{self.shape[0]} rows", f"{other!r}", "a curvature of the same weights")
        return Dense(self._dense() + other.dense().to(self.matrix), epsilon=self.epsilon)

    @property
    def _like(self) -> Tensor:
        return self.matrix

    @property
    def has_cholesky(self) -> bool:
        """Whether Cholesky's factorisation exists: ``A`` is positive definite beyond rounding."""
        return self._cholesky is not None

    @property
    def _definite_cholesky(self) -> Float[Tensor, "d d"]:
        lower = self._cholesky
        if lower is None:
            raise NumericalError(
                "a positive definite matrix", "one that is singular up to rounding", "a larger prior precision"
            )
        return lower

    @cached_property
    def _cholesky(self) -> Float[Tensor, "d d"] | None:
        if is_symmetric(self.matrix):
            matrix = self.matrix * self.scale
        else:
            matrix = symmetric(self.matrix, epsilon=self.epsilon).mul_(self.scale)
        matrix.diagonal().add_(self.shift)
        return cholesky_or_none(matrix)

    def _to_basis(self, block: Float[Tensor, "d k"]) -> Float[Tensor, "w k"]:
        return self.eigenbasis.into(block)

    def _from_basis(self, block: Float[Tensor, "w k"]) -> Float[Tensor, "d k"]:
        return self.eigenbasis.out_of(block)

    def _matmat(self, block: Float[Tensor, "d k"]) -> Float[Tensor, "d k"]:
        return self.scale * (self.matrix @ block) + self.shift * block

    def _dense(self) -> Float[Tensor, "d d"]:
        matrix = self.scale * self.matrix
        matrix.diagonal().add_(self.shift)
        return matrix

    def _solve(self, block: Float[Tensor, "d k"]) -> Float[Tensor, "d k"]:
        lower = None if self.has_eigenbasis else self._cholesky
        if lower is None:
            return super()._solve(block)
        half = torch.linalg.solve_triangular(lower, block, upper=False)  # cholesky_solve would copy the factor
        return torch.linalg.solve_triangular(lower.mT, half, upper=True)

    def _affine(self, c: float | Tensor, s: float | Tensor) -> Dense:
        return replace(self, scale=c * self.scale, shift=c * self.shift + s, copy_of=self.origin)

    def _plus_diagonal(self, entries: Float[Tensor, " d"]) -> Dense:
        shift = None if entries.requires_grad else common_value(entries)
        if shift is None:
            return Dense(self._dense() + torch.diag(entries), epsilon=self.epsilon)
        return self._affine(1.0, shift)
