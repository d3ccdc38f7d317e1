"""Sums of symmetric operators."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, reduce
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.errors import ShapeError, UnsupportedError
from lapwing.linalg.dense import Dense
from lapwing.linalg.lowrank import LowRank
from lapwing.linalg.operator import Operator
from lapwing.linalg.structured import Diagonal, Structured


@final
@dataclass(frozen=True, eq=False, repr=False)
class Sum(Structured):
    """The matrix ``Σ terms``.

    Products, the diagonal and the trace are the sums of the terms'. Solves, roots, determinants and
    eigenvalues are those of the one structure the terms reduce to, where they do: see ``reduce``.

    Args:
        terms: Symmetric positive semi-definite operators of one shape and dtype, at least one. A term that is
            not Structured leaves only the product.

    Example:
        >>> total = Sum((LowRank(torch.tensor([[1.0], [1.0]])), Diagonal(torch.tensor([1.0, 1.0]))))
        >>> total.reduce()
        LowRank(2 x 2, torch.float32, cpu)
        >>> round(total.logdet().exp().item(), 6)
        3.0
    """

    terms: tuple[Operator, ...]

    def __post_init__(self) -> None:
        """Check that the terms agree."""
        if len({(term.shape, term.dtype, term.device) for term in self.terms}) != 1:
            raise ShapeError(
                "one or more terms of one shape, dtype and device",
                f"{list(self.terms)}",
                "one dtype for all terms",
            )

    @property
    def shape(self) -> tuple[int, int]:
        """That of every term."""
        return self.terms[0].shape

    def reduce(self) -> Structured:
        """One structure that equals the sum exactly.

        Diagonals are absorbed by the others; a Dense term absorbs everything; low ranks stand side by side.

        Raises:
            UnsupportedError: There is none; products, diagonal and trace remain.
        """
        return self._reduced

    def root(self) -> Operator:
        """The root of the reduced sum."""
        return self._reduced.root()

    def inverse_root(self) -> Operator:
        """The inverse root of the reduced sum."""
        return self._reduced.inverse_root()

    def logdet(self) -> Float[Tensor, ""]:
        """The log determinant of the reduced sum."""
        return self._reduced.logdet()

    def diagonal(self) -> Float[Tensor, " d"]:
        """The diagonals of the terms, added."""
        return torch.stack([term.diagonal() for term in self._structured]).sum(0)

    def eigenvalues(self) -> Float[Tensor, " d"]:
        """The eigenvalues of the reduced sum."""
        return self._reduced.eigenvalues()

    @property
    def _structured(self) -> tuple[Structured, ...]:
        terms = tuple(term for term in self.terms if isinstance(term, Structured))
        if len(terms) < len(self.terms):
            raise self._unsupported()
        return terms

    @cached_property
    def _reduced(self) -> Structured:
        flat = [term.reduce() if isinstance(term, Sum) else term for term in self._structured]
        return reduce(self._merge, sorted(flat, key=_precedence))

    def _merge(self, a: Structured, b: Structured) -> Structured:
        if isinstance(b, Diagonal):
            return a.plus_diagonal(b)
        if isinstance(a, Dense) or isinstance(b, Dense):
            same_size = a.shape[0] * a.shape[1] * a.dtype.itemsize
            return Dense(a.dense(max_bytes=same_size) + b.dense(max_bytes=same_size))
        if isinstance(a, LowRank) and isinstance(b, LowRank):
            merged = LowRank(torch.cat([a.factor, b.factor], dim=1), a.base)
            return merged if b.base is None else merged.plus_diagonal(b.base)
        raise self._unsupported()

    def _unsupported(self) -> UnsupportedError:
        return UnsupportedError(
            "terms that reduce to one structure (with Diagonal, with Dense, or all LowRank)",
            " + ".join(type(term).__name__ for term in self.terms),
            "terms that reduce to one structure, or Dense(operator.dense())",
        )

    @property
    def _like(self) -> Tensor:
        return self.terms[0]._like

    def _matmat(self, block: Float[Tensor, "d k"]) -> Float[Tensor, "d k"]:
        return reduce(torch.add, (term._matmat(block) for term in self.terms))

    def _solve(self, block: Float[Tensor, "d k"]) -> Float[Tensor, "d k"]:
        return self._reduced._solve(block)

    def _scaled(self, c: float | Tensor) -> Sum:
        return Sum(tuple(term.scaled(c) for term in self._structured))

    def _shifted(self, s: float | Tensor) -> Sum:
        return self._plus_diagonal(Diagonal(s * torch.ones(self.shape[0], dtype=self.dtype, device=self.device)))

    def _plus_diagonal(self, other: Diagonal) -> Sum:
        return Sum((*self.terms, other))


def _precedence(term: Structured) -> int:
    """Dense terms first, as they absorb any other; diagonals last, as any other absorbs them."""
    return 0 if isinstance(term, Dense) else 2 if isinstance(term, Diagonal) else 1
