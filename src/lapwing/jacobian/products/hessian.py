"""The exact Hessian of the loss as a matrix-free operator."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import grad, jvp, vjp

from lapwing.ground.data.sources import Batch
from lapwing.ground.layout import Params, summed
from lapwing.jacobian.limits import Limits
from lapwing.jacobian.model import Model
from lapwing.jacobian.network.decompositions import twice_differentiable
from lapwing.jacobian.products.autodiff_jacobian import Reverse, derivative, forward_mode
from lapwing.jacobian.products.cache import Cache
from lapwing.jacobian.products.strategy import Strategy
from lapwing.jacobian.products.tracing.split import Groups
from lapwing.jacobian.products.tracing.tracer import Arguments, Tracer
from lapwing.likelihoods.base import COLUMNS
from lapwing.linalg import FunctionOperator

SMALL = 4096
"""Weights up to which columns go through the network together and are not recorded, which takes time of its own."""

PLAIN = "cannot differentiate forward (%s): differentiating the gradient for every column"
"""What is said once a network, whose gradient is not differentiated forward again."""

Product: TypeAlias = Callable[[Float[Tensor, "d k"]], Float[Tensor, "d k"]]
"""From a block of columns to a chunk's part of the product."""


def hessian_product(
    model: Model, strategy: Strategy | None = None, *, budget: int = Limits.training
) -> FunctionOperator:
    """The exact Hessian of the negative log likelihood, touched through products alone (Pearlmutter 1994).

    It is symmetric, and indefinite away from a minimum: not a precision by itself. Of more than ``SMALL`` weights it is
    recorded and split as in ``Linearisation`` where that is possible; what does not depend on the columns is kept from
    product to product.

    Args:
        model: The network, its likelihood, and the data; these are read once a product, or once in all.
        strategy: ``"autodiff"`` to differentiate for every column; ``"traced"`` records where possible; ``None`` for
            the one that suits the number of weights.
        budget: Bytes that the examples and columns in work together may take.

    Raises:
        UnsupportedError: If an operation of the network has neither a forward mode nor a second gradient.

    Cost:
        A forward-over-reverse pass a column: about two gradients, less by what is kept; where an operation has no
        forward mode, a gradient of the gradient.
    """
    network = model.network
    if strategy is None:
        strategy = "autodiff" if network.size <= SMALL else "traced"
    cache = Cache[Product]()
    examples = max(1, budget // model.survey.bytes(1, network.like.itemsize))
    autodiff = partial(pearlmutter, model, examples)
    second_derivative = hessian_by_adjoints if network.padded else hessian_by_forward_mode
    tracer = Tracer(model, (second_derivative,))
    prepare = autodiff if strategy == "autodiff" else partial(traced, tracer, autodiff)

    def product(block: Float[Tensor, "d k"]) -> Float[Tensor, "d k"]:
        network.check_unchanged()
        parts = (of_chunk(block) for of_chunk in cache.visit(strategy, model.data, examples, prepare))
        return torch.empty_like(block).copy_(model.data.added(summed(parts, block)))

    return FunctionOperator(product, product, (network.size, network.size), network.like)


def traced(
    tracer: Tracer, autodiff: Callable[[Batch], tuple[Product, None]], batch: Batch
) -> tuple[Product, int | None]:
    """The product by its recorded halves, and their bytes; by automatic differentiation where it cannot be recorded."""
    prepared = tracer.prepare(batch)
    if prepared is None:
        return autodiff(batch)

    def product(block: Float[Tensor, "d k"]) -> Float[Tensor, "d k"]:
        return torch.stack([prepared.weights(0, change=column) for column in block.unbind(1)], dim=1)

    return product, prepared.bytes


def hessian_by_forward_mode(given: Arguments) -> Groups:
    """``∇²L v``, forward over reverse (Pearlmutter 1994)."""
    moved = jvp(_gradient(given), (given.params,), (given.change,))[1]
    return (given.in_order(moved),)


def hessian_by_adjoints(given: Arguments) -> Groups:
    """``∇²L v``, reverse over reverse: for what has a wrong forward mode."""
    pull = vjp(_gradient(given), given.params)[1]
    (pulled,) = pull(given.change)
    return (given.in_order(pulled),)


def _gradient(given: Arguments) -> Callable[[Params], Params]:
    def loss(params: Params) -> Tensor:
        f = given.outputs(params)
        y = given.likelihood.canonical_targets(f, given.targets)
        return given.likelihood.nll(f, y).sum()

    return grad(loss)


def pearlmutter(model: Model, room: int, batch: Batch) -> tuple[Product, None]:
    """Forward over reverse through the network again for every column; reverse over reverse where that is refused.

    Args:
        model: The network and its likelihood.
        room: Examples times columns that there is memory for.
        batch: No more examples than that.
    """
    network = model.network
    likelihood = model.likelihood
    width = max(1, min(COLUMNS, room // len(batch)))

    def loss(weights: Float[Tensor, " d"]) -> Float[Tensor, ""]:
        with twice_differentiable():
            f = likelihood.canonical(network(batch.inputs, network.with_weights(weights)))
        return likelihood.nll(f, likelihood.canonical_targets(f, batch.targets)).sum()

    def gradient(weights: Float[Tensor, " d"]) -> Float[Tensor, " d"]:
        value = loss(weights)
        return derivative(value, weights, torch.ones_like(value), again=True)

    def product(block: Float[Tensor, "d k"]) -> Float[Tensor, "d k"]:
        pushed = forward_mode(network, grad(loss), block, width, PLAIN, dim=1)
        if pushed is not None:
            return pushed
        reverse = Reverse(gradient, network.weights)
        return torch.stack([reverse.pull(column) for column in block.unbind(1)], dim=1)

    return product, None
