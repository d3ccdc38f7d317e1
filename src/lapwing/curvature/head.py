"""Back to the outputs from the weights of the layer that makes them: ``J = I ⊗ aᵀ``, so that nothing is pulled back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lapwing.curvature.sums import Held
from lapwing.curvature.variance import NUMBERS
from lapwing.jacobian.layers.factors import Outer, separated
from lapwing.jacobian.network.network import Network
from lapwing.linalg import BlockDiagonal, Diagonal, Kronecker


def basis(held: Held, network: Network) -> tuple[Int[Tensor, " k"], Float[Tensor, "k k"]] | tuple[None, None]:
    """The outputs that a precision makes depend on one another, and the eigenvectors of those; see ``WideMoments``."""
    for block, _, rows in blocks_of(held, network):
        vectors = block.bases[0].vectors
        if vectors.ndim > 1:
            return rows, vectors.view(vectors.shape[-2:]).to(network.like)
    return None, None


def spectra(
    head: Outer, precisions: Sequence[Held], network: Network, places: Int[Tensor, " p"] | None = None
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
        variances = (network.part(alone.names, 1.0 / held.operator.diagonal()).to(squares) for held in precisions)
        return [squares @ alone.matrix(variance)[0].mT for variance in variances]
    parts = {part.names: part for part in (alone, *separated(alone))}
    found = [alone.a.new_zeros(len(alone.a), alone.g.shape[3]) for _ in precisions]
    for each in zip(*(blocks_of(held, network) for held in precisions), strict=True):
        first, names, rows = each[0]
        squares = first.bases[1].into(parts[names].columns[:, 0, :, 0].mT).square()
        squares = squares.view(squares.shape[-2:])
        kind = torch.promote_types(squares.dtype, torch.float32)
        left, right = (side.basis_eigenvalues.flatten().to(kind) for side in first.bases)
        for some in torch.arange(len(rows), device=rows.device).split(max(1, NUMBERS // len(right))):
            for total, (block, _, _) in zip(found, each, strict=True):
                variance = 1.0 / (block.scale * left[some, None] * right + block.shift)
                total.index_add_(1, rows[some], (variance.to(squares) @ squares).mT)
    return found


def blocks_of(held: Held, network: Network) -> Iterator[tuple[Kronecker, tuple[str, ...], Int[Tensor, " k"]]]:
    """The Kronecker products of a precision, the parameters of each, and the outputs whose weights it holds."""
    operator = held.operator
    if not isinstance(operator, BlockDiagonal) or operator.index is None:
        return
    for block, names, index in zip(operator.blocks, held.partition, operator.index, strict=True):
        assert isinstance(block, Kronecker)
        left, right = block.bases
        if left.others:
            block = replace(block, left=left.completed, right=right, copy_of=None)
        first, outputs = network.layout.slices[names[0]], len(network.params[names[0]])
        sizes = [network.params[name].numel() // outputs for name in names]
        yield block, names, (index.view(-1, sum(sizes))[:, 0] - first.start) // sizes[0]
