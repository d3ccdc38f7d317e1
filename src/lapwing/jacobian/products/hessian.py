"""The exact Hessian of the loss as a matrix-free operator."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import grad, jvp, vjp

from lapwing.ground.data import Batch
from lapwing.ground.tree import Params, summed
from lapwing.jacobian.model import BUDGET, Model
from lapwing.jacobian.network.decompositions import twice_differentiable
from lapwing.jacobian.products.forms import Form, Store
from lapwing.jacobian.products.plain import Reverse, derivative, forward_mode
from lapwing.jacobian.products.recording import Recording, Traced
from lapwing.jacobian.products.split import Tensors
from lapwing.likelihoods.base import COLUMNS
from lapwing.linalg import FunctionOperator

logger = logging.getLogger(__name__)

PLAIN = "cannot differentiate forward (%s): differentiating the gradient for every column"
"""What is said once a network, whose gradient is not differentiated forward again."""


Product: TypeAlias = Callable[[Float[Tensor, "d k"]], Float[Tensor, "d k"]]
"""From a block of columns to a chunk's part of the product."""


def hessian_product(model: Model, form: Form | None = None) -> FunctionOperator:
    """The exact Hessian of the negative log likelihood, touched through products alone (Pearlmutter 1994).

    It is symmetric, and indefinite away from a minimum: not a precision by itself. Recorded and split as in
    ``Linearisation`` where that is possible; what does not depend on the columns is kept from product to product.

    Args:
        model: The network, its likelihood, and the data; these are read once a product, or once in all.
        form: ``"plain"`` to differentiate for every column; ``None`` records where possible.

    Raises:
        UnsupportedError: If an operation of the network has neither a forward mode nor a second gradient.

    Cost:
        A forward-over-reverse pass a column: about two gradients, less by what is kept; where an operation has no
        forward mode, a gradient of the gradient.
    """
    network, store = model.network, Store[Product]()
    room = max(1, BUDGET // model.survey.bytes(1, network.like.itemsize))
    plain = partial(pearlmutter, model, room)
    recipe = second_derivative_by_adjoints if network.padded else second_derivative
    prepare = plain if form == "plain" else partial(recorded, Recording(model, (recipe,)), plain)

    def product(block: Float[Tensor, "d k"]) -> Float[Tensor, "d k"]:
        network.check_unchanged()
        parts = (own(block) for own in store.visit(form or "split", model.data, room, prepare))
        return torch.empty_like(block).copy_(model.data.added(summed(parts, block)))

    return FunctionOperator(product, product, (network.size, network.size), network.like)


def recorded(
    recording: Recording, plain: Callable[[Batch], tuple[Product, None]], batch: Batch
) -> tuple[Product, int | None]:
    """The product by its recorded halves, and their bytes; plainly where it cannot be recorded."""
    halves = recording.prepare(batch)
    if halves is None:
        return plain(batch)

    def product(block: Float[Tensor, "d k"]) -> Float[Tensor, "d k"]:
        return torch.stack([halves.weights(0, column) for column in block.unbind(1)], dim=1)

    return product, halves.bytes


def second_derivative(traced: Traced) -> Tensors:
    """``∇²L v``, forward over reverse (Pearlmutter 1994)."""
    return traced.in_order(jvp(_gradient(traced), (traced.params,), (traced.change,))[1])


def second_derivative_by_adjoints(traced: Traced) -> Tensors:
    """``∇²L v``, reverse over reverse: for what has a wrong forward mode."""
    return traced.in_order(vjp(_gradient(traced), traced.params)[1](traced.change)[0])


def _gradient(traced: Traced) -> Callable[[Params], Params]:
    def loss(params: Params) -> Tensor:
        f = traced.outputs(params)
        return traced.likelihood.nll(f, traced.likelihood.canonical_targets(f, traced.targets)).sum()

    return grad(loss)


def pearlmutter(model: Model, room: int, batch: Batch) -> tuple[Product, None]:
    """Forward over reverse through the network again for every column; reverse over reverse where that is refused.

    Args:
        model: The network and its likelihood.
        room: Examples times columns that there is memory for.
        batch: No more examples than that.
    """
    network, likelihood, width = model.network, model.likelihood, max(1, min(COLUMNS, room // len(batch)))

    def loss(weights: Tensor) -> Tensor:
        with twice_differentiable():
            f = likelihood.canonical(network(batch.inputs, network.with_weights(weights)))
        return likelihood.nll(f, likelihood.canonical_targets(f, batch.targets)).sum()

    def gradient(tracked: Tensor) -> Tensor:
        value = loss(tracked)
        return derivative(value, tracked, torch.ones_like(value), again=True)

    def product(block: Float[Tensor, "d k"]) -> Float[Tensor, "d k"]:
        pushed = forward_mode(network, grad(loss), block, width, PLAIN, dim=1)
        if pushed is not None:
            return pushed
        there = Reverse(gradient, network.weights)
        return torch.stack([there.pull(column) for column in block.unbind(1)], dim=1)

    return product, None
