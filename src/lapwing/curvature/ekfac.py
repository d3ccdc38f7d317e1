"""EKFAC: the eigenvalues of Kronecker products put right, from per-example squares in their eigenbases."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.curvature.blocked import BlockedCurvature
from lapwing.curvature.kfac import Bias
from lapwing.curvature.last_layer.head import HeadBlock, head_blocks
from lapwing.curvature.last_layer.outputs import Entries
from lapwing.curvature.second_moments import Share
from lapwing.ground.data.sources import Data
from lapwing.ground.precision import wide, wide_like
from lapwing.jacobian.layers.base import Factor
from lapwing.jacobian.layers.linear import OuterProducts
from lapwing.jacobian.network.network import Network
from lapwing.linalg import BlockDiagonal, Kronecker, Structured
from lapwing.linalg.checks import finite
from lapwing.linalg.operators.eigenbasis import Eigenbasis


class EigenvalueSum:
    """Adds up the curvature's diagonal in the eigenbasis of each Kronecker product (George et al. 2018, section 3).

        d_ab = Σ_nk (q_aᵀ J_nk p_b)²    for    G ⊗ A = (Q ⊗ P) diag(λ) (Q ⊗ P)ᵀ

    with ``J_nk`` the gradients of a layer as a matrix, those of positions that share its weights added up.

    Args:
        network: The network whose weights are uncertain.
        held: Its curvature by KFAC.
        bias: Whether a bias has a block of its own there.
    """

    floats = 0
    at_once = 1
    by_factors = False
    """Whether the Jacobian of a layer with several positions is not written down."""

    def __init__(self, network: Network, held: BlockedCurvature, bias: Bias) -> None:
        self._network = network
        self._held = held
        self._bias = bias
        self._totals: dict[tuple[str, ...], Tensor] = {}
        """Of each block that is pulled back to."""
        self._bases: dict[tuple[str, ...], tuple[Eigenbasis, Eigenbasis]] = {}
        self._head: list[tuple[HeadBlock, Tensor]] = []
        """The blocks of a head whose gradient is the identity, and what was added up for each."""
        if not isinstance(held.operator, BlockDiagonal):
            return
        for names, block in zip(held.partition, held.operator.blocks, strict=True):
            if isinstance(block, Kronecker):
                left, right = block.complete_bases
                self._bases[names] = _like(left, network.like), _like(right, network.like)

    def add(self, factors: Iterator[Factor], *, again: bool = False, share: Share | None = None) -> None:
        """Take in the factors of one block of cotangents of one chunk."""
        for factor in factors:
            for part in factor.separated() if self._bias == "separate" else (factor,):
                if part.names in self._bases:
                    self._add(part)

    def _add(self, part: Factor) -> None:
        """The squares of a layer; columns of the rotated factor are put in the order of the eigenvectors."""
        left, right = self._bases[part.names]
        squares = wide(part.rotated(left, right).square_sum())
        numbers = torch.arange(len(squares), device=squares.device, dtype=squares.dtype)
        order = part.rotated_order(numbers[None])[0].long()
        total = self._totals.setdefault(part.names, torch.zeros_like(squares))
        total.index_add_(0, order, squares)

    def add_outputs(self, head: OuterProducts, entries: Entries) -> None:
        """Take in one chunk of a head, whose gradient is the identity; see ``DenseSum``."""
        if not self._head:
            for block in head_blocks(self._held, self._network):
                shape = block.product.array_shape[1:]
                self._head.append((block, torch.zeros(shape, **wide_like(head.a))))
        parts = {part.names: part for part in (head, *head.separated())}
        pieces = list(entries())
        for block, total in self._head:
            left, right = block.product.complete_bases
            inputs = wide(parts[block.names].columns[:, 0].movedim(1, 0).flatten(1))
            squares = _matrix_basis(right).into(inputs).square()
            diagonals = [_turned_diagonal(left, block, *piece) for piece in pieces]
            total += torch.cat(diagonals).mT @ squares.mT

    def share(self, data: Data) -> None:
        """Add what other processes have; see ``DenseSum``."""
        for total in self._totals.values():
            data.added(total)
        for _, total in self._head:
            data.added(total)

    def result(self) -> BlockedCurvature:
        """The same blocks, the eigenvalues of those that are Kronecker products put right.

        Raises:
            NumericalError: If a square overflowed.
        """
        operator = self._held.operator
        assert isinstance(operator, BlockDiagonal)
        of_head = [total for _, total in self._head]
        blocks: list[Structured] = []
        for names, block in zip(self._held.partition, operator.blocks, strict=True):
            if isinstance(block, Kronecker):
                found = of_head.pop(0) if of_head else self._totals.get(names)
                blocks.append(corrected(block, found))
            else:
                blocks.append(block)
        return BlockedCurvature(BlockDiagonal(tuple(blocks), operator.index), self._held.partition)


def corrected(block: Kronecker, eigenvalues: Tensor | None) -> Kronecker:
    """A Kronecker product with other eigenvalues in its basis; with its own where none were added up."""
    left, right = block.complete_bases
    own = block.scale * left.spectrum[..., :, None] * right.spectrum[..., None, :]
    values = own.expand(block.array_shape) if eigenvalues is None else eigenvalues.view(block.array_shape)
    return Kronecker(left, right, corrected=finite(values))


def _turned_diagonal(
    left: Eigenbasis, block: HeadBlock, diagonal: Float[Tensor, "n c"], beside: Float[Tensor, "n c"] | None
) -> Float[Tensor, "n k"]:
    """``q_aᵀ B q_a`` of each position, for the eigenvectors of the outputs of a block; see ``Entries``."""
    own = wide(diagonal.flatten(0, -2)[:, block.outputs])
    if left.vectors.ndim == 1:
        return own
    vectors = wide(left.vectors.view(left.shape[-2:]))
    if beside is None:
        return own @ vectors.square()
    v = wide(beside.flatten(0, -2)[:, block.outputs])
    return (own + v.square()) @ vectors.square() - (v @ vectors).square()


def _matrix_basis(basis: Eigenbasis) -> Eigenbasis:
    """An eigenbasis without a leading axis."""
    if basis.vectors.ndim < 3:
        return basis
    return replace(basis, values=basis.values.flatten(), vectors=basis.vectors.view(basis.shape[-2:]))


def _like(basis: Eigenbasis, like: Tensor) -> Eigenbasis:
    """A basis whose vectors have the type of the network."""
    return replace(basis, vectors=basis.vectors.to(like))
