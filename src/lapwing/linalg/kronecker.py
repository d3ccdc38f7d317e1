"""Kronecker products of two symmetric factors, and blocks of structures beside each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeAlias, final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.errors import ShapeError, UnsupportedError
from lapwing.linalg.operator import FunctionOperator, Operator, check_shape
from lapwing.linalg.spectral import Spectral, decompose
from lapwing.linalg.structured import Diagonal, Structured

Columns: TypeAlias = Callable[[Tensor], Tensor]


@final
@dataclass(frozen=True, eq=False, repr=False)
class Kronecker(Structured):
    """The matrix ``scale * (L ⊗ R) + shift * I`` acting on arrays ``[p, o, i]`` flattened row by row.

    On one array ``X [o, i]`` the product is ``scale * L X Rᵀ + shift * X``. With ``L = Q_L Λ_L Q_Lᵀ`` and
    ``R = Q_R Λ_R Q_Rᵀ`` the matrix is ``(Q_L ⊗ Q_R) diag(spectrum) (Q_L ⊗ Q_R)ᵀ``, where every exact method
    works. The two decompositions are computed once, in float64, and shared by all scaled and shifted copies;
    negative eigenvalues of a factor that are rounding count as 0. A factor can be its decomposition, ``Spectral``: of
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
        shared: The operator that holds the decompositions, for its scaled and shifted copies.

    Example:
        >>> curvature = Kronecker(torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([3.0, 0.0]))
        >>> curvature.shifted(1.0).diagonal().tolist()
        [7.0, 1.0, 4.0, 1.0]
        >>> curvature.shifted(1.0).spectrum.tolist()
        [[[4.0, 1.0], [7.0, 1.0]]]
    """

    left: Tensor | Spectral
    right: Tensor | Spectral
    scale: float | Tensor = 1.0
    shift: float | Tensor = 0.0
    shared: Kronecker | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        """Check the shapes."""
        for side in (self.left, self.right):
            if isinstance(side, Tensor):
                fits = side.ndim == 1 or (side.ndim in (2, 3) and side.shape[-2] == side.shape[-1])
                check_shape(side, fits, "a factor [m, m], [p, m, m] or, diagonal, [m]", "one square matrix a side")
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
        left, right = (basis.spectrum for basis in self.bases)
        return self._eigenvalue(left, right).expand(self.array_shape)

    @property
    def weights(self) -> Float[Tensor, " vw"]:
        """See ``Structured.weights``; for each pair of them of both factors."""
        return self._weights.reshape(-1)

    @property
    def _weights(self) -> Float[Tensor, "p v w"]:
        left, right = (basis.weights for basis in self.bases)
        return self._eigenvalue(left, right).expand(self.array_shape[0], -1, -1)

    def _eigenvalue(self, left: Float[Tensor, "... v"], right: Float[Tensor, "... w"]) -> Float[Tensor, "... v w"]:
        return self.scale * left[..., :, None] * right[..., None, :] + self.shift

    @cached_property
    def bases(self) -> tuple[Spectral, Spectral]:
        """The decompositions of ``L`` and ``R``, the same for all scaled and shifted copies."""
        if self.shared is not None:
            return self.shared.bases
        left, right = (side if isinstance(side, Spectral) else decompose(side) for side in (self.left, self.right))
        return left, right

    def diagonal(self) -> Float[Tensor, " d"]:
        """``scale * diag L ⊗ diag R + shift``."""
        left, right = (_diagonal(side) for side in (self.left, self.right))
        return self._eigenvalue(left, right).expand(self.array_shape).reshape(-1)

    def eigenvalues(self) -> Float[Tensor, " d"]:
        """The spectrum, flat; one ``eigh`` a factor for this operator and all its copies."""
        return self.spectrum.reshape(-1)

    @property
    def _like(self) -> Tensor:
        return self.left.values if isinstance(self.left, Spectral) else self.left

    def _matmat(self, block: Float[Tensor, "d k"]) -> Float[Tensor, "d k"]:
        product = _contract(_times(self.left), _times(self.right), block.unflatten(0, self.array_shape))
        return self.scale * product.reshape(block.shape) + self.shift * block

    def _from_basis(self, block: Float[Tensor, "w k"]) -> Float[Tensor, "d k"]:
        left, right = self.bases
        arrays = block.view(*self._weights.shape, block.shape[1])
        return _contract(left.out_of, right.out_of, arrays).flatten(0, 2)

    def _to_basis(self, block: Float[Tensor, "d k"]) -> Float[Tensor, "w k"]:
        left, right = self.bases
        return _contract(left.into, right.into, block.unflatten(0, self.array_shape)).flatten(0, 2)

    def _affine(self, c: float | Tensor, s: float | Tensor) -> Kronecker:
        return replace(self, scale=c * self.scale, shift=c * self.shift + s, shared=self.shared or self)

    def _plus_diagonal(self, other: Diagonal) -> Kronecker:
        shift = other.constant
        if shift is None:
            raise UnsupportedError(
                "one value for all entries of a diagonal that is added to a Kronecker product",
                f"values from {other.values.min().item():.3g} to {other.values.max().item():.3g}",
                "an Isotropic or Layerwise prior, or Diagonal(), LowRank(), MatrixFree() or Full(view='weights')",
            )
        return self._affine(1.0, shift)


def _contract(left: Columns, right: Columns, arrays: Float[Tensor, "p o i k"]) -> Float[Tensor, "p v w k"]:
    """``(left ⊗ right)`` times each column, as one matrix product a factor."""
    half = left(arrays.flatten(2)).unflatten(2, arrays.shape[2:]).transpose(1, 2)
    return right(half.flatten(2)).unflatten(2, half.shape[2:]).transpose(1, 2)


def _times(factor: Tensor | Spectral) -> Columns:
    if isinstance(factor, Spectral):
        return factor.times
    return lambda columns: factor[:, None] * columns if factor.ndim == 1 else factor @ columns


def _diagonal(factor: Tensor | Spectral) -> Float[Tensor, "*p m"]:
    if isinstance(factor, Spectral):
        return factor.diagonal
    return factor if factor.ndim == 1 else factor.diagonal(dim1=-2, dim2=-1)


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
        if not self.blocks or len({(block._like.dtype, block._like.device) for block in self.blocks}) > 1:
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
        d = sum(sizes)
        seen = torch.zeros(d, dtype=torch.bool, device=self.index[0].device)
        for place in self.index if all(bool(((place >= 0) & (place < d)).all()) for place in self.index) else ():
            seen[place] = True
        if not bool(seen.all()):
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
    def _order(self) -> Tensor | None:
        """Where the coordinates of the blocks lie, one block after the other."""
        return None if self.index is None else torch.cat(self.index).to(self.device)

    @property
    def _like(self) -> Tensor:
        return self.blocks[0]._like

    def _split(self, block: Float[Tensor, "d *k"]) -> tuple[Tensor, ...]:
        """The part of each block."""
        return (block if self._order is None else block[self._order]).split(self._sizes)

    def _join(self, parts: Iterable[Tensor]) -> Float[Tensor, "d *k"]:
        """The inverse of ``_split``."""
        joined = torch.cat(list(parts))
        return joined if self._order is None else torch.empty_like(joined).index_copy(0, self._order, joined)

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

    def _plus_diagonal(self, other: Diagonal) -> BlockDiagonal:
        if not other.values.requires_grad and (shift := other.constant) is not None:
            return self._affine(1.0, shift)
        pairs = zip(self.blocks, self._split(other.values), strict=True)
        return self._with(block.plus_diagonal(Diagonal(part)) for block, part in pairs)

    def _with(self, blocks: Iterable[Structured]) -> BlockDiagonal:
        """Other blocks in the same places."""
        changed = copy(self)  # its places are known to be a partition
        vars(changed)["blocks"] = tuple(blocks)
        return changed
