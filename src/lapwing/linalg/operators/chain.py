"""Gaussian chains: blocks of which only neighbours are tied, and whose inverse has no entry beyond neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.errors import NumericalError, ShapeError
from lapwing.ground.precision import wide
from lapwing.linalg.cholesky import cholesky_or_none
from lapwing.linalg.operators.base import FunctionOperator, Structured
from lapwing.linalg.operators.block_diagonal import Partition
from lapwing.linalg.operators.eigenbasis import decompose

Parts = list[Tensor]
"""What belongs to each block."""


@final
@dataclass(frozen=True, eq=False)
class Link:
    """The block ``L ⊗ R`` between two neighbours.

    Args:
        left: L.
        right: R.
    """

    left: Float[Tensor, "o o2"]
    right: Float[Tensor, "i i2"]

    @property
    def matrix(self) -> Float[Tensor, "m m2"]:
        """``L ⊗ R``, written down, float64."""
        return torch.kron(wide(self.left), wide(self.right))


@final
@dataclass(frozen=True, eq=False)
class ChainFactors:
    """``A = Ξ⁻¹ diag(Σ) Ξ⁻ᵀ`` with ``Ξ = I - Ψ``, whose Ψ has a block beside each on the diagonal.

    Args:
        regressions: ``Ψ_i = M_{i,i+1} M_{i+1,i+1}⁻¹``; ``None`` where two neighbours are not tied.
        roots: R with ``R Rᵀ = Σ_i``: of Cholesky, or of eigenvalues where Σ is singular.
        definite: Whether all are of Cholesky.
    """

    regressions: tuple[Tensor | None, ...]
    roots: tuple[Tensor, ...]
    definite: bool

    def backwards(self, parts: Sequence[Tensor]) -> Parts:
        """``Ξ v``: of each block what its neighbour behind does not tell."""
        found = list(parts)
        for i, psi in enumerate(self.regressions):
            if psi is not None:
                found[i] = parts[i] - psi @ parts[i + 1]
        return found

    def forwards(self, parts: Sequence[Tensor]) -> Parts:
        """``Ξᵀ v``."""
        found = list(parts)
        for i, psi in enumerate(self.regressions):
            if psi is not None:
                found[i + 1] = parts[i + 1] - psi.mT @ parts[i]
        return found

    def backwards_undone(self, parts: Sequence[Tensor]) -> Parts:
        """``Ξ⁻¹ v``, from the last block to the first."""
        found = list(parts)
        for i in reversed(range(len(self.regressions))):
            psi = self.regressions[i]
            if psi is not None:
                found[i] = parts[i] + psi @ found[i + 1]
        return found

    def forwards_undone(self, parts: Sequence[Tensor]) -> Parts:
        """``Ξ⁻ᵀ v``, from the first block to the last."""
        found = list(parts)
        for i, psi in enumerate(self.regressions):
            if psi is not None:
                found[i + 1] = parts[i + 1] + psi.mT @ found[i]
        return found


@final
@dataclass(frozen=True, eq=False, repr=False)
class KroneckerChain(Structured):
    """The matrix that agrees with ``M = scale * C + diag(added)`` on and beside its block diagonal, and ends there.

    Of all positive definite matrices with those blocks it is the one of largest determinant: under a Gaussian with it
    as its covariance a block knows of others through its neighbours alone. With ``Ψ_i = M_{i,i+1} M_{i+1,i+1}⁻¹``,
    ``Ξ = I - Ψ`` and ``Σ_i = M_ii - Ψ_i M_{i+1,i}`` (Martens & Grosse 2015, section 4.3)

        A = Ξ⁻¹ diag(Σ) Ξ⁻ᵀ,    A⁻¹ = Ξᵀ diag(Σ)⁻¹ Ξ,    log det A = Σ_i log det Σ_i

    **What is scaled and shifted is M**: of ``operator.shifted(s)`` blocks beside the diagonal are those of before, and
    blocks further away, which the chain makes, are others.

    Args:
        blocks: ``C_ii``.
        links: ``C_{i,i+1}``, one fewer; ``None`` where two neighbours are not tied.
        index: Coordinates of each block, as for ``BlockDiagonal``.
        scale: Factor of C.
        added: To the diagonal of M; a number or one an entry.

    Cost:
        ``Σ 2 m_i³`` multiplications once for blocks of m rows, then ``Σ 2 m_i²`` a column; as many numbers.

    Example:
        >>> from lapwing.linalg import Dense
        >>> one = torch.ones(1, 1)
        >>> chain = KroneckerChain((Dense(one),) * 3, (Link(one, one),) * 2, torch.arange(3).split(1))
        >>> chain.shifted(1.0).dense().tolist()
        [[2.0, 1.0, 0.5], [1.0, 2.0, 1.0], [0.5, 1.0, 2.0]]
    """

    blocks: tuple[Structured, ...]
    links: tuple[Link | None, ...]
    index: tuple[Tensor, ...]
    scale: float | Tensor = 1.0
    added: float | Tensor = 0.0

    def __post_init__(self) -> None:
        """Check that links fit between the blocks."""
        if len(self.links) != len(self.blocks) - 1:
            raise ShapeError(f"{len(self.blocks) - 1} links", f"{len(self.links)}", "one between two neighbours")
        for i, link in enumerate(self.links):
            expected = (self.blocks[i].shape[0], self.blocks[i + 1].shape[0])
            if link is None:
                continue
            found = (link.left.shape[0] * link.right.shape[0], link.left.shape[1] * link.right.shape[1])
            if found != expected:
                raise ShapeError(f"a link of shape {list(expected)}", f"{list(found)}", "factors of both neighbours")
        _ = self._partition

    @property
    def shape(self) -> tuple[int, int]:
        """The sizes of the blocks, added."""
        return (sum(self._sizes), sum(self._sizes))

    def root(self) -> FunctionOperator:
        """``Ξ⁻¹ R`` with ``R Rᵀ = diag(Σ)``."""
        factors = self._factors

        def forward(noise: Tensor) -> Tensor:
            scaled = [root @ part for root, part in zip(factors.roots, noise.split(self._sizes), strict=True)]
            return self._join(factors.backwards_undone(scaled))

        def adjoint(block: Tensor) -> Tensor:
            parts = factors.forwards_undone(self._split(block))
            return torch.cat([root.mT @ part for root, part in zip(factors.roots, parts, strict=True)])

        return self._in_float64(forward, adjoint)

    def inverse_root(self) -> FunctionOperator:
        """``Ξᵀ R⁻ᵀ``.

        Raises:
            NumericalError: If the matrix is not positive definite.
        """
        factors = self._definite_factors

        def forward(noise: Tensor) -> Tensor:
            pairs = zip(factors.roots, noise.split(self._sizes), strict=True)
            solved = [torch.linalg.solve_triangular(root.mT, part, upper=True) for root, part in pairs]
            return self._join(factors.forwards(solved))

        def adjoint(block: Tensor) -> Tensor:
            pairs = zip(factors.roots, factors.backwards(self._split(block)), strict=True)
            return torch.cat([torch.linalg.solve_triangular(root, part, upper=False) for root, part in pairs])

        return self._in_float64(forward, adjoint)

    def logdet(self) -> Float[Tensor, ""]:
        """``Σ_i log det Σ_i``."""
        return 2 * torch.cat([root.diagonal().log() for root in self._definite_factors.roots]).sum()

    def diagonal(self) -> Float[Tensor, " d"]:
        """That of M."""
        return self._join([self.scale * block.diagonal() for block in self.blocks]) + self.added

    def eigenvalues(self) -> Float[Tensor, " d"]:
        """Those of the matrix written out."""
        return torch.linalg.eigvalsh(wide(self.dense()))

    @property
    def shifts_exactly(self) -> bool:
        """See ``Structured.shifts_exactly``: no."""
        return False

    @property
    def root_cost(self) -> int:
        """See ``Structured.root_cost``."""
        return 2 * sum(size**2 for size in self._sizes)

    @property
    def _like(self) -> Tensor:
        return self.blocks[0]._like

    @cached_property
    def _sizes(self) -> list[int]:
        return [block.shape[0] for block in self.blocks]

    @cached_property
    def _partition(self) -> Partition:
        return Partition.of(self.index, self._sizes, self.device)

    @cached_property
    def _factors(self) -> ChainFactors:
        """The chain, from its last block to its first."""
        added = self._split(self.added.expand(self.shape[0]) if isinstance(self.added, Tensor) else self._constant)
        matrices: Parts = []
        for block, own in zip(self.blocks, added, strict=True):
            matrices.append(self.scale * wide(block.dense()) + torch.diag(wide(own)))
        inner: list[Tensor | None] = []
        conditional: Parts = []
        for i, link in enumerate(self.links):
            if link is None:
                inner.append(None)
                conditional.append(matrices[i])
                continue
            between = self.scale * link.matrix
            psi = _solved(matrices[i + 1], between.mT).mT
            inner.append(psi)
            rest = matrices[i] - psi @ between.mT
            conditional.append((rest + rest.mT) / 2)
        conditional.append(matrices[-1])
        lower = [cholesky_or_none(matrix) for matrix in conditional]
        roots: Parts = []
        for root, matrix in zip(lower, conditional, strict=True):
            roots.append(_semidefinite_root(matrix) if root is None else root)
        return ChainFactors(tuple(inner), tuple(roots), all(root is not None for root in lower))

    @property
    def _constant(self) -> Float[Tensor, " d"]:
        return wide(self._like.new_full((), float(self.added))).expand(self.shape[0])

    @property
    def _definite_factors(self) -> ChainFactors:
        if not self._factors.definite:
            got = "a chain that is singular up to rounding"
            raise NumericalError("a positive definite matrix", got, "a larger prior precision")
        return self._factors

    def _split(self, block: Float[Tensor, "d *k"]) -> Parts:
        """The part of each block."""
        return list(block[self._partition.order].split(self._sizes))

    def _join(self, parts: Sequence[Tensor]) -> Float[Tensor, "d *k"]:
        """The inverse of ``_split``."""
        joined = torch.cat(list(parts))
        return torch.empty_like(joined).index_copy(0, self._partition.order, joined)

    def _matmat(self, block: Float[Tensor, "d k"]) -> Float[Tensor, "d k"]:
        root = self.root()
        return root @ (root.T @ block)

    def _solve(self, block: Float[Tensor, "d k"]) -> Float[Tensor, "d k"]:
        factors = self._definite_factors
        pairs = zip(factors.roots, factors.backwards(self._split(block)), strict=True)
        solved = [torch.cholesky_solve(part, root) for root, part in pairs]
        return self._join(factors.forwards(solved))

    def _affine(self, c: float | Tensor, s: float | Tensor) -> KroneckerChain:
        return replace(self, scale=c * self.scale, added=c * self.added + s)

    def _plus_diagonal(self, entries: Float[Tensor, " d"]) -> KroneckerChain:
        return replace(self, added=self.added + entries)


def _solved(matrix: Float[Tensor, "m m"], columns: Float[Tensor, "m k"]) -> Float[Tensor, "m k"]:
    """``M⁻¹ b``; of a singular matrix the least of all solutions."""
    lower = cholesky_or_none(matrix)
    if lower is not None:
        return torch.cholesky_solve(columns, lower)
    basis = decompose(matrix)
    kept = basis.values > len(matrix) * torch.finfo(matrix.dtype).eps * basis.values.amax()
    vectors = basis.vectors[:, kept]
    return vectors @ ((vectors.mT @ columns) / basis.values[kept, None])


def _semidefinite_root(matrix: Float[Tensor, "m m"]) -> Float[Tensor, "m m"]:
    """``Q √Λ``, what is negative by rounding set to 0."""
    values, vectors = torch.linalg.eigh(matrix)
    return vectors * values.clamp_min(0.0).sqrt()
