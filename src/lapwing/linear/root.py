"""A root of the generalised Gauss-Newton matrix: noise in, a gradient with the curvature as its covariance out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.errors import DataError
from lapwing.jacobian.products.gauss_newton import GGNProduct
from lapwing.jacobian.products.linear import Linear
from lapwing.linalg import FunctionOperator, Operator


@final
@dataclass(frozen=True, eq=False, repr=False)
class GGNRoot(Operator):
    """``R = Jᵀ S`` with ``R Rᵀ = Jᵀ B J`` for the roots S of the output Hessians, B = S Sᵀ.

    Columns are ordered by example, event position, column of S. Standard normal noise ε has ``R ε ~ N(0, Jᵀ B J)``.

    Args:
        product: The matrix itself; its data are read once a product, in the same order each time, or not at all where
            it keeps what it needs of them.

    Cost:
        A product with k columns: that of one with Jᵀ.
    """

    product: GGNProduct

    @property
    def shape(self) -> tuple[int, int]:
        """The uncertain weights d, and all columns of all roots."""
        return (self.product.model.network.size, self.product.model.data.examples * self._width)

    @property
    def T(self) -> FunctionOperator:
        """``Sᵀ J``."""
        return FunctionOperator(self._adjoint, self._matmat, (self.shape[1], self.shape[0]), self._like)

    @property
    def _like(self) -> Tensor:
        return self.product.model.network.like

    @property
    def _width(self) -> int:
        """Columns of the roots of one example."""
        likelihood = self.product.model.likelihood
        outputs = likelihood.canonical(torch.zeros(1, *self.product.model.survey.output))
        return likelihood.thin_root(outputs)[..., 0, :].numel()

    def _matmat(self, block: Float[Tensor, "r k"]) -> Float[Tensor, "d k"]:
        total, start, k = block.new_zeros(self.shape[0], block.shape[1]), 0, block.shape[1]
        for chunk, root in self._chunks(k):
            columns = root.shape[0] * root.shape[-1]
            self._check_columns(start + columns, len(block))
            noise = block[start : start + columns].view(len(root), -1, k)
            total += chunk.pull((root @ noise).movedim(-1, 0).reshape(k, *chunk.outputs.shape))
            start += columns
        return total

    def _check_columns(self, needed: int, given: int) -> None:
        if needed > given:
            raise DataError(
                f"{self.product.model.data.examples} examples in every pass over the data, as in the first",
                "more",
                "a loader that yields the same examples each time, or a list of its batches",
            )

    def _adjoint(self, block: Float[Tensor, "d k"]) -> Float[Tensor, "r k"]:
        rows = []
        for chunk, root in self._chunks(block.shape[1]):
            pushed = chunk.push(block).flatten(1, -2).movedim(0, -1)
            rows.append((root.mT @ pushed).flatten(0, 1))
        return torch.cat(rows)

    def _chunks(self, columns: int) -> Iterator[tuple[Linear, Float[Tensor, "m c r"]]]:
        """Each chunk of the data, and the root at each of its m positions."""
        for chunk, h in self.product.visit(columns):
            yield chunk, self.product.model.likelihood.thin_root(h, chunk.targets).flatten(0, -3)
