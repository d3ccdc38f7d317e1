"""Symmetric positive (semi-)definite operators that solve, root and log-det exactly: what they share; the simplest."""

from __future__ import annotations

import abc
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.errors import ConfigError, NumericalError, ShapeError
from lapwing.linalg.operator import FunctionOperator, Operator, check_operand, check_shape, on_columns


class Structured(Operator):
    """A symmetric positive (semi-)definite operator whose structure answers every question exactly.

    A subclass supplies products, the diagonal, eigenvalues and the basis ``Q`` of its eigenvectors, or solves, roots
    and the determinant of its own. Vectors come back in the operator's dtype; the work behind them is float64 wherever
    something is factorised. The spectrum and what is summed over it (eigenvalues, log-determinant, trace) stay float64.
    Everything is differentiable, in scale, shift and matrices; where a gradient passes through eigenvectors
    (solves and roots of LowRank, and of Kronecker in its factors) the eigenvalues must be distinct.
    """

    @property
    def shape(self) -> tuple[int, int]:
        """``d`` rows and columns, as many as the tensor that defines the operator has rows."""
        return (len(self._like), len(self._like))

    @property
    def T(self) -> Structured:
        """The operator itself: it is symmetric."""
        return self

    def solve(self, b: Float[Tensor, "d *k"]) -> Float[Tensor, "d *k"]:
        """The solution ``x`` of ``A x = b``.

        Args:
            b: A vector ``[d]`` or a block of columns ``[d, k]``, in the operator's dtype.

        Returns:
            ``x``, shaped as ``b``.

        Raises:
            NumericalError: ``A`` is not positive definite.
        """
        return on_columns(self._solve, check_operand(self, b, self.shape[0]).double()).to(self.dtype)

    def root(self) -> Operator:
        """An operator ``R [d, r]`` with ``R Rᵀ = A``; ``R @ noise`` has covariance ``A``. Here ``Q √Λ``."""
        return self._basis_times(nonnegative(self.weights).sqrt())

    def inverse_root(self) -> Operator:
        """An operator ``W [d, d]`` with ``W Wᵀ = A⁻¹``; ``W @ noise`` has covariance ``A⁻¹``. Here ``Q / √Λ``."""
        return self._basis_times(positive(self.weights).rsqrt())

    def logdet(self) -> Float[Tensor, ""]:
        """The natural logarithm of the determinant, float64."""
        return positive(self.eigenvalues()).log().sum()

    @abc.abstractmethod
    def diagonal(self) -> Float[Tensor, " d"]:
        """The diagonal entries."""

    @abc.abstractmethod
    def eigenvalues(self) -> Float[Tensor, " d"]:
        """All ``d`` eigenvalues with their multiplicity, float64, in no promised order but that of the basis."""

    def trace(self) -> Float[Tensor, ""]:
        """The sum of the diagonal, float64."""
        return self.diagonal().double().sum()

    def scaled(self, c: float | Tensor) -> Structured:
        """The operator ``c A``, sharing any factorisation that survives.

        Args:
            c: A finite scalar, not negative; gradients flow into a tensor.
        """
        if not _is_finite_scalar(c) or c < 0:
            raise ConfigError("a finite scalar c >= 0 to scale by", f"{c}", "a positive number")
        return self._affine(c, 0.0)

    def shifted(self, s: float | Tensor) -> Structured:
        """The operator ``A + s I``, sharing any factorisation that survives.

        Args:
            s: A finite scalar, such as a prior precision; gradients flow into a tensor.
        """
        if not _is_finite_scalar(s):
            raise ConfigError("a finite scalar to shift by", f"{s}", "plus_diagonal for one value an entry")
        return self._affine(1.0, s)

    def plus_diagonal(self, other: Diagonal) -> Structured:
        """The sum ``A + D``, in a structure that is still exact.

        Args:
            other: The diagonal ``D``, such as a prior precision.

        Raises:
            ShapeError: ``D`` has another size or dtype.
            UnsupportedError: The sum has no exact structure; the message says which prior to use instead.
        """
        if (other.shape, other.dtype) != (self.shape, self.dtype):
            raise ShapeError(
                f"a Diagonal of {self.shape[0]} entries, {self.dtype}", f"{other!r}", "one entry for each row"
            )
        return self._plus_diagonal(other)

    def _solve(self, block: Float[Tensor, "d k"]) -> Float[Tensor, "d k"]:
        """Solve for a checked block; float64 in and out, whatever the operator's dtype."""
        return self._from_basis(self._to_basis(block) / positive(self.weights)[:, None])

    @property
    def weights(self) -> Float[Tensor, " w"]:
        """The eigenvalue of each row of ``_to_basis``: all, or in low rank those of ``Spectral.weights``."""
        return self.eigenvalues()

    def _to_basis(self, block: Float[Tensor, "d k"]) -> Float[Tensor, "w k"]:
        """``Qᵀ`` times a block; the identity here."""
        return block

    def _from_basis(self, block: Float[Tensor, "w k"]) -> Float[Tensor, "d k"]:
        """``Q`` times a block."""
        return block

    def _basis_times(self, weights: Float[Tensor, " w"]) -> FunctionOperator:
        """The operator ``Q diag(weights)``, or where Q is not square ``Q diag(weights) Qᵀ``."""
        column, square = weights[:, None], len(weights) == self.shape[0]

        def forward(block: Tensor) -> Tensor:
            return self._from_basis(column * (block if square else self._to_basis(block)))

        return self._in_float64(forward, (lambda v: column * self._to_basis(v)) if square else forward)

    @abc.abstractmethod
    def _affine(self, c: float | Tensor, s: float | Tensor) -> Structured:
        """The operator ``c A + s I``."""

    @abc.abstractmethod
    def _plus_diagonal(self, other: Diagonal) -> Structured: ...

    def _in_float64(self, forward: Callable[[Tensor], Tensor], adjoint: Callable[[Tensor], Tensor]) -> FunctionOperator:
        """A square operator in this one's dtype from products that work in float64."""

        def cast(product: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
            return lambda block: product(block.double()).to(self.dtype)

        return FunctionOperator(cast(forward), cast(adjoint), self.shape, self._like)


@final
@dataclass(frozen=True, eq=False, repr=False)
class Diagonal(Structured):
    """The matrix ``diag(values)``.

    Args:
        values: Diagonal entries ``[d]``, not negative; positive where ``solve`` and ``logdet`` are asked for.

    Example:
        >>> Diagonal(torch.tensor([1.0, 4.0])).solve(torch.tensor([1.0, 1.0])).tolist()
        [1.0, 0.25]
    """

    values: Tensor

    def __post_init__(self) -> None:
        """Check the shape."""
        check_shape(self.values, self.values.ndim == 1, "diagonal entries [d]", "matrix.diagonal()")

    @property
    def constant(self) -> Float[Tensor, ""] | None:
        """The value, float64, that all entries share; None where they differ. Its gradient spreads evenly."""
        values = self.values.double()
        return values.mean() if bool((values == values[0]).all()) else None

    def root(self) -> Diagonal:
        """``diag(√values)``."""
        return Diagonal(nonnegative(self.values).sqrt())

    def inverse_root(self) -> Diagonal:
        """``diag(1/√values)``."""
        return Diagonal(positive(self.values).rsqrt())

    def diagonal(self) -> Float[Tensor, " d"]:
        """The entries themselves."""
        return self.values

    def eigenvalues(self) -> Float[Tensor, " d"]:
        """The entries themselves, float64."""
        return self.values.double()

    @property
    def _like(self) -> Tensor:
        return self.values

    def _matmat(self, block: Float[Tensor, "d k"]) -> Float[Tensor, "d k"]:
        return self.values[:, None] * block

    def _dense(self) -> Float[Tensor, "d d"]:
        return torch.diag(self.values)

    def _affine(self, c: float | Tensor, s: float | Tensor) -> Diagonal:
        return Diagonal(c * self.values + s)

    def _plus_diagonal(self, other: Diagonal) -> Diagonal:
        return Diagonal(self.values + other.values)


def _is_finite_scalar(value: float | Tensor) -> bool:
    number = value if isinstance(value, Tensor) else torch.tensor(value, device="cpu")
    return number.ndim == 0 and bool(number.isfinite())


def positive(eigenvalues: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    """Return the eigenvalues if all are positive; raise naming the smallest otherwise."""
    return _bounded(eigenvalues, bool((eigenvalues > 0).all()), "a positive definite matrix")


def nonnegative(eigenvalues: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    """Return the eigenvalues if none is negative; raise naming the smallest otherwise."""
    return _bounded(eigenvalues, bool((eigenvalues >= 0).all()), "a positive semi-definite matrix")


def _bounded(eigenvalues: Tensor, holds: bool, expected: str) -> Tensor:
    if not holds:
        raise NumericalError(
            expected,
            f"smallest eigenvalue {eigenvalues.min().item():.3g} (largest {eigenvalues.max().item():.3g})",
            "a larger prior precision, or operator.shifted(s) with a larger s",
        )
    return eigenvalues


def finite(matrix: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Return the matrix if every entry is finite; raise otherwise (LAPACK answers NaN with wrong numbers)."""
    if bool(matrix.detach().sum().isfinite()):  # it copies nothing; a sum may overflow where no entry does
        return matrix
    bad = (~matrix.isfinite()).sum().item()
    if bad:
        raise NumericalError(
            "a matrix of finite numbers",
            f"{bad} of {matrix.numel()} entries NaN or infinite",
            "inputs of size 1, finite data and weights, or float64",
        )
    return matrix


def contrasts(c: int) -> Float[Tensor, "c c-1"]:
    """Orthonormal directions in which c ≥ 2 logits differ: Helmert's, each class against the mean of those before it.

    Example:
        >>> contrasts(2)[:, 0]
        tensor([ 0.7071, -0.7071], dtype=torch.float64)
    """
    sizes = torch.arange(1, c, dtype=torch.float64, device="cpu")
    helmert = torch.ones(c, c - 1, dtype=torch.float64, device="cpu").triu() - torch.diag(sizes, -1)[:, :-1]
    return helmert / (sizes * (sizes + 1)).sqrt()


def into_contrasts(block: Float[Tensor, "*batch c k"]) -> Float[Tensor, "*batch c-1 k"]:
    """``Hᵀ X`` for the ``contrasts`` H, by sums of the rows before each: as many operations as X has entries.

    Example:
        >>> into_contrasts(torch.eye(2, dtype=torch.float64))
        tensor([[ 0.7071, -0.7071]], dtype=torch.float64)
    """
    sizes = torch.arange(1, block.shape[-2], dtype=block.dtype, device=block.device)[:, None]
    before = block[..., :-1, :].cumsum(-2)
    return (before - sizes * block[..., 1:, :]) / (sizes * (sizes + 1)).sqrt()


def from_contrasts(block: Float[Tensor, "*batch r k"]) -> Float[Tensor, "*batch c k"]:
    """``H Y`` for the ``contrasts`` H of c = r + 1 classes, in the same way.

    Example:
        >>> from_contrasts(torch.ones(1, 1, dtype=torch.float64))
        tensor([[ 0.7071],
                [-0.7071]], dtype=torch.float64)
    """
    sizes = torch.arange(1, block.shape[-2] + 1, dtype=block.dtype, device=block.device)[:, None]
    scaled = block / (sizes * (sizes + 1)).sqrt()
    after = scaled.flip(-2).cumsum(-2).flip(-2)
    none = torch.zeros_like(block[..., :1, :])
    return torch.cat([after, none], -2) - torch.cat([none, sizes * scaled], -2)
