"""Structures made of structures: blocks side by side, and sums."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.errors import ShapeError, UnsupportedError
from lapwing.linalg.dense import Dense
from lapwing.linalg.lowrank import LowRank
from lapwing.linalg.operator import FunctionOperator, Operator
from lapwing.linalg.structured import Diagonal, Structured


@final
@dataclass(frozen=True, eq=False, repr=False)
class BlockDiagonal(Structured):
    """A matrix whose block ``b`` acts on the coordinates ``index[b]`` and on no others.

    Every method is that of the blocks, one after the other.

    Args:
        blocks: Structured operators, at least one, with one dtype.
        index: For each block the positions of its coordinates, in the block's order; together each of
            ``0 ... d - 1`` once. None: the blocks follow each other.

    Example:
        >>> twos, threes = Diagonal(torch.full((2,), 2.0)), Diagonal(torch.full((1,), 3.0))
        >>> BlockDiagonal((twos, threes)).diagonal().tolist()
        [2.0, 2.0, 3.0]
        >>> BlockDiagonal((twos, threes), (torch.tensor([0, 2]), torch.tensor([1]))).diagonal().tolist()
        [2.0, 3.0, 2.0]
    """

    blocks: tuple[Structured, ...]
    index: tuple[Tensor, ...] | None = None

    def __post_init__(self) -> None:
        """Check that the blocks agree and that the index is a partition."""
        if not self.blocks or len({(block.dtype, block.device) for block in self.blocks}) > 1:
            raise ShapeError(
                "one or more blocks of one dtype on one device",
                f"{list(self.blocks)}",
                "one dtype for all blocks",
            )
        if self.index is None:
            return
        sizes, lengths = self._sizes, [positions.numel() for positions in self.index]
        if sizes != lengths:
            raise ShapeError(f"index tensors of lengths {sizes}", f"{lengths}", "one position for each row of a block")
        positions, d = torch.cat(self.index), sum(sizes)
        inside = bool(((positions >= 0) & (positions < d)).all())
        if not (inside and bool(torch.zeros_like(positions).index_fill_(0, positions, 1).all())):
            raise ShapeError(
                f"index tensors that hold each of 0 ... {d - 1} once",
                "positions missing, repeated or outside",
                "torch.arange(d).split(sizes) for blocks that follow each other",
            )

    @property
    def shape(self) -> tuple[int, int]:
        """The sizes of the blocks, added."""
        return (sum(self._sizes), sum(self._sizes))

    def root(self) -> FunctionOperator:
        """The roots of the blocks, side by side."""
        return self._side_by_side([block.root() for block in self.blocks])

    def inverse_root(self) -> FunctionOperator:
        """The inverse roots of the blocks, side by side."""
        return self._side_by_side([block.inverse_root() for block in self.blocks])

    def logdet(self) -> Float[Tensor, ""]:
        """The sum over the blocks."""
        return torch.stack([block.logdet() for block in self.blocks]).sum()

    def diagonal(self) -> Float[Tensor, " d"]:
        """The diagonals of the blocks, each at its coordinates."""
        return self._join(block.diagonal() for block in self.blocks)

    def eigenvalues(self) -> Float[Tensor, " d"]:
        """Those of the blocks, one block after the other."""
        return torch.cat([block.eigenvalues() for block in self.blocks])

    @cached_property
    def _sizes(self) -> list[int]:
        return [block.shape[0] for block in self.blocks]

    @cached_property
    def _order(self) -> tuple[Tensor, Tensor] | None:
        """The permutation that makes the blocks follow each other, and its inverse."""
        if self.index is None:
            return None
        order = torch.cat(self.index).to(self.device)
        return order, order.argsort()

    @property
    def _like(self) -> Tensor:
        return self.blocks[0]._like

    def _split(self, block: Float[Tensor, "d *k"]) -> tuple[Tensor, ...]:
        """The part of each block."""
        return (block if self._order is None else block[self._order[0]]).split(self._sizes)

    def _join(self, parts: Iterable[Tensor]) -> Float[Tensor, "d *k"]:
        """The inverse of ``_split``."""
        joined = torch.cat(list(parts))
        return joined if self._order is None else joined[self._order[1]]

    def _matmat(self, block: Float[Tensor, "d k"]) -> Float[Tensor, "d k"]:
        return self._join(part._matmat(x) for part, x in zip(self.blocks, self._split(block), strict=True))

    def _solve(self, block: Float[Tensor, "d k"]) -> Float[Tensor, "d k"]:
        return self._join(part._solve(x) for part, x in zip(self.blocks, self._split(block), strict=True))

    def _side_by_side(self, roots: list[Operator]) -> FunctionOperator:
        widths = [root.shape[1] for root in roots]

        def forward(noise: Tensor) -> Tensor:
            return self._join(root @ e for root, e in zip(roots, noise.split(widths), strict=True))

        def adjoint(block: Tensor) -> Tensor:
            return torch.cat([root.T @ x for root, x in zip(roots, self._split(block), strict=True)])

        return FunctionOperator(forward, adjoint, (self.shape[0], sum(widths)), self._like)

    def _each(self, change: Callable[[Structured], Structured]) -> BlockDiagonal:
        return replace(self, blocks=tuple(change(block) for block in self.blocks))

    def _scaled(self, c: float | Tensor) -> BlockDiagonal:
        return self._each(lambda block: block.scaled(c))

    def _shifted(self, s: float | Tensor) -> BlockDiagonal:
        return self._each(lambda block: block.shifted(s))

    def _plus_diagonal(self, other: Diagonal) -> BlockDiagonal:
        parts = self._split(other.values)
        sums = (block.plus_diagonal(Diagonal(part)) for block, part in zip(self.blocks, parts, strict=True))
        return replace(self, blocks=tuple(sums))


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
