"""Laws that any operator must obey, those of your own too; a curvature that is any matrix.

Each check draws random vectors, passes in silence, or raises an AssertionError with the numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground import probes
from lapwing.linalg import Operator, Structured
from lapwing.linear.gauss_newton import PSDOperator


def check_linear(
    operator: Operator, *, tolerance: float | None = None, generator: torch.Generator | None = None
) -> None:
    """``A (α u + β v) = α A u + β A v``, and a block of columns is its columns one by one.

    Args:
        operator: Any operator ``[m, n]``.
        tolerance: Largest relative error; None for the square root of the operator's eps.
        generator: Source of the random vectors.

    Raises:
        AssertionError: The law is broken; the message says by how much.

    Example:
        >>> from lapwing.linalg import Diagonal
        >>> check_linear(Diagonal(torch.tensor([1.0, 2.0])))
    """
    limit = _limit(operator, tolerance)
    block = _probe(operator, operator.shape[1], 2, generator)
    u, v = block.unbind(1)
    _compare("A(2u - 3v) = 2Au - 3Av", operator @ (2 * u - 3 * v), 2 * (operator @ u) - 3 * (operator @ v), limit)
    _compare("A[u, v] = [Au, Av]", operator @ block, torch.stack([operator @ u, operator @ v], 1), limit)


def check_adjoint(
    operator: Operator, *, tolerance: float | None = None, generator: torch.Generator | None = None
) -> None:
    """``<u, A v> = <Aᵀ u, v>``, and the adjoint of the adjoint is the operator.

    Args:
        operator: Any operator ``[m, n]``.
        tolerance: Largest error relative to ``|u| |A v|``; None for the square root of the operator's eps.
        generator: Source of the random vectors.

    Raises:
        AssertionError: The law is broken; the message says by how much.
    """
    limit = _limit(operator, tolerance)
    rows, columns = operator.shape
    u, v = _probe(operator, rows, 1, generator)[:, 0], _probe(operator, columns, 1, generator)[:, 0]
    image = operator @ v
    size = float(u.norm() * image.norm())
    _compare("<u, Av> = <Aᵀu, v>", u @ image, (operator.T @ u) @ v, limit, size=size)
    _compare("Aᵀᵀv = Av", operator.T.T @ v, image, limit)


def check_symmetric(
    operator: Operator, *, tolerance: float | None = None, generator: torch.Generator | None = None
) -> None:
    """``<u, A v> = <A u, v>`` for a square operator; its adjoint agrees with it.

    Args:
        operator: An operator ``[d, d]``.
        tolerance: Largest error relative to ``|u| |A v|``; None for the square root of the operator's eps.
        generator: Source of the random vectors.

    Raises:
        AssertionError: The law is broken; the message says by how much.
    """
    limit = _limit(operator, tolerance)
    rows, columns = operator.shape
    if rows != columns:
        raise AssertionError(f"A = Aᵀ: {operator!r} is not square")
    u, v = _probe(operator, rows, 2, generator).unbind(1)
    image = operator @ v
    _compare("<u, Av> = <Au, v>", u @ image, (operator @ u) @ v, limit, size=float(u.norm() * image.norm()))
    _compare("Aᵀv = Av", operator.T @ v, image, limit)


def check_matches_dense(
    operator: Operator,
    dense: Float[Tensor, "m n"],
    *,
    tolerance: float | None = None,
    generator: torch.Generator | None = None,
) -> None:
    """The operator's products, and its adjoint's, are those of a matrix.

    Args:
        operator: Any operator ``[m, n]``.
        dense: The matrix it should be.
        tolerance: Largest relative error; None for the square root of the operator's eps.
        generator: Source of the random vectors.

    Raises:
        AssertionError: The law is broken; the message says by how much.
    """
    limit = _limit(operator, tolerance)
    rows, columns = operator.shape
    u, v = _probe(operator, rows, 3, generator), _probe(operator, columns, 3, generator)
    _compare("AV = dense V", operator @ v, dense @ v, limit)
    _compare("AᵀU = denseᵀ U", operator.T @ u, dense.mT @ u, limit)
    _compare("A.dense() = dense", operator.dense(), dense, limit)


def check_structured(
    operator: Structured, *, tolerance: float | None = None, generator: torch.Generator | None = None
) -> None:
    """Everything a positive definite structured operator promises, against its own ``dense()`` matrix.

    Solve and matmul undo each other, ``R Rᵀ = A``, ``W Wᵀ = A⁻¹``; log determinant, trace, diagonal and
    eigenvalues are those of the matrix; and so are scaled and shifted copies. Small operators only: the cost
    is ``d³``.

    Args:
        operator: A positive definite structured operator ``[d, d]``.
        tolerance: Largest relative error; None for the square root of the operator's eps. Errors of solves
            grow with the condition number κ: allow some multiple of ``eps κ``.
        generator: Source of the random vectors.

    Raises:
        AssertionError: A law is broken; the message says by how much.

    Example:
        >>> from lapwing.linalg import Dense
        >>> check_structured(Dense(torch.tensor([[2.0, 1.0], [1.0, 2.0]])))
    """
    limit = _limit(operator, tolerance)
    check_linear(operator, tolerance=limit, generator=generator)
    check_adjoint(operator, tolerance=limit, generator=generator)
    check_symmetric(operator, tolerance=limit, generator=generator)
    matrix = operator.dense().double()
    v = _probe(operator, operator.shape[0], 3, generator)
    _compare("A⁻¹Av = v", operator.solve(operator @ v), v, limit)
    _compare("AA⁻¹v = v", operator @ operator.solve(v), v, limit)
    _compare("A⁻¹ of one vector", operator.solve(v[:, 0]), operator.solve(v)[:, 0], limit)
    root, inverse_root = operator.root(), operator.inverse_root()
    check_adjoint(root, tolerance=limit, generator=generator)
    check_adjoint(inverse_root, tolerance=limit, generator=generator)
    _compare("RRᵀ = A", root @ (root.T @ v), operator @ v, limit)
    _compare("WWᵀv = A⁻¹v", inverse_root @ (inverse_root.T @ v), operator.solve(v), limit)
    eigenvalues = torch.linalg.eigvalsh(matrix)
    _compare("logdet", operator.logdet(), eigenvalues.log().sum(), limit, size=float(len(matrix)))
    _compare("trace", operator.trace(), matrix.trace(), limit)
    _compare("diagonal", operator.diagonal(), matrix.diagonal(), limit)
    _compare("eigenvalues", operator.eigenvalues().sort().values, eigenvalues, limit)
    _compare("scaled(2)", operator.scaled(2.0) @ v, 2 * (operator @ v), limit)
    if operator.shifts_exactly:
        _compare("shifted(3)", operator.shifted(3.0) @ v, operator @ v + 3 * v, limit)
    else:
        _compare("diag shifted(3)", operator.shifted(3.0).diagonal(), operator.diagonal() + 3, limit)


def _probe(operator: Operator, length: int, k: int, generator: torch.Generator | None) -> Tensor:
    like = torch.empty(0, dtype=operator.dtype, device=operator.device)
    return probes.gaussian([length, k], like=like, generator=generator)


def _limit(operator: Operator, tolerance: float | None) -> float:
    return torch.finfo(operator.dtype).eps ** 0.5 if tolerance is None else tolerance


def _compare(law: str, got: Tensor, expected: Tensor, limit: float, size: float | None = None) -> None:
    """Raise unless ``|got - expected| <= limit * size``; ``size`` is ``|expected|`` unless given."""
    if got.shape != expected.shape:
        raise AssertionError(f"{law}: shape {list(got.shape)} instead of {list(expected.shape)}")
    error = float((got.double() - expected.double()).norm())
    scale = float(expected.double().norm()) if size is None else size
    if not error <= limit * scale:  # so that a NaN fails
        raise AssertionError(f"{law}: error {error:.3e} on a size of {scale:.3e}, limit {limit:.1e}")


@final
@dataclass(frozen=True, eq=False, repr=False)
class GramMatrix(PSDOperator):
    """A ``G`` given as a matrix, without a linear model or a kernel behind it."""

    matrix: Structured

    @property
    def shape(self) -> tuple[int, int]:
        """That of the matrix."""
        return self.matrix.shape

    @property
    def root(self) -> Operator:
        """Its root."""
        return self.matrix.root()

    def diagonal(self) -> Float[Tensor, " d"]:
        """Its diagonal."""
        return self.matrix.diagonal()

    @property
    def _like(self) -> Tensor:
        return self.matrix._like

    def _matmat(self, block: Float[Tensor, "d k"]) -> Float[Tensor, "d k"]:
        return self.matrix @ block
