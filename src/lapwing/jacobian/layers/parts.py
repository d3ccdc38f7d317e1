"""Products with one layer's Jacobian on blocks of columns: from explicit rows or from factors, whichever is less.

Each part answers ``push`` (J V) and ``pull`` (Jᵀ U) for the weights of one layer, with n examples, k cotangents and C
columns. Rows cost n k d multiplications a column. Factors, ``sum_t g_t (V a_t)``, cost n d t + n k o t: less where
fewer positions t share the weight than there are cotangents.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lapwing.jacobian.layers.factors import Factor, Lookup, Rows


@final
@dataclass(frozen=True, eq=False)
class Explicit:
    """The rows themselves.

    Args:
        names: Parameters, in the order of the last axis.
        rows: The Jacobian.
        outputs: Where every output's bias follows its weights, how many outputs there are; otherwise 0.
    """

    names: tuple[str, ...]
    rows: Float[Tensor, "n k d"]
    outputs: int = 0

    @property
    def held(self) -> tuple[Tensor, ...]:
        """Tensors that are kept."""
        return (self.rows,)

    def push(self, block: Float[Tensor, "d c"]) -> Float[Tensor, "n k c"]:
        """``J V``."""
        if self.outputs:
            width = block.shape[1]
            weight, bias = block[: -self.outputs], block[-self.outputs :]
            weight = weight.view(self.outputs, -1, width)
            block = torch.cat([weight, bias.unsqueeze(1)], dim=1).view(-1, width)
        return (self.rows.flatten(0, 1) @ block).view(*self.rows.shape[:2], -1)

    def pull(self, block: Float[Tensor, "n k c"]) -> Float[Tensor, "d c"]:
        """``Jᵀ U``."""
        pulled = self.rows.flatten(0, 1).mT @ block.flatten(0, 1)
        if not self.outputs:
            return pulled
        matrices = pulled.view(self.outputs, -1, block.shape[2])
        return torch.cat([matrices[:, :-1].flatten(0, 1), matrices[:, -1]])


@final
@dataclass(frozen=True, eq=False)
class Factored:
    """A linear map, at one or a few positions: the input ``a`` and the gradient ``g`` at the output of each.

    Args:
        names: The weight, then the bias if it is uncertain.
        a: Inputs i at each position.
        g: Gradients at outputs o.
    """

    names: tuple[str, ...]
    a: Float[Tensor, "n t i"]
    g: Float[Tensor, "n k t o"]

    @property
    def held(self) -> tuple[Tensor, ...]:
        """Tensors that are kept."""
        return (self.a, self.g)

    def push(self, block: Float[Tensor, "d c"]) -> Float[Tensor, "n k c"]:
        """``J V = sum_t g_tᵀ (V a_t)``."""
        i, o = self.a.shape[-1], self.g.shape[-1]
        weight = block[: o * i].view(o, i, -1).mT.reshape(-1, i)
        moved = self.a.flatten(0, 1) @ weight.mT
        if len(self.names) > 1:
            moved += block[o * i :].flatten()
        return combine(self.g.flatten(2), moved.view(len(self.a), self.g.shape[2] * o, -1))

    def pull(self, block: Float[Tensor, "n k c"]) -> Float[Tensor, "d c"]:
        """``Jᵀ U``: the gradients combined first, then one product with the inputs."""
        i, o, width = self.a.shape[-1], self.g.shape[-1], block.shape[2]
        moved = combine(self.g.flatten(2).mT, block).reshape(-1, o * width)
        weight = (moved.mT @ self.a.flatten(0, 1)).view(o, width, i).mT.reshape(-1, width)
        return torch.cat([weight, moved.sum(0).view(o, width)]) if len(self.names) > 1 else weight


@final
@dataclass(frozen=True, eq=False)
class Looked:
    """An embedding: which row of the table each of m uses looked up, and the gradient there.

    Args:
        names: The table.
        shape: Its rows and width.
        example: Example of each use.
        row: Row of each use.
        g: Gradients.
        examples: Examples n.
    """

    names: tuple[str, ...]
    shape: tuple[int, int]
    example: Int[Tensor, " m"]
    row: Int[Tensor, " m"]
    g: Float[Tensor, "m k e"]
    examples: int

    @property
    def held(self) -> tuple[Tensor, ...]:
        """Tensors that are kept."""
        return (self.example, self.row, self.g)

    def push(self, block: Float[Tensor, "d c"]) -> Float[Tensor, "n k c"]:
        """``J V``."""
        products = self.g @ block.view(*self.shape, -1)[self.row]
        return block.new_zeros(self.examples, *products.shape[1:]).index_add_(0, self.example, products)

    def pull(self, block: Float[Tensor, "n k c"]) -> Float[Tensor, "d c"]:
        """``Jᵀ U``."""
        products = self.g.mT @ block[self.example]
        return block.new_zeros(self.shape[0], *products.shape[1:]).index_add_(0, self.row, products).flatten(0, 1)


Part: TypeAlias = Explicit | Factored | Looked
"""One layer's Jacobian on a chunk of examples."""


def combine(left: Float[Tensor, "n a b"], right: Float[Tensor, "n b c"]) -> Float[Tensor, "n a c"]:
    """The matrix product of each example; many tiny ones with a single column are faster as one sum."""
    if right.shape[2] > 1:
        return left @ right
    return (left * right.mT).sum(2, keepdim=True)


def part_of(factor: Factor) -> Part:
    """A layer's Jacobian in the form whose products are cheaper."""
    if isinstance(factor, Rows):
        return Explicit(factor.names, factor.values)
    if isinstance(factor, Lookup):
        example, row, g = factor.uses
        return Looked(factor.names, factor.shape, example, row, g, len(factor.index))
    _, k, p, o, t = factor.g.shape
    if p == 1 and factor.weight is not None and prefers_factors(k, factor.a.width, t):
        a = factor.a.columns()[:, 0].mT.contiguous()
        return Factored(factor.names, a, factor.g[:, :, 0].mT.contiguous())
    outputs = p * o if len(factor.names) > 1 else 0
    return Explicit(factor.names, factor.matrices.flatten(2), outputs)


def prefers_factors(cotangents: int, inputs: int, positions: int) -> bool:
    """Whether a column costs fewer multiplications from factors than from rows."""
    return positions * (inputs + cotangents) < cotangents * inputs


@final
class Count(NamedTuple):
    """What one layer takes for one example, in multiplications and numbers.

    Args:
        building: To make explicit rows.
        rows: Entries of explicit rows.
        factors: A column by factors.
        held: Numbers that are kept.
        outputs: Numbers at the outputs of the layer.
        forward: Multiplications of the layer in a forward pass.
    """

    building: int
    rows: int
    factors: int
    held: int
    outputs: int
    forward: int


def count(factor: Factor, cotangents: int) -> Count:
    """What a layer takes for each example.

    Args:
        factor: Its factor of one example and one cotangent.
        cotangents: Cotangents k there will be.
    """
    k = cotangents
    if isinstance(factor, Rows):
        entries = k * factor.values.shape[2]
        return Count(0, entries, 0, entries, 0, 0)
    if isinstance(factor, Lookup):
        uses, width = factor.index.shape[1], factor.shape[1]
        return Count(0, 0, k * uses * width, uses * (k * width + 4), uses * width, 0)
    _, _, p, o, t = factor.g.shape
    i = factor.a.width if factor.weight is not None else 1
    if p == 1 and factor.weight is not None and prefers_factors(k, i, t):
        return Count(0, 0, t * o * (i + k), t * (i + k * o), o * t, o * i * t)
    entries = k * p * o * (i + int(len(factor.names) > 1))
    return Count(entries * t, entries, 0, entries, p * o * t, p * o * i * t)
