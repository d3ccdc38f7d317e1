"""Matrices known by their products; those whose structure answers every question exactly."""

from __future__ import annotations

import abc
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lapwing.ground.errors import ConfigError, ShapeError, UnsupportedError, check_bytes
from lapwing.ground.precision import wide, wide_like
from lapwing.linalg.checks import nonnegative, positive
from lapwing.linalg.operators.inverse_forms import InverseForm, SumForm


class Operator(abc.ABC):
    """A real matrix known by its products with vectors and with blocks of columns.

    A subclass is final and supplies four things: ``shape``, ``T``, ``_like`` (a tensor whose dtype and device
    are the operator's) and ``_matmat`` (the product with a block that has been checked).
    """

    @property
    @abc.abstractmethod
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""

    @property
    @abc.abstractmethod
    def T(self) -> Operator:
        """The adjoint: ``<u, A v> = <A.T u, v>``."""

    @property
    @abc.abstractmethod
    def _like(self) -> Tensor: ...

    @abc.abstractmethod
    def _matmat(self, block: Float[Tensor, "columns k"]) -> Float[Tensor, "rows k"]: ...

    @property
    def dtype(self) -> torch.dtype:
        """What operands must have and products come back in."""
        return self._like.dtype

    @property
    def device(self) -> torch.device:
        """Where operands must live."""
        return self._like.device

    def __matmul__(self, v: Float[Tensor, "columns *k"]) -> Float[Tensor, "rows *k"]:
        """The product ``A v``.

        Args:
            v: A vector ``[columns]`` or a block of columns ``[columns, k]``, in the operator's dtype.

        Returns:
            ``[rows]`` or ``[rows, k]``.

        Raises:
            ShapeError: ``v`` does not fit.
            UnsupportedError: ``v`` has another dtype.
        """
        return on_columns(self._matmat, check_operand(self, v, self.shape[1]))

    def dense(self, max_bytes: int = 2**31) -> Float[Tensor, "rows columns"]:
        """The matrix itself, written out.

        Args:
            max_bytes: Refuse to build a matrix larger than this, in bytes.

        Returns:
            ``[rows, columns]`` in the operator's dtype.

        Raises:
            TooLargeError: The matrix would need more; nothing is allocated.
        """
        rows, columns = self.shape
        needed = rows * columns * self.dtype.itemsize
        got = f"{rows} x {columns} {self.dtype}, which needs"
        check_bytes("a dense matrix", needed, max_bytes, got, "products (operator @ v), or a larger max_bytes")
        return self._dense()

    def _dense(self) -> Float[Tensor, "rows columns"]:
        return self._matmat(torch.eye(self.shape[1], dtype=self.dtype, device=self.device))

    def __repr__(self) -> str:
        """Name, shape, dtype and device; never the numbers."""
        rows, columns = self.shape
        return f"{type(self).__name__}({rows} x {columns}, {self.dtype}, {self.device})"


@final
@dataclass(frozen=True, eq=False, repr=False)
class FunctionOperator(Operator):
    """An operator given by two functions: its product and its adjoint's.

    Args:
        forward: ``A V`` for a block ``V [columns, k]``.
        adjoint: ``Aᵀ U`` for a block ``U [rows, k]``.
        size: Rows and columns.
        like: A tensor whose dtype and device are the operator's.

    Example:
        >>> shift = FunctionOperator(
        ...     lambda v: v.roll(1, 0), lambda u: u.roll(-1, 0), size=(3, 3), like=torch.empty(0)
        ... )
        >>> (shift @ torch.tensor([1.0, 2.0, 3.0])).tolist()
        [3.0, 1.0, 2.0]
        >>> (shift.T @ torch.tensor([3.0, 1.0, 2.0])).tolist()
        [1.0, 2.0, 3.0]
    """

    forward: Callable[[Tensor], Tensor]
    adjoint: Callable[[Tensor], Tensor]
    size: tuple[int, int]
    like: Tensor

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.size

    @property
    def T(self) -> FunctionOperator:
        """The same two functions, exchanged."""
        return FunctionOperator(self.adjoint, self.forward, (self.size[1], self.size[0]), self.like)

    @property
    def _like(self) -> Tensor:
        return self.like

    def _matmat(self, block: Float[Tensor, "columns k"]) -> Float[Tensor, "rows k"]:
        return self.forward(block)


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
        return on_columns(self._solve, wide(check_operand(self, b, self.shape[0]))).to(self._like)

    def root(self) -> Operator:
        """An operator ``R [d, r]`` with ``R Rᵀ = A``; ``R @ noise`` has covariance ``A``. Here ``Q √Λ``."""
        return self._basis_times(nonnegative(self.basis_eigenvalues).sqrt())

    def inverse_root(self) -> Operator:
        """An operator ``W [d, d]`` with ``W Wᵀ = A⁻¹``; ``W @ noise`` has covariance ``A⁻¹``. Here ``Q / √Λ``."""
        return self._basis_times(positive(self.basis_eigenvalues).rsqrt())

    def inverse_form(self) -> InverseForm:
        """``X A⁻¹ Xᵀ`` of any rows X, as a module of plain PyTorch, float64; here by the inverse root, written out.

        Raises:
            TooLargeError: If it is too large to be written out.
        """
        return SumForm(added=wide(self.inverse_root().dense()))

    @property
    def root_cost(self) -> int:
        """Multiplications of a product of ``root`` or ``inverse_root`` with a vector, about."""
        return self.shape[0]

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
        return wide(self.diagonal()).sum()

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

    def plus_diagonal(self, entries: Float[Tensor, " d"]) -> Structured:
        """The sum ``A + diag(entries)``, in a structure that is still exact.

        Args:
            entries: What is added to each entry of the diagonal, such as prior precisions, in the operator's dtype.

        Raises:
            ShapeError: There are more or fewer of them, or they have another dtype.
            UnsupportedError: The sum has no exact structure; the message says which prior to use instead.
        """
        if entries.shape != self.shape[:1] or entries.dtype != self.dtype:
            raise ShapeError(
                f"{self.shape[0]} diagonal entries, {self.dtype}",
                f"{entries.dtype} {list(entries.shape)}",
                "one entry for each row",
            )
        return self._plus_diagonal(entries)

    @property
    def shifts_exactly(self) -> bool:
        """Whether ``shifted`` and ``plus_diagonal`` are sums with the whole matrix, and not with parts of it."""
        return True

    def damped_by_factors(self) -> Structured:
        """The operator whose shifts are shared out among its factors; here itself, which has none."""
        return self

    def plus(self, other: Structured) -> Structured:
        """The sum ``A + B`` in the structure of A: exact, but of Kronecker products, which says how near.

        Args:
            other: B, in the same structure.

        Raises:
            UnsupportedError: If the sum has not that structure.
        """
        raise UnsupportedError(f"a sum of {self!r} with its like", f"{other!r}", "the same structure for both")

    def pooled(self, other: Structured) -> Structured:
        """The curvature of the data of both, A that of some and B that of others: the sum, but of Kronecker products.

        Args:
            other: B, in the same structure.

        Raises:
            UnsupportedError: If the sum has not that structure.
        """
        return self.plus(other)

    def check_plus_diagonal(self, entries: Float[Tensor, " d"]) -> None:
        """Refuse as ``plus_diagonal`` does, at no cost."""
        self.plus_diagonal(entries)

    # what an evidence asks for, in the forms that cost the least

    @property
    def known_root(self) -> Float[Tensor, "d r"] | None:
        """U in float64 with ``U Uᵀ = A``, where the operator is held by one."""
        return None

    @property
    def plain_entries(self) -> Float[Tensor, "d d"] | None:
        """The matrix, where it is held entry by entry in float64 and its eigenvectors are not at hand."""
        return None

    @property
    def relative_rounding(self) -> float:
        """The rounding of its entries over the largest: that of the dtype that holds them."""
        return torch.finfo(self.dtype).eps

    @property
    def rounding_scale(self) -> float:
        """A bound on the largest eigenvalue, in which the rounding of products that were added up is measured.

        Here the trace; 0 where every entry has a rounding of its own.
        """
        return float(self.trace())

    @property
    def own_rounding(self) -> float:
        """The relative rounding of the products it was made by, where that was of another precision than asked for."""
        return 0.0

    def raised(self, epsilon: float) -> Structured:
        """The operator with all eigenvalues as much larger as rounding of the products behind it can have made them.

        Here itself, where every entry has a rounding of its own.

        Args:
            epsilon: Relative rounding of a product.
        """
        return self

    @property
    def indexed_blocks(self) -> tuple[tuple[Structured, Int[Tensor, " b"]], ...]:
        """Independent blocks and the positions of the coordinates of each; none where there is but the whole."""
        return ()

    def eigenvalues_by_group(self, group: Int[Tensor, " d"]) -> tuple[Float[Tensor, " d"], Int[Tensor, " d"]] | None:
        """All eigenvalues and the group of each, where the operator commutes with what is constant on each group.

        Args:
            group: Group of each coordinate.
        """
        if not bool((group == group[0]).all()):
            return None
        values = self.eigenvalues()
        return values, group[:1].clone().expand(len(values))

    def in_units(self, relative: Float[Tensor, " d"]) -> Structured | None:
        """``R^-½ A R^-½`` for a diagonal R, in units in which R is 1, float64; None where no structure holds it.

        Args:
            relative: The entries of R.
        """
        return None

    def _solve(self, block: Float[Tensor, "d k"]) -> Float[Tensor, "d k"]:
        """Solve for a checked block; float64 in and out, whatever the operator's dtype."""
        return self._from_basis(self._to_basis(block) / positive(self.basis_eigenvalues)[:, None])

    @property
    def basis_eigenvalues(self) -> Float[Tensor, " w"]:
        """The eigenvalue of each row of ``_to_basis``: all, or in low rank those of ``Eigenbasis``."""
        return self.eigenvalues()

    def _to_basis(self, block: Float[Tensor, "d k"]) -> Float[Tensor, "w k"]:
        """``Qᵀ`` times a block; the identity here."""
        return block

    def _from_basis(self, block: Float[Tensor, "w k"]) -> Float[Tensor, "d k"]:
        """``Q`` times a block."""
        return block

    def _basis_times(self, values: Float[Tensor, " w"]) -> FunctionOperator:
        """The operator ``Q diag(values)``, or where Q is not square ``Q diag(values) Qᵀ``."""
        column = values[:, None]

        def scaled_columns(block: Tensor) -> Tensor:
            return self._from_basis(column * block)

        def scaled_rows(block: Tensor) -> Tensor:
            return column * self._to_basis(block)

        def symmetric(block: Tensor) -> Tensor:
            return self._from_basis(column * self._to_basis(block))

        if len(values) == self.shape[0]:
            return self._in_float64(scaled_columns, scaled_rows)
        return self._in_float64(symmetric, symmetric)

    @abc.abstractmethod
    def _affine(self, c: float | Tensor, s: float | Tensor) -> Structured:
        """The operator ``c A + s I``."""

    @abc.abstractmethod
    def _plus_diagonal(self, entries: Float[Tensor, " d"]) -> Structured: ...

    def _in_float64(self, forward: Callable[[Tensor], Tensor], adjoint: Callable[[Tensor], Tensor]) -> FunctionOperator:
        """A square operator in this one's dtype from products that work in float64."""

        def cast(product: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
            return lambda block: product(wide(block)).to(self._like)

        return FunctionOperator(cast(forward), cast(adjoint), self.shape, self._like)


def in_float64(operator: Operator) -> FunctionOperator:
    """The operator between float64 vectors, though its products may run in another dtype; nothing is differentiated.

    Recurrences lose their orthogonality in float32 long before products lose their use, so lapwing iterates in
    float64 and leaves the product, which costs the most, in the operator's own dtype.

    Args:
        operator: ``A``, in any dtype.

    Returns:
        ``A`` with float64 operands and results.
    """
    return FunctionOperator(
        lambda block: wide((operator @ block.to(operator.device, operator.dtype)).detach()),
        lambda block: wide((operator.T @ block.to(operator.device, operator.dtype)).detach()),
        operator.shape,
        torch.empty(0, **wide_like(operator.device)),
    )


def congruence(operator: Operator, w: Operator) -> FunctionOperator:
    """The symmetric operator ``Wᵀ A W``, in float64.

    With ``W Wᵀ = P⁻¹``, as ``P.inverse_root()`` has it, its eigenvalues are those of ``P⁻¹ A``:
    what preconditioning makes of the spectrum.

    Args:
        operator: ``A``, ``[d, d]``.
        w: ``W``, ``[d, r]``.

    Returns:
        ``Wᵀ A W``, ``[r, r]``. A product costs one with each of the three.

    Raises:
        ShapeError: ``A`` is not square, or ``W`` does not fit.

    Example:
        >>> from lapwing.linalg import Diagonal
        >>> a = Diagonal(torch.tensor([1.0, 4.0]))
        >>> (congruence(a, a.inverse_root()) @ torch.ones(2).double()).tolist()
        [1.0, 1.0]
    """
    if w.shape[0] != check_square(operator):
        raise ShapeError(f"a root with {operator.shape[0]} rows for {operator!r}", f"{w!r}", "P.inverse_root()")
    a = in_float64(operator)
    inner = in_float64(w)
    outer = in_float64(w.T)

    def product(block: Tensor) -> Tensor:
        return outer @ (a @ (inner @ block))

    return FunctionOperator(product, product, (w.shape[1], w.shape[1]), inner.like)


def on_columns(product: Callable[[Tensor], Tensor], v: Float[Tensor, "n *k"]) -> Float[Tensor, "m *k"]:
    """Apply a product of blocks ``[n, k]`` to a block or to a single vector ``[n]``."""
    return product(v) if v.ndim == 2 else product(v[:, None])[:, 0]


def unit_vectors(index: Int[Tensor, " k"], size: int, like: Tensor) -> Float[Tensor, "size k"]:
    """Columns of the identity, in the dtype and on the device of a tensor.

    Example:
        >>> unit_vectors(torch.tensor([2, 0]), 3, torch.zeros(0)).tolist()
        [[0.0, 1.0], [0.0, 0.0], [1.0, 0.0]]
    """
    units = like.new_zeros(size, len(index))
    units[index, torch.arange(len(index), device=index.device)] = 1.0
    return units


def check_operand(operator: Operator, v: Tensor, length: int) -> Tensor:
    """Return ``v`` if it is ``[length]`` or ``[length, k]`` in the operator's dtype; raise otherwise."""
    if v.ndim not in (1, 2) or v.shape[0] != length:
        raise ShapeError(
            f"a vector [{length}] or a block of columns [{length}, k] for {operator!r}",
            f"shape {list(v.shape)}",
            "v.T if the samples lead",
        )
    if v.dtype != operator.dtype:
        raise UnsupportedError(f"dtype {operator.dtype} for {operator!r}", f"{v.dtype}", "v.to(operator.dtype)")
    return v


def check_square(operator: Operator) -> int:
    """Return the size ``d`` of an operator ``[d, d]``; raise where it is not square."""
    rows, columns = operator.shape
    if rows != columns:
        raise ShapeError("a symmetric operator [d, d]", f"{operator!r}", "A.T @ A, or the operator itself")
    return rows


def check_operator_tensor(tensor: Tensor, fits: bool, expected: str, hint: str) -> None:
    """Raise unless a tensor that defines an operator fits, has entries, and is floating point."""
    if not (fits and tensor.numel() > 0 and tensor.is_floating_point()):
        raise ShapeError(f"{expected}, floating point and not empty", f"{tensor.dtype} {list(tensor.shape)}", hint)


def _is_finite_scalar(value: float | Tensor) -> bool:
    number = value if isinstance(value, Tensor) else torch.tensor(value, device="cpu")
    return number.ndim == 0 and bool(number.isfinite())


def common_value(entries: Float[Tensor, " d"]) -> Float[Tensor, ""] | None:
    """The value, float64, that all entries share; None where they differ. Its gradient spreads evenly."""
    values = wide(entries)
    return values.mean() if bool((values == values[0]).all()) else None
