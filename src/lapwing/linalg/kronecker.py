"""Kronecker products of two symmetric factors, and blocks of structures beside each other."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.errors import ShapeError, UnsupportedError
from lapwing.linalg.operator import FunctionOperator, Operator, check_shape
from lapwing.linalg.structured import Diagonal, Eigenbasis, Structured


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

    def _from_basis(self, block: Float[Tensor, "d k"]) -> Float[Tensor, "d k"]:
        left, right = (basis.vectors for basis in self.bases)
        return _contract(left, right, self._arrays(block)).reshape(block.shape)

    def _to_basis(self, block: Float[Tensor, "d k"]) -> Float[Tensor, "d k"]:
        left, right = (basis.vectors for basis in self.bases)
        return _contract(_adjoint(left), _adjoint(right), self._arrays(block)).reshape(block.shape)

    def _arrays(self, block: Float[Tensor, "d k"]) -> Float[Tensor, "p o i k"]:
        return block.reshape(*self.array_shape, block.shape[1])

    def _affine(self, c: float | Tensor, s: float | Tensor) -> Kronecker:
        return replace(self, scale=c * self.scale, shift=c * self.shift + s, shared=self.bases)

    def _plus_diagonal(self, other: Diagonal) -> Kronecker:
        shift = other.constant
        if shift is None:
            raise UnsupportedError(
                "one value for all entries of a diagonal that is added to a Kronecker product",
                f"values from {other.values.min().item():.3g} to {other.values.max().item():.3g}",
                "an Isotropic or Layerwise prior, or Diagonal(), LowRank(), MatrixFree() or Full(view='weights')",
            )
        return self._affine(1.0, shift)


def _contract(left: Tensor, right: Tensor, arrays: Float[Tensor, "p o i k"]) -> Float[Tensor, "p o i k"]:
    """``(left ⊗ right)`` times each column, as one matrix product a factor."""
    arrays = left[:, None, None] * arrays if left.ndim == 1 else torch.einsum("...ab,...bik->...aik", left, arrays)
    if right.ndim == 1:
        return right[:, None] * arrays
    return torch.einsum("...ab,...obk->...oak", right, arrays)


def _adjoint(factor: Tensor) -> Tensor:
    return factor if factor.ndim == 1 else factor.mT


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

    def _affine(self, c: float | Tensor, s: float | Tensor) -> BlockDiagonal:
        return replace(self, blocks=tuple(block._affine(c, s) for block in self.blocks))

    def _plus_diagonal(self, other: Diagonal) -> BlockDiagonal:
        parts = self._split(other.values)
        sums = (block.plus_diagonal(Diagonal(part)) for block, part in zip(self.blocks, parts, strict=True))
        return replace(self, blocks=tuple(sums))
