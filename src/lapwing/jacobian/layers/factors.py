"""What one layer contributes to the Jacobian, held as factors: J = sum_t g_t a_tᵀ, never as an n × c × d array.

n examples, k cotangents (outputs, or columns of a root), t positions that share the weight, C columns.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass, replace
from functools import cached_property
from typing import final

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from lapwing.jacobian.layers.columns import Columns, DenseColumns


class Factor(abc.ABC):
    """A layer's Jacobian: what is asked of its columns, in the order of ``names``, is answered from its rows or better.

    A product with the rows costs n k d multiplications a column. From factors, ``sum_t g_t (V a_t)``, it costs
    n d t + n k o t: less where fewer positions t share the weight than there are cotangents; see ``for_products``.
    """

    @property
    @abc.abstractmethod
    def names(self) -> tuple[str, ...]:
        """Parameters this factor speaks for, weight first."""

    @property
    @abc.abstractmethod
    def gradients(self) -> Float[Tensor, "n k *rest"]:
        """What of it there is for each example and cotangent."""

    @property
    @abc.abstractmethod
    def held(self) -> tuple[Tensor, ...]:
        """Tensors that are kept of a factor made for products."""

    @abc.abstractmethod
    def rows(self) -> Float[Tensor, "n k d"]:
        """The explicit Jacobian."""

    @abc.abstractmethod
    def double(self) -> Factor:
        """The same factor in float64: products of many terms then cancel as they should."""

    @abc.abstractmethod
    def taken(self, place: slice) -> Factor:
        """The factor of some of its examples."""

    def for_products(self) -> Factor:
        """The same Jacobian in the form whose products are cheaper."""
        return self

    def square_sum(self) -> Float[Tensor, " d"]:
        """``sum_nk J²`` of each weight: the diagonal of ``Jᵀ J``."""
        return self.rows().square().sum((0, 1))

    def covariance(self, variance: Float[Tensor, " d"]) -> Float[Tensor, "n k k"]:
        """``J diag(variance) Jᵀ`` of each example."""
        root = self.rows() * variance.sqrt()
        return root @ root.mT

    def push(self, block: Float[Tensor, "d c"]) -> Float[Tensor, "n k c"]:
        """``J V``; a product whose few columns lead is several times faster than one whose few columns follow."""
        rows = self.rows()
        return (block.mT.contiguous() @ rows.flatten(0, 1).mT).mT.unflatten(0, rows.shape[:2])

    def pull(self, block: Float[Tensor, "n k c"]) -> Float[Tensor, "d c"]:
        """``Jᵀ U``; see ``push``."""
        return (block.flatten(0, 1).mT.contiguous() @ self.rows().flatten(0, 1)).mT


@final
@dataclass(frozen=True, eq=False)
class Outer(Factor):
    """A linear map or convolution, with its bias: weight gradient ``sum_t g_t a_tᵀ``, bias gradient ``sum_t g_t``.

    Args:
        weight: Name of the weight, ``None`` where it is not uncertain.
        bias: Name of the bias, ``None`` where there is none or it is not uncertain.
        a: The layer's inputs, in p independent groups of i.
        g: Gradients at the layer's output, o to a group.
    """

    weight: str | None
    bias: str | None
    a: Columns
    g: Float[Tensor, "n k p o t"]

    @property
    def names(self) -> tuple[str, ...]:
        """Weight, then bias."""
        return tuple(name for name in (self.weight, self.bias) if name is not None)

    @property
    def gradients(self) -> Float[Tensor, "n k p o t"]:
        """G."""
        return self.g

    @property
    def held(self) -> tuple[Tensor, ...]:
        """Inputs and gradients."""
        return (self.a.columns(), self.g)

    @property
    def positions(self) -> int:
        """Positions t that share the weight."""
        return self.g.shape[-1]

    def double(self) -> Outer:
        """Both in float64."""
        return replace(self, a=self.a.double(), g=self.g.double())

    def taken(self, place: slice) -> Outer:
        """Those of some examples."""
        return replace(self, a=self.a.taken(place), g=self.g[place])

    def for_products(self) -> Factor:
        """Rows; or factors laid out as products need them, where there are fewer positions than cotangents."""
        if not self._factored:
            return Rows(self.names, self.rows())
        return replace(self, a=DenseColumns(self.a.columns().mT.contiguous().mT), g=self.g.mT.contiguous().mT)

    @property
    def _factored(self) -> bool:
        _, k, p, _, t = self.g.shape
        return p == 1 and self.weight is not None and prefers_factors(k, self.a.width, t)

    @cached_property
    def columns(self) -> Float[Tensor, "n p i t"]:
        """The layer's inputs as columns, with a last input of ones where the bias is uncertain."""
        ones = int(self.bias is not None)
        if self.weight is not None:
            return self.a.columns(ones)
        return self.g.new_ones(()).expand(self.g.shape[0], self.g.shape[2], ones, self.positions)

    @property
    def matrices(self) -> Float[Tensor, "n k p o i"]:
        """The Jacobian of each example and cotangent, as a matrix with the bias in the last column."""
        return outer(self.g, self.columns)

    def rows(self) -> Float[Tensor, "n k d"]:
        """The explicit Jacobian."""
        return self.flat(self.matrices)

    def square_sum(self) -> Float[Tensor, " d"]:
        """``sum_t g_t a_tᵀ`` squared; at one position the squares of both."""
        if self.positions > 1:
            return self.flat(self.matrices.square_().sum((0, 1)))
        g, a = self.g.squeeze(-1).square().sum(1), self.columns.squeeze(-1).square()
        return self.flat(torch.einsum("npo,npi->poi", g, a))

    def covariance(self, variance: Float[Tensor, " d"]) -> Float[Tensor, "n k k"]:
        """``J diag(variance) Jᵀ``; at one position without rows."""
        scale = self.matrix(variance)
        if self.positions > 1:
            root = (self.matrices * scale.sqrt()).flatten(2)
            return root @ root.mT
        g, a = self.g.squeeze(-1), self.columns.squeeze(-1)
        root = (g * torch.einsum("npi,poi->npo", a.square(), scale).sqrt().unsqueeze(1)).flatten(2)
        return root @ root.mT

    def push(self, block: Float[Tensor, "d c"]) -> Float[Tensor, "n k c"]:
        """``J V = sum_t g_tᵀ (V a_t)``."""
        if not self._factored:
            return super().push(block)
        a, g = self._transposed
        i, o = a.shape[-1], g.shape[-1]
        weight = block[: o * i].view(o, i, -1).mT.reshape(-1, i)
        moved = a.flatten(0, 1) @ weight.mT
        if self.bias is not None:
            moved += block[o * i :].flatten()
        return combine(g.flatten(2), moved.view(len(a), g.shape[2] * o, -1))

    def pull(self, block: Float[Tensor, "n k c"]) -> Float[Tensor, "d c"]:
        """``Jᵀ U``: the gradients combined first, then one product with the inputs."""
        if not self._factored:
            return super().pull(block)
        a, g = self._transposed
        i, o, width = a.shape[-1], g.shape[-1], block.shape[2]
        moved = combine(g.flatten(2).mT, block).reshape(-1, o * width)
        weight = (moved.mT @ a.flatten(0, 1)).view(o, width, i).mT.reshape(-1, width)
        return weight if self.bias is None else torch.cat([weight, moved.sum(0).view(o, width)])

    @property
    def _transposed(self) -> tuple[Float[Tensor, "n t i"], Float[Tensor, "n k t o"]]:
        """Inputs and gradients of the only group, position by position; views after ``for_products``."""
        return self.a.columns()[:, 0].mT, self.g[:, :, 0].mT

    def flat(self, matrices: Float[Tensor, "... p o i"]) -> Float[Tensor, "... d"]:
        """Matrices with the bias in the last column, as flat weights in the order of ``names``."""
        if self.weight is None or self.bias is None:
            return matrices.flatten(-3)
        return torch.cat([matrices[..., :-1].flatten(-3), matrices[..., -1].flatten(-2)], dim=-1)

    def matrix(self, flat: Shaped[Tensor, " d"]) -> Shaped[Tensor, "p o i"]:
        """Flat weights in the order of ``names`` as matrices with the bias in the last column."""
        p, o = self.g.shape[2:4]
        if self.weight is None or self.bias is None:
            return flat.view(p, o, -1)
        return torch.cat([flat[: -p * o].view(p, o, -1), flat[-p * o :].view(p, o, 1)], dim=-1)


@final
@dataclass(frozen=True, eq=False)
class Rows(Factor):
    """Any other parameters, their Jacobian explicit: the affine part of norms, and layers without a rule.

    Args:
        parameters: Parameters, in the order in which they fill the last axis.
        values: The Jacobian.
    """

    parameters: tuple[str, ...]
    values: Float[Tensor, "n k d"]

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters."""
        return self.parameters

    @property
    def gradients(self) -> Float[Tensor, "n k d"]:
        """The rows."""
        return self.values

    @property
    def held(self) -> tuple[Tensor, ...]:
        """The rows."""
        return (self.values,)

    def rows(self) -> Float[Tensor, "n k d"]:
        """The explicit Jacobian."""
        return self.values

    def double(self) -> Rows:
        """The rows in float64."""
        return Rows(self.names, self.values.double())

    def taken(self, place: slice) -> Rows:
        """Those of some examples."""
        return Rows(self.names, self.values[place])


def outer(g: Float[Tensor, "n k p o t"], a: Float[Tensor, "n p i t"]) -> Float[Tensor, "n k p o i"]:
    """``sum_t g_t a_tᵀ`` for every example and cotangent, as one batched matrix product."""
    n, k, p, o, t = g.shape
    left = g.transpose(1, 2).reshape(n * p, k * o, t)
    product = left @ a.reshape(n * p, -1, t).mT
    return product.view(n, p, k, o, -1).transpose(1, 2)


def combine(left: Float[Tensor, "n a b"], right: Float[Tensor, "n b c"]) -> Float[Tensor, "n a c"]:
    """The matrix product of each example; many tiny ones with a single column are faster as one sum."""
    if right.shape[2] > 1:
        return left @ right
    return (left * right.mT).sum(2, keepdim=True)


def prefers_factors(cotangents: int, inputs: int, positions: int) -> bool:
    """Whether a column costs fewer multiplications from factors than from rows."""
    return positions * (inputs + cotangents) < cotangents * inputs
