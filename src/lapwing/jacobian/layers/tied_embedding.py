"""An embedding whose table is a linear layer too, as the head of a language model often is.

Its Jacobian is the sum of both uses, ``J = Σ_t e_v(t) g_tᵀ + Σ_s h_s a_sᵀ`` in matrices of the table: gradients g at
the rows v that were looked up, gradients h at the outputs of the linear layer, and its inputs a. No Kronecker product
stands for ``Jᵀ J``: an entry of the table has curvature from both, and they have some in common.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, final

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from lapwing.ground.precision import wide
from lapwing.jacobian.layers.base import (
    NUMBERS,
    Call,
    Cost,
    Explicit,
    Factor,
    Layer,
    LayerKind,
    Sizes,
    contracted,
)
from lapwing.jacobian.layers.embedding import Embedding
from lapwing.jacobian.layers.linear import Linear


@final
@dataclass(frozen=True, eq=False)
class TiedEmbedding(LayerKind):
    """One table ``[v, e]`` in ``torch.nn.functional.embedding`` and, without a bias, in ``torch.nn.functional.linear``.

    Args:
        g: Gradients at the embedding's output, ``[n, k, t, e]``.
        index: The row each position looked up.
        h: Gradients at the linear layer's output, ``[n, k, 1, v, s]``.
        a: Its inputs, ``[n, 1, e, s]``.
        padding: Row that has no gradient where it is looked up.
    """

    index: Int[Tensor, "n t"]
    h: Float[Tensor, "n k 1 v s"]
    a: Float[Tensor, "n 1 e s"]
    padding: int | None = None

    kronecker = False
    recorded = False

    @classmethod
    def input_and_options(cls, func: Callable[..., Any], given: dict[str, Any]) -> tuple[Tensor, Any]:
        """See ``LayerKind``; each use is recorded as one of its own kind."""
        kind = Embedding if func is F.embedding else Linear
        return kind.input_and_options(func, given)

    @classmethod
    def of(cls, layer: Layer, calls: list[Call], grads: list[Tensor], n: int) -> TiedEmbedding:
        """See ``LayerKind``."""
        pairs = list(zip(calls, grads, strict=True))
        lookups = [(call, g) for call, g in pairs if call.kind is Embedding]
        products = [(call, g) for call, g in pairs if call.kind is Linear]
        table = Embedding.of(layer, [call for call, _ in lookups], [g for _, g in lookups], n)
        head = Linear.of(layer, [call for call, _ in products], [g for _, g in products], n)
        return cls(layer.weight, None, table.g, table.index, head.g, head.a, table.padding)

    @classmethod
    def sizes(cls, call: Call, n: int, weights: int) -> Sizes:
        """See ``LayerKind``; with the Jacobian, which is written down where its rows are asked for."""
        return super().sizes(call, n, weights)._replace(matrix=weights)

    @cached_property
    def _table(self) -> Embedding:
        """The use as an embedding."""
        shape = (self.h.shape[3], self.g.shape[3])
        return Embedding(self.weight, None, self.g, shape, self.index, self.padding)

    @cached_property
    def _head(self) -> Linear:
        """The use as a linear layer."""
        return Linear(self.weight, None, self.h, self.a)

    def rows(self) -> Float[Tensor, "n k d"]:
        """The explicit Jacobian."""
        rows = self._head.rows()
        example, row, summed = self._table.used
        arrays = rows.view(*rows.shape[:2], *self._table.shape)
        arrays[example, :, row] += summed
        return rows

    def square_sum(self) -> Float[Tensor, " d"]:
        """``Σ J²`` without rows: of the linear layer some rows of the table at a time, then what was looked up."""
        n, k, _, v, _ = self.h.shape
        e = self.g.shape[3]
        total = self.h.new_zeros(v, e)
        inputs = self.a.mT
        width = max(1, NUMBERS // (n * k * e))
        for start in range(0, v, width):
            place = slice(start, start + width)
            total[place] = (self.h[:, :, 0, place] @ inputs).square_().sum((0, 1))
        example, row, summed = self._table.used
        beside = torch.einsum("ukt,uet->uke", self.h[example, :, 0, row], self.a[example, 0])
        return total.index_add_(0, row, (summed * (summed + 2.0 * beside)).sum(1)).flatten()

    def wide_square_sum(self) -> Float[Tensor, " d"]:
        """See ``Factor``; products are in float32, or in float64 where the network is."""
        dtype = torch.promote_types(self.g.dtype, torch.float32)
        whole = self._changed(lambda value: value.to(dtype) if value.is_floating_point() else value)
        return wide(whole.square_sum())

    def for_products(self) -> Factor:
        """Rows; or both uses laid out as products need them, where that of the linear layer takes fewer that way."""
        if not self._head.factored(self.g.shape[1]):
            return Explicit(self.weight, None, self.rows())
        return replace(self, g=self._table.for_products().g, h=self.h.mT.contiguous().mT, a=self.a.mT.contiguous().mT)

    def push(self, block: Float[Tensor, "d c"]) -> Float[Tensor, "n k c"]:
        """``J V``, the sum of both uses."""
        return self._table.push(block) + self._head.push(block)

    def pull(self, block: Float[Tensor, "n k c"]) -> Float[Tensor, "d c"]:
        """``Jᵀ U``, the sum of both uses."""
        return self._table.pull(block) + self._head.pull(block)

    def cost(self, cotangents: int) -> Cost:
        """See ``Factor``."""
        k = cotangents
        _, _, _, v, s = self.h.shape
        e = self.g.shape[3]
        table = self._table.cost(k)
        if not self._head.factored(k):
            entries = k * v * e
            return Cost(entries * s, entries, 0, entries, table.outputs + s * v, self._head.multiplications)
        factors = table.factors + s * v * (e + k)
        held = table.held + s * (e + k * v)
        return Cost(0, 0, factors, held, table.outputs + s * v, self._head.multiplications)

    def covariance(self, variance: Float[Tensor, " d"]) -> Float[Tensor, "n k k"]:
        """See ``Factor``; from the rows of a few examples at a time."""
        return torch.cat([(rows * variance) @ rows.mT for rows in self._rows_of_few()])

    def covariances(self, variances: Float[Tensor, "m d"]) -> Float[Tensor, "m n k k"]:
        """See ``Factor``; from the rows of a few examples at a time."""
        if len(variances) == 1:
            return self.covariance(variances[0])[None]
        return torch.cat([contracted(rows, variances) for rows in self._rows_of_few()], 1)

    def _rows_of_few(self) -> Iterator[Float[Tensor, "f k d"]]:
        """The explicit Jacobian of a few examples at a time."""
        numbers = self.g.shape[1] * self.h.shape[3] * self.g.shape[3]
        size = max(1, NUMBERS // numbers)
        for start in range(0, len(self.g), size):
            yield self.taken(slice(start, start + size)).rows()
