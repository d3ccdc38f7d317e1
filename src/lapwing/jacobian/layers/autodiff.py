"""Jacobian rows of parameters without layer factors, by automatic differentiation one example at a time.

Rules of vectorised automatic differentiation can be wrong: PReLU's confuses the axis of the cotangents with that of the
examples. So what a network's operations make of both is compared once with plain reverse mode (``right_way``).
"""

from __future__ import annotations

import logging
from typing import Literal, TypeAlias, get_args

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import vjp, vmap

from lapwing.ground.data.inputs import Inputs, count, over_tensors, take, tensors
from lapwing.ground.errors import reason_of
from lapwing.ground.layout import Params
from lapwing.ground.tracing import traced
from lapwing.jacobian.network.decompositions import twice_differentiable
from lapwing.jacobian.network.network import Network

logger = logging.getLogger(__name__)


Way: TypeAlias = Literal["at once", "by cotangent", "one by one"]
"""How rows are made: all at once, one cotangent after the other for all examples, or each by itself; ever slower."""


WAYS: tuple[Way, ...] = get_args(Way)


WRONG = "a rule of vectorised differentiation is wrong for {!r}"


def autodiff_rows(
    network: Network, names: tuple[str, ...], inputs: Inputs, cotangents: Float[Tensor, "k n ..."], way: Way = "at once"
) -> dict[str, Float[Tensor, "n k _"]]:
    """Explicit Jacobian rows of some parameters for every example of a chunk.

    Args:
        network: The network.
        names: The parameters.
        inputs: A chunk of n examples.
        cotangents: Directions to pull back, each of the shape of the outputs.
        way: The fastest way that is right for this network.

    Returns:
        For each parameter the rows of its d entries.

    Cost:
        One vectorised pass over the chunk, or one a cotangent; n forward and n k backward passes of single examples
        where an operation of the network cannot be vectorised (which is logged).
    """
    params = {name: network.params[name] for name in names}
    with torch.inference_mode(False), torch.enable_grad(), twice_differentiable(any_number=traced()):
        if way != "one by one":
            try:
                return vectorised_rows(network, params, inputs, cotangents, way)
            except torch.OutOfMemoryError:
                raise
            except (RuntimeError, ValueError) as reason:
                logger.info("cannot vectorise over examples (%s): going through them one by one", reason_of(reason))
        return _one_by_one(network, params, inputs, cotangents)


def vectorised_rows(
    network: Network, params: Params, inputs: Inputs, cotangents: Float[Tensor, "k n ..."], way: Way = "at once"
) -> dict[str, Float[Tensor, "n k _"]]:
    """The rows of ``autodiff_rows`` by one vectorised pass, differentiable in the parameters where these are live.

    Args:
        network: The network.
        params: The parameters, at the values to differentiate at.
        inputs: A chunk of n examples.
        cotangents: Directions to pull back, each of the shape of the outputs.
        way: Whether cotangents are vectorised over too.

    Returns:
        For each parameter the rows of its d entries.

    Raises:
        RuntimeError: If an operation of the network cannot be vectorised; also NotImplementedError and ValueError.
        ValueError: If a rule of an operation is wrong, as far as can be seen.
    """
    if way == "one by one":
        raise ValueError("rules of vectorised differentiation are wrong for it, or missing")
    n = count(inputs)

    def has_examples(value: object) -> bool:
        return isinstance(value, Tensor) and value.ndim > 0 and value.shape[0] == n

    def rows(examples: list[Tensor], directions: Tensor) -> Params:
        parts = iter(examples)
        single = over_tensors(lambda value: next(parts).unsqueeze(0) if has_examples(value) else value, inputs)
        pull = vjp(lambda values: network(single, {**network.params, **values})[0], params)[1]
        if way == "at once":
            moved = vmap(lambda u: pull(u)[0])(directions)
            return {name: block.reshape(len(block), -1) for name, block in moved.items()}
        pulled = [pull(u)[0] for u in directions]
        return {name: torch.stack([moved[name].flatten() for moved in pulled]) for name in params}

    examples = [value for value in tensors(inputs) if has_examples(value)]
    found = vmap(rows, in_dims=(0, 1))(examples, cotangents.to(network.like))
    for name, block in found.items():
        if block.shape != (n, len(cotangents), params[name].numel()):
            raise ValueError(WRONG.format(name))
    return found


def right_way(network: Network, names: tuple[str, ...], inputs: Inputs) -> Way:
    """The fastest way whose rows are those of plain reverse mode, for fewer, as many and more examples than cotangents.

    Args:
        network: The network.
        names: The parameters.
        inputs: Two examples.

    Cost:
        Two forward and six backward passes of single examples; for each way tried, three vectorised passes over two.
    """
    params = {name: network.params[name] for name in names}
    outputs = network(inputs).detach()
    cotangents = torch.linspace(0.5, 1.5, 3 * outputs.numel()).view(3, *outputs.shape).to(outputs)
    with torch.inference_mode(False), torch.enable_grad(), twice_differentiable():
        truth = _one_by_one(network, params, inputs, cotangents)
        for way in WAYS[:-1]:
            try:
                for k in (1, 2, 3):
                    rows = vectorised_rows(network, params, inputs, cotangents[:k], way)
                    wrong = [name for name in names if not close(rows[name], truth[name][:, :k])]
                    if wrong:
                        raise ValueError(WRONG.format(wrong[0]))
            except torch.OutOfMemoryError:
                raise
            except (RuntimeError, ValueError) as reason:
                logger.info("rows of the Jacobian cannot be made %s: %s", way, reason_of(reason))
            else:
                return way
    return WAYS[-1]


def close(block: Tensor, expected: Tensor) -> bool:
    """Whether two ways to one derivative, of numbers of order one, agree up to rounding in their dtype."""
    return bool((block - expected).norm() <= max(1e-3, 10 * torch.finfo(block.dtype).eps) * expected.norm() + 1e-6)


def _one_by_one(network: Network, params: Params, inputs: Inputs, cotangents: Tensor) -> Params:
    """The rows by plain reverse mode."""
    options = {"retain_graph": True, "allow_unused": True, "materialize_grads": True}

    def rows(example: int) -> list[Float[Tensor, "k _"]]:
        values = {name: value.detach().requires_grad_() for name, value in params.items()}
        outputs = network(take(inputs, slice(example, example + 1)), {**network.params, **values})[0]
        if not outputs.requires_grad:  # none of them has a part in the outputs
            return [value.new_zeros(len(cotangents), value.numel()) for value in params.values()]
        at = list(values.values())
        directions = cotangents[:, example].to(outputs)
        pulled = [torch.autograd.grad(outputs, at, direction, **options) for direction in directions]
        return [torch.stack([grad.flatten() for grad in grads]) for grads in zip(*pulled, strict=True)]

    blocks = zip(*(rows(example) for example in range(count(inputs))), strict=True)
    return {name: torch.stack(block) for name, block in zip(params, blocks, strict=True)}
