"""A root of the generalised Gauss-Newton matrix: noise in, a gradient with the curvature as its covariance out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.curvature.curved import thin_root
from lapwing.curvature.hessian import canonical
from lapwing.curvature.jacobian import BatchJacobian
from lapwing.curvature.layers import Survey
from lapwing.curvature.network import Network
from lapwing.data import Data
from lapwing.errors import DataError
from lapwing.likelihoods import Likelihood
from lapwing.linalg import FunctionOperator, Operator


@final
@dataclass(frozen=True, eq=False)
class GGNRoot(Operator):
    """``R = Jᵀ S`` with ``R Rᵀ = Jᵀ B J`` for the roots S of the output Hessians, B = S Sᵀ.

    Columns are ordered by example, event position, column of S. Standard normal noise ε has ``R ε ~ N(0, Jᵀ B J)``.

    Args:
        network: The network.
        survey: What is known of its layers.
        likelihood: The likelihood.
        data: The data; read once a product, in the same order each time.
        examples: How many there are.

    Cost:
        A product with k columns: that of one with Jᵀ.
    """

    network: Network
    survey: Survey
    likelihood: Likelihood
    data: Data
    examples: int

    @property
    def shape(self) -> tuple[int, int]:
        """The uncertain weights d, and all columns of all roots."""
        return (self.network.size, self.examples * self._width)

    @property
    def T(self) -> FunctionOperator:
        """``Sᵀ J``."""
        return FunctionOperator(self._adjoint, self._matmat, (self.shape[1], self.shape[0]), self._like)

    @property
    def _like(self) -> Tensor:
        return self.network.like

    @property
    def _width(self) -> int:
        """Columns of the roots of one example."""
        outputs = self.likelihood.canonical(torch.zeros(1, *self.survey.output))
        return thin_root(self.likelihood, outputs)[..., 0, :].numel()

    def _matmat(self, block: Float[Tensor, "r k"]) -> Float[Tensor, "d k"]:
        total, start = block.new_zeros(self.shape[0], block.shape[1]), 0
        for part, root in self._batches():
            columns = root.shape[0] * root.shape[-1]
            self._check_columns(start + columns, len(block))
            noise = block[start : start + columns].view(len(root), -1, block.shape[1])
            total += part.pull((root @ noise).flatten(0, 1))
            start += columns
        return total

    def _check_columns(self, needed: int, given: int) -> None:
        if needed > given:
            raise DataError(
                f"{self.examples} examples in every pass over the data, as in the first",
                "more",
                "a loader that yields the same examples each time, or a list of its batches",
            )

    def _adjoint(self, block: Float[Tensor, "d k"]) -> Float[Tensor, "r k"]:
        rows = []
        for part, root in self._batches():
            pushed = part.push(block).view(len(root), -1, block.shape[1])
            rows.append((root.mT @ pushed).flatten(0, 1))
        return torch.cat(rows)

    def _batches(self) -> Iterator[tuple[BatchJacobian, Float[Tensor, "m c r"]]]:
        """The Jacobian of each batch, and the root at each of its m positions."""
        for batch in self.data:
            f, y = canonical(self.likelihood, self.network(batch.inputs), batch)
            root = thin_root(self.likelihood, f, y).flatten(0, -3)
            yield BatchJacobian(self.network, self.survey, self.likelihood, batch.inputs), root
