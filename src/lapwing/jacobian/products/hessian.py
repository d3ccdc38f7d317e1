"""The exact Hessian of the loss as a matrix-free operator."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import grad, jvp, vjp, vmap

from lapwing.ground.data import Batch
from lapwing.ground.types import Params
from lapwing.jacobian.model import BUDGET, Model
from lapwing.jacobian.network.network import ALONE
from lapwing.jacobian.network.spelled import twice_differentiable
from lapwing.jacobian.products.costs import Form
from lapwing.jacobian.products.products import MEMORY, WORKING, Executor, Prepared, Store, total
from lapwing.jacobian.products.recording import Recording, Traced
from lapwing.jacobian.products.reverse import Reverse, derivative
from lapwing.jacobian.products.split import Split, Tensors
from lapwing.likelihoods.base import COLUMNS
from lapwing.linalg import Operator

logger = logging.getLogger(__name__)


@final
@dataclass(frozen=True, eq=False, repr=False)
class HessianProduct(Operator):
    """The exact Hessian of the negative log likelihood, touched through products alone (Pearlmutter 1994).

    It is symmetric, and indefinite away from a minimum: not a precision by itself. Recorded and split as in
    ``GGNProduct`` where that is possible.

    Args:
        model: The network, its likelihood, and the data; these are read once a product, or once in all.
        memory: Bytes a product may occupy, what is kept included.
        form: ``"plain"`` to differentiate for every column; ``None`` records where possible.

    Raises:
        UnsupportedError: If an operation of the network has neither a forward mode nor a second gradient.

    Cost:
        A forward-over-reverse pass a column: about two gradients, less by what is kept; where an operation has no
        forward mode, a gradient of the gradient.
    """

    model: Model
    memory: int = MEMORY
    form: Form | None = None
    _store: Store[Prepared] = field(default_factory=Store[Prepared], init=False, repr=False)

    @property
    def shape(self) -> tuple[int, int]:
        """The uncertain weights d, twice."""
        return (self.model.network.size, self.model.network.size)

    @property
    def T(self) -> HessianProduct:
        """The operator itself: it is symmetric."""
        return self

    @property
    def _like(self) -> Tensor:
        return self.model.network.like

    def _matmat(self, block: Float[Tensor, "d k"]) -> Float[Tensor, "d k"]:
        return total(self._store.visit(self._executor, self.model.data, self.memory), block)

    @cached_property
    def _executor(self) -> Executor[Prepared]:
        example = self.model.survey.bytes(1, self.model.network.like.itemsize)
        room = max(1, min(BUDGET, self.memory // WORKING) // example)
        plain = Pearlmutter(self.model, room)
        return plain if self.form == "plain" else RecordedHessian(self.model, room, plain)


def second_derivative(traced: Traced, *column: Tensor) -> Tensors:
    """``∇²L v``, forward over reverse (Pearlmutter 1994)."""
    change = dict(zip(traced.params, column, strict=True))
    return traced.in_order(jvp(_gradient(traced), (traced.params,), (change,))[1])


def second_derivative_by_adjoints(traced: Traced, *column: Tensor) -> Tensors:
    """``∇²L v``, reverse over reverse: for what has a wrong forward mode."""
    change = dict(zip(traced.params, column, strict=True))
    return traced.in_order(vjp(_gradient(traced), traced.params)[1](change)[0])


def _gradient(traced: Traced) -> Callable[[Params], Params]:
    def loss(params: Params) -> Tensor:
        f = traced.outputs(params)
        return traced.likelihood.nll(f, traced.likelihood.canonical_targets(f, traced.targets)).sum()

    return grad(loss)


@final
@dataclass(frozen=True, eq=False)
class RecordedHessian(Recording[Prepared]):
    """The product with the Hessian, recorded."""

    @property
    def recipes(self) -> tuple[Callable[..., Tensors], ...]:
        """Forward over reverse where that is right."""
        return (second_derivative_by_adjoints if self.model.network.padded else second_derivative,)

    def _column(self, batch: Batch) -> list[Tensor]:
        return self._change

    def _ready(self, batch: Batch, halves: Split, kept: Tensors, size: int) -> Prepared:
        def product(block: Float[Tensor, "d k"]) -> Float[Tensor, "d k"]:
            columns = [self._gathered(halves.product(kept, self._spread(v))) for v in block.unbind(1)]
            return torch.stack(columns, dim=1)

        return Prepared(product, size)


@final
@dataclass(frozen=True, eq=False)
class Pearlmutter(Executor[Prepared]):
    """Forward over reverse through the network again for every column; reverse over reverse where that is refused.

    Args:
        model: The network and its likelihood.
        room: Examples times columns that there is memory for; a chunk has no more examples, which take one column.
    """

    model: Model
    room: int
    form = "plain"

    def size(self, examples: int) -> int:
        """As many as there is room for with one column."""
        return min(examples, self.room)

    def prepare(self, batch: Batch) -> Prepared:
        """Nothing can be prepared."""
        network, likelihood = self.model.network, self.model.likelihood

        def loss(weights: Tensor) -> Tensor:
            with twice_differentiable():
                f = likelihood.canonical(network(batch.inputs, network.with_weights(weights)))
            return likelihood.nll(f, likelihood.canonical_targets(f, batch.targets)).sum()

        width = max(1, min(COLUMNS, self.room // len(batch)))
        return Prepared(lambda block: self._product(loss, block, width), None)

    def _product(
        self, loss: Callable[[Tensor], Tensor], block: Float[Tensor, "d k"], width: int
    ) -> Float[Tensor, "d k"]:
        """The derivative of the gradient in each direction of the block, ``width`` of them at once."""
        weights = self.model.network.weights
        if not self.model.network.padded:
            try:
                push = lambda column: jvp(grad(loss), (weights,), (column,))[1]  # noqa: E731
                with ALONE, twice_differentiable():
                    return vmap(push, in_dims=1, out_dims=1, chunk_size=width)(block)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as reason:
                logger.info("cannot differentiate forward (%s): differentiating the gradient for every column", reason)

        def gradient(tracked: Tensor) -> Tensor:
            value = loss(tracked)
            return derivative(value, tracked, torch.ones_like(value), again=True)

        there = Reverse.of(gradient, weights)
        return torch.stack([there.pull(column) for column in block.unbind(1)], dim=1)
