"""Products with the Jacobian of a data set: J @ V and Jᵀ @ U on blocks of columns, batch by batch.

Two executors, chosen by a stated rule. *Columns* pushes each column through the network beside its forward pass, or
pulls it back: about two forward passes a column. *Rows* makes the explicit Jacobian of a few examples from layer
factors, c backward passes whatever the columns, and one matrix product. Rows is chosen where there are at least as many
columns as outputs, and where the rows of an example fit the byte budget.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import jvp, vjp, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from lapwing.curvature.dense import jacobian_rows
from lapwing.curvature.ggn import COLUMNS, identity_cotangents
from lapwing.curvature.layers import Pass, Survey
from lapwing.curvature.network import Network
from lapwing.curvature.sums import BUDGET, raw
from lapwing.data import Data, chunks, count
from lapwing.likelihoods import Likelihood
from lapwing.linalg import Operator
from lapwing.types import Inputs

logger = logging.getLogger(__name__)


@final
@dataclass(frozen=True, eq=False)
class BatchJacobian:
    """The Jacobian of one batch.

    Args:
        network: The network.
        survey: What is known of its layers.
        likelihood: Says where the outputs' axes are.
        inputs: The n examples of the batch.
        budget: Bytes for explicit rows.
    """

    network: Network
    survey: Survey
    likelihood: Likelihood
    inputs: Inputs
    budget: int = BUDGET

    def push(self, block: Float[Tensor, "d k"]) -> Float[Tensor, "m k"]:
        """``J V``: a change of the outputs for each change of the weights."""
        if self._by_rows(block.shape[1]):
            return torch.cat([rows @ block for rows in self._rows()])
        if not self.network.padded:
            try:
                return vmap(self._tangent, in_dims=1, out_dims=1, chunk_size=COLUMNS)(block)
            except RuntimeError as reason:
                logger.info("cannot push columns forward (%s): going through the adjoint of the adjoint", reason)
        return torch.stack([self._bidual(column)[0] for column in block.unbind(1)], dim=1)

    def pull(self, block: Float[Tensor, "m k"]) -> Float[Tensor, "d k"]:
        """``Jᵀ U``: a change of the weights for each change of the outputs."""
        if self._by_rows(block.shape[1]):
            pieces = self._rows()
            start, total = 0, block.new_zeros(self.network.size, block.shape[1])
            for rows in pieces:
                total += rows.mT @ block[start : start + len(rows)]
                start += len(rows)
            return total
        return torch.stack([self._pullback(column)[0] for column in block.unbind(1)], dim=1)

    def _function(self, weights: Float[Tensor, " d"]) -> Float[Tensor, " m"]:
        with sdpa_kernel(SDPBackend.MATH):  # the fused kernels have no forward mode and no second derivative
            outputs = self.network(self.inputs, self.network.with_weights(weights))
        return self.likelihood.canonical(outputs).flatten()

    def _tangent(self, column: Float[Tensor, " d"]) -> Float[Tensor, " m"]:
        return jvp(self._function, (self.network.weights,), (column,))[1]

    @cached_property
    def _bidual(self) -> Callable[[Tensor], tuple[Tensor]]:
        """``v -> J v`` as the adjoint of the linear map ``u -> Jᵀ u``: reverse mode alone."""
        outputs = self._function(self.network.weights)
        pull = lambda u: vjp(self._function, self.network.weights)[1](u)[0]  # noqa: E731
        return vjp(pull, torch.zeros_like(outputs))[1]

    @cached_property
    def _pullback(self) -> Callable[[Tensor], tuple[Tensor]]:
        return vjp(self._function, self.network.weights)[1]

    def _by_rows(self, columns: int) -> bool:
        outputs = self.survey.output.numel()
        bytes_of_one = outputs * self.network.size * self.network.like.element_size()
        return columns >= outputs and bytes_of_one <= self.budget

    def _rows(self) -> Iterator[Float[Tensor, "m d"]]:
        outputs = self.survey.output.numel()
        size = self.survey.chunk(outputs, self.network.like.element_size(), self.budget, self.network.layout.size)
        for _, part in chunks(self.inputs, min(size, count(self.inputs))):
            forward = Pass(self.network, self.survey, part)
            directions = torch.cat(list(identity_cotangents(self.likelihood.canonical(forward.outputs))))
            factors = forward.factors(raw(self.likelihood, directions))
            yield jacobian_rows(self.network, factors).flatten(0, 1)


@final
@dataclass(frozen=True, eq=False)
class Jacobian(Operator):
    """The Jacobian of all outputs of a data set in the uncertain weights, ``[m, d]``, touched through products alone.

    Rows are ordered by example, event position, output. Batches are the outer loop and columns the inner one.

    Args:
        network: The network.
        survey: What is known of its layers.
        likelihood: Says where the outputs' axes are.
        data: The data; read once a product.
        budget: Bytes for explicit rows.

    Cost:
        A product with k columns: about two forward passes a column, or c backward passes where k is at least c.
    """

    network: Network
    survey: Survey
    likelihood: Likelihood
    data: Data
    budget: int = BUDGET
    examples: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "examples", sum(len(batch) for batch in self.data))

    @property
    def shape(self) -> tuple[int, int]:
        """All outputs m, and the uncertain weights d."""
        return (self.examples * self.survey.output.numel(), self.network.size)

    @property
    def T(self) -> Adjoint:
        """``Jᵀ``."""
        return Adjoint(self)

    @property
    def _like(self) -> Tensor:
        return self.network.like

    def batches(self) -> Iterator[BatchJacobian]:
        """The Jacobian of each batch in turn."""
        for batch in self.data:
            yield BatchJacobian(self.network, self.survey, self.likelihood, batch.inputs, self.budget)

    def _matmat(self, block: Float[Tensor, "d k"]) -> Float[Tensor, "m k"]:
        return torch.cat([part.push(block) for part in self.batches()])


@final
@dataclass(frozen=True, eq=False)
class Adjoint(Operator):
    """The adjoint of a ``Jacobian``."""

    jacobian: Jacobian

    @property
    def shape(self) -> tuple[int, int]:
        """The uncertain weights d, and all outputs m."""
        return (self.jacobian.shape[1], self.jacobian.shape[0])

    @property
    def T(self) -> Jacobian:
        """``J``."""
        return self.jacobian

    @property
    def _like(self) -> Tensor:
        return self.jacobian.network.like

    def _matmat(self, block: Float[Tensor, "m k"]) -> Float[Tensor, "d k"]:
        total, start = block.new_zeros(self.shape[0], block.shape[1]), 0
        outputs = self.jacobian.survey.output.numel()
        for part in self.jacobian.batches():
            rows = count(part.inputs) * outputs
            total += part.pull(block[start : start + rows])
            start += rows
        return total
