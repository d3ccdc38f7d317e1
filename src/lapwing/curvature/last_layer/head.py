"""Back to the outputs from the weights of the layer that makes them: ``J = I ⊗ aᵀ``, so that nothing is pulled back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lapwing.curvature.blocked import BlockedCurvature
from lapwing.jacobian.layers.base import NUMBERS
from lapwing.jacobian.layers.linear import OuterProducts
from lapwing.jacobian.network.network import Network
from lapwing.linalg import BlockDiagonal, Diagonal, Kronecker


def basis(
    held: BlockedCurvature, network: Network
) -> tuple[Int[Tensor, " k"], Float[Tensor, "k k"]] | tuple[None, None]:
    """The outputs that a precision makes depend on one another, and the eigenvectors of those; see ``WideMoments``."""
    for block in head_blocks(held, network):
        vectors = block.product.bases[0].vectors
        if vectors.ndim > 1:
            return block.outputs, vectors.view(vectors.shape[-2:]).to(network.like)
    return None, None


def spectra(
    head: OuterProducts,
    precisions: Sequence[BlockedCurvature],
    network: Network,
    places: Int[Tensor, " p"] | None = None,
) -> list[Float[Tensor, "m c"]]:
    """``J Λ⁻¹ Jᵀ`` at each of m positions by its eigenvalues, in the ``basis`` of its outputs, for each precision.

    Args:
        head: The layer.
        precisions: Of the same curvature, with the same eigenvectors.
        network: The network.
        places: Event positions; ``None`` for all.

    Cost:
        For each precision a product as large as the layer's own; the inputs are rotated once. Of Kronecker products
        no variance of the weights is kept.
    """
    alone = head.by_position(places)
    if isinstance(precisions[0].operator, Diagonal):
        squares = alone.columns[:, 0, :, 0].square()
        variances = [network.part(alone.names, 1.0 / held.operator.diagonal()).to(squares) for held in precisions]
        return [squares @ alone.matrix(variance)[0].mT for variance in variances]
    parts = {part.names: part for part in (alone, *alone.separated())}
    found = [alone.a.new_zeros(len(alone.a), alone.g.shape[3]) for _ in precisions]
    for blocks in zip(*(head_blocks(held, network) for held in precisions), strict=True):
        first = blocks[0]
        outputs = first.outputs
        columns = parts[first.names].columns[:, 0, :, 0].mT
        squares = first.product.bases[1].into(columns).square()
        squares = squares.view(squares.shape[-2:])
        kind = torch.promote_types(squares.dtype, torch.float32)
        left, right = (side.basis_eigenvalues.flatten().to(squares.device, kind) for side in first.product.bases)
        own = first.product.corrected
        for some in torch.arange(len(outputs), device=squares.device).split(max(1, NUMBERS // len(right))):
            eigenvalues = left[some, None] * right if own is None else own[0, some].to(squares.device, kind)
            for total, block in zip(found, blocks, strict=True):
                variance = 1.0 / (block.product.scale * eigenvalues + block.product.shift)
                total.index_add_(1, outputs[some], (variance.to(squares) @ squares).mT)
    return found


@final
@dataclass(frozen=True, eq=False)
class HeadBlock:
    """A block of a head's precision.

    Args:
        product: The Kronecker product, whose left factor has an eigenpair for every output.
        names: Its parameters.
        outputs: The outputs whose weights it holds.
    """

    product: Kronecker
    names: tuple[str, ...]
    outputs: Int[Tensor, " k"]


def head_blocks(held: BlockedCurvature, network: Network) -> Iterator[HeadBlock]:
    """The Kronecker products of a head's precision."""
    operator = held.operator
    if not isinstance(operator, BlockDiagonal) or operator.index is None:
        return
    for block, names, index in zip(operator.blocks, held.partition, operator.index, strict=True):
        assert isinstance(block, Kronecker)
        left, right = block.bases
        if left.others:
            block = replace(block, left=left.completed, right=right, copy_of=None)
        start = network.layout.slices[names[0]].start
        count = len(network.params[names[0]])
        sizes = [network.params[name].numel() // count for name in names]
        firsts = index.view(-1, sum(sizes))[:, 0]
        yield HeadBlock(block, names, (firsts - start) // sizes[0])
