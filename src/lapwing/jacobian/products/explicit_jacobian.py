"""Explicit rows of the Jacobian of some examples, held layer by layer: the strategy for many columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.data.inputs import Inputs
from lapwing.ground.layout import together
from lapwing.ground.precision import Precision
from lapwing.jacobian.layers.base import Factor
from lapwing.jacobian.model import Model
from lapwing.jacobian.network.network import Network
from lapwing.likelihoods.base import COLUMNS, by_position
from lapwing.linear.model import Chunk


@final
@dataclass(frozen=True, eq=False)
class ExplicitRows:
    """The rows ``R = Eᵀ J`` of n examples, E the same at each position of an event.

    Args:
        network: The network.
        shape: Shape of the canonical outputs, ``[n, *event, c]``.
        basis: The changes of the outputs at one position that E has.
        blocks: The factors of each block of columns of E, layer by layer.
        sizes: Columns of E in each block.
    """

    network: Network
    shape: torch.Size
    basis: Float[Tensor, "c r"]
    blocks: tuple[tuple[Factor, ...], ...]
    sizes: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Bytes that the rows occupy."""
        factors = [factor for block in self.blocks for factor in block]
        return sum(tensor.nbytes for factor in factors for tensor in factor.tensors.values())

    def push(self, block: Float[Tensor, "d k"]) -> Float[Tensor, "k n *event c"]:
        """``J V = E R V``."""
        moved = together((self._pushed(factors, block) for factors in self.blocks), 1).movedim(-1, 0)
        return moved.reshape(-1, *self.shape[:-1], self.basis.shape[1]) @ self.basis.mT

    def pull(self, block: Float[Tensor, "k n *event c"]) -> Float[Tensor, "d k"]:
        """``Jᵀ U = Rᵀ Eᵀ U``."""
        seen = (block @ self.basis).flatten(2).movedim(0, -1)
        pieces = seen.split(list(self.sizes), dim=1)
        total = self._pulled(self.blocks[0], pieces[0])
        for factors, piece in zip(self.blocks[1:], pieces[1:], strict=True):
            total += self._pulled(factors, piece)
        return total

    def _pushed(self, factors: tuple[Factor, ...], block: Float[Tensor, "d k"]) -> Float[Tensor, "n r k"]:
        """``R V`` for one block of columns of E, layer by layer, some columns of V at a time."""
        pushed: list[Tensor] = []
        for columns in block.split(COLUMNS, dim=1):
            spread = self.network.spread(columns)
            total = factors[0].push(self.network.part(factors[0].names, spread))
            for factor in factors[1:]:
                total += factor.push(self.network.part(factor.names, spread))
            pushed.append(total)
        return together(pushed, -1)

    def _pulled(self, factors: tuple[Factor, ...], block: Float[Tensor, "n r k"]) -> Float[Tensor, "d k"]:
        """``Rᵀ U`` in the same way."""
        pulled: list[Tensor] = []
        for columns in block.split(COLUMNS, dim=-1):
            pulled.append(self.network.joined(((factor.names, factor.pull(columns)) for factor in factors), 0))
        return together(pulled, -1)


def explicit_chunk(
    model: Model, inputs: Inputs, targets: Tensor | None = None, precision: Precision | None = None
) -> tuple[Chunk, int]:
    """J of some examples by explicit rows: a forward pass, and a backward pass a column of E.

    Args:
        model: The network and its likelihood.
        inputs: The examples.
        targets: With them, E has all changes of the outputs that the likelihood sees; without, all there are.
        precision: In what the rows are multiplied, and with what; ``None`` for the type of the network.

    Returns:
        The chunk, and the bytes that the rows occupy.
    """
    forward = model.forward(inputs)
    f = forward.outputs
    if targets is None:
        y = f.new_empty(0)
        basis = torch.eye(f.shape[-1], dtype=f.dtype, device=f.device)
    else:
        y = model.likelihood.canonical_targets(f, targets)
        basis = model.likelihood.basis(f)
    columns = basis.mT.view(basis.shape[1], *(1,) * (f.ndim - 1), f.shape[-1]).expand(-1, *f.shape)
    cotangents = list(by_position(columns))
    if targets is None:
        cotangents = [torch.cat(cotangents)]
    blocks: list[tuple[Factor, ...]] = []
    for block in cotangents:
        factors = forward.factors(block)
        if precision is not None:
            factors = (factor.in_precision(precision) for factor in factors)
        blocks.append(tuple(factor.for_products() for factor in factors))
    if precision is not None:
        basis = precision.operand(basis)
        f = precision.operand(f)
        y = precision.operand(y) if y.is_floating_point() else y
    rows = ExplicitRows(model.network, f.shape, basis, tuple(blocks), tuple(len(block) for block in cotangents))
    return Chunk(inputs, f, y, rows.push, rows.pull, COLUMNS), rows.bytes
