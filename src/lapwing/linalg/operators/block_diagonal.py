"""Blocks of structures beside each other."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lapwing.ground.errors import ShapeError
from lapwing.linalg.operators.base import FunctionOperator, Operator, Structured, common_value
from lapwing.linalg.operators.inverse_forms import BlocksForm


@final
@dataclass(frozen=True, eq=False)
class Partition:
    """Where the coordinates of blocks lie: each of ``0 ... d - 1`` once.

    Args:
        order: Of the first block, then of the next, ``[d]``.
    """

    order: Int[Tensor, " d"]

    @classmethod
    def of(cls, index: tuple[Tensor, ...], sizes: list[int], device: torch.device) -> Partition:
        """Of the positions of each block, in its order.

        Raises:
            ShapeError: They are more or fewer than its rows, or together not each position once.
        """
        lengths = [positions.numel() for positions in index]
        if sizes != lengths:
            raise ShapeError(f"index tensors of lengths {sizes}", f"{lengths}", "one position for each row of a block")
        d = sum(sizes)
        order = torch.cat(index)
        found = torch.zeros(d, dtype=torch.bool, device=order.device)
        if bool(((order >= 0) & (order < d)).all()):
            found[order] = True
        if not bool(found.all()):
            raise ShapeError(
                f"index tensors that hold each of 0 ... {d - 1} once",
                "positions missing, repeated or outside",
                "torch.arange(d).split(sizes) for blocks that follow each other",
            )
        return cls(order.to(device))


@final
@dataclass(frozen=True, eq=False, repr=False)
class BlockDiagonal(Structured):
    """A matrix whose block ``b`` acts on the coordinates ``index[b]`` and on no others.

    Every method is that of the blocks, one after the other.

    Args:
        blocks: Structured operators, at least one, with one dtype.
        index: For each block the positions of its coordinates, in the block's order; together each of
            ``0 ... d - 1`` once. None: the blocks follow each other.
        partition: The same, where it is known to be one.

    Example:
        >>> from lapwing.linalg import Diagonal
        >>> twos, threes = Diagonal(torch.full((2,), 2.0)), Diagonal(torch.full((1,), 3.0))
        >>> BlockDiagonal((twos, threes)).diagonal().tolist()
        [2.0, 2.0, 3.0]
        >>> BlockDiagonal((twos, threes), (torch.tensor([0, 2]), torch.tensor([1]))).diagonal().tolist()
        [2.0, 3.0, 2.0]
    """

    blocks: tuple[Structured, ...]
    index: tuple[Tensor, ...] | None = None
    partition: Partition | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        """Check that the blocks agree and that the index is a partition."""
        if not self.blocks or len({(block._like.dtype, block._like.device) for block in self.blocks}) > 1:
            raise ShapeError(
                "one or more blocks of one dtype on one device",
                f"{list(self.blocks)}",
                "one dtype for all blocks",
            )
        _ = self._partition

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

    def inverse_form(self) -> BlocksForm:
        """See ``Structured.inverse_form``; the sum over the blocks."""
        index = self.index
        if index is None:
            index = torch.arange(self.shape[0], device=self.device).split(self._sizes)
        return BlocksForm([block.inverse_form() for block in self.blocks], index)

    @property
    def root_cost(self) -> int:
        """See ``Structured.root_cost``; the sum over the blocks."""
        return sum(block.root_cost for block in self.blocks)

    def logdet(self) -> Float[Tensor, ""]:
        """The sum over the blocks."""
        return torch.stack([block.logdet() for block in self.blocks]).sum()

    def diagonal(self) -> Float[Tensor, " d"]:
        """The diagonals of the blocks, each at its coordinates."""
        return self._join(block.diagonal() for block in self.blocks)

    def eigenvalues(self) -> Float[Tensor, " d"]:
        """Those of the blocks, one block after the other."""
        return torch.cat([block.eigenvalues() for block in self.blocks])

    @property
    def rounding_scale(self) -> float:
        """See ``Structured.rounding_scale``; the largest of the blocks."""
        return max(block.rounding_scale for block in self.blocks)

    def raised(self, epsilon: float) -> BlockDiagonal:
        """See ``Structured.raised``."""
        return self._with(block.raised(epsilon) for block in self.blocks)

    def plus(self, other: Structured) -> Structured:
        """See ``Structured.plus``; block by block, where both have the same."""
        if not isinstance(other, BlockDiagonal) or not self.same_places(other):
            return super().plus(other)
        return self._with(own.plus(theirs) for own, theirs in zip(self.blocks, other.blocks, strict=True))

    @property
    def shifts_exactly(self) -> bool:
        """See ``Structured.shifts_exactly``; where all blocks do."""
        return all(block.shifts_exactly for block in self.blocks)

    def damped_by_factors(self) -> BlockDiagonal:
        """See ``Structured.damped_by_factors``; block by block."""
        return self._with(block.damped_by_factors() for block in self.blocks)

    def pooled(self, other: Structured) -> Structured:
        """See ``Structured.pooled``; block by block, where both have the same."""
        if not isinstance(other, BlockDiagonal) or not self.same_places(other):
            return super().pooled(other)
        return self._with(own.pooled(theirs) for own, theirs in zip(self.blocks, other.blocks, strict=True))

    def same_places(self, other: BlockDiagonal) -> bool:
        """Whether another matrix has blocks of the same coordinates, in the same order."""
        if self._sizes != other._sizes or (self.index is None) != (other.index is None):
            return False
        pairs = zip(self.index or (), other.index or (), strict=True)
        return all(torch.equal(own, theirs.to(own.device)) for own, theirs in pairs)

    @property
    def indexed_blocks(self) -> tuple[tuple[Structured, Int[Tensor, " b"]], ...]:
        """See ``Structured.indexed_blocks``."""
        if self.index is None:
            return ()
        return tuple(zip(self.blocks, self.index, strict=True))

    @cached_property
    def _sizes(self) -> list[int]:
        return [block.shape[0] for block in self.blocks]

    @cached_property
    def _partition(self) -> Partition | None:
        if self.index is None or self.partition is not None:
            return self.partition
        return Partition.of(self.index, self._sizes, self.device)

    @property
    def _like(self) -> Tensor:
        return self.blocks[0]._like

    def _split(self, block: Float[Tensor, "d *k"]) -> tuple[Tensor, ...]:
        """The part of each block."""
        if self._partition is not None:
            block = block[self._partition.order]
        return block.split(self._sizes)

    def _join(self, parts: Iterable[Tensor]) -> Float[Tensor, "d *k"]:
        """The inverse of ``_split``."""
        joined = torch.cat(list(parts))
        if self._partition is None:
            return joined
        return torch.empty_like(joined).index_copy(0, self._partition.order, joined)

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

    def _affine(self, c: float | Tensor, s: float | Tensor) -> BlockDiagonal:
        return self._with(block._affine(c, s) for block in self.blocks)

    def _plus_diagonal(self, entries: Float[Tensor, " d"]) -> BlockDiagonal:
        shift = None if entries.requires_grad else common_value(entries)
        if shift is not None:
            return self._affine(1.0, shift)
        pairs = zip(self.blocks, self._split(entries), strict=True)
        return self._with(block.plus_diagonal(part) for block, part in pairs)

    def _with(self, blocks: Iterable[Structured]) -> BlockDiagonal:
        """Other blocks in the same places."""
        return BlockDiagonal(tuple(blocks), self.index, partition=self._partition)
