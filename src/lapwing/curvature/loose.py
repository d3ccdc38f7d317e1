"""Jacobian rows of parameters without layer factors, by automatic differentiation one example at a time."""

from __future__ import annotations

import logging

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import vjp, vmap

from lapwing.curvature.network import Network, twice_differentiable
from lapwing.data import count, over_tensors, take, tensors
from lapwing.types import Inputs, Params

logger = logging.getLogger(__name__)


def loose_rows(
    network: Network, names: tuple[str, ...], inputs: Inputs, cotangents: Float[Tensor, "k n ..."]
) -> dict[str, Float[Tensor, "n k _"]]:
    """Explicit Jacobian rows of some parameters for every example of a chunk.

    Args:
        network: The network.
        names: The parameters.
        inputs: A chunk of n examples.
        cotangents: Directions to pull back, each of the shape of the outputs.

    Returns:
        For each parameter the rows of its d entries.

    Cost:
        One vectorised pass over the chunk; n forward and n k backward passes of single examples where an operation of
        the network cannot be vectorised (which is logged).
    """
    if not names:
        return {}
    params = {name: network.params[name] for name in names}
    with torch.inference_mode(False), torch.enable_grad(), twice_differentiable():
        try:
            return vectorised_rows(network, params, inputs, cotangents)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, ValueError) as reason:
            logger.info("cannot vectorise over examples (%s): going through them one by one", reason)
            return _one_by_one(network, params, inputs, cotangents)


def vectorised_rows(
    network: Network, params: Params, inputs: Inputs, cotangents: Float[Tensor, "k n ..."]
) -> dict[str, Float[Tensor, "n k _"]]:
    """The rows of ``loose_rows`` by one vectorised pass, differentiable in the parameters where these are live.

    Args:
        network: The network.
        params: The parameters, at the values to differentiate at.
        inputs: A chunk of n examples.
        cotangents: Directions to pull back, each of the shape of the outputs.

    Returns:
        For each parameter the rows of its d entries.

    Raises:
        RuntimeError: If an operation of the network cannot be vectorised; also NotImplementedError and ValueError.
    """
    n = count(inputs)

    def has_examples(value: object) -> bool:
        return isinstance(value, Tensor) and value.ndim > 0 and len(value) == n

    def rows(examples: list[Tensor], directions: Tensor) -> Params:
        parts = iter(examples)
        single = over_tensors(lambda value: next(parts).unsqueeze(0) if has_examples(value) else value, inputs)
        pull = vjp(lambda values: network(single, {**network.params, **values})[0], params)[1]
        return {name: block.flatten(1) for name, block in vmap(lambda u: pull(u)[0])(directions).items()}

    examples = [value for value in tensors(inputs) if has_examples(value)]
    return vmap(rows, in_dims=(0, 1))(examples, cotangents.to(network.like))


def _one_by_one(network: Network, params: Params, inputs: Inputs, cotangents: Tensor) -> Params:
    rows: dict[str, list[Tensor]] = {name: [] for name in params}
    for example in range(count(inputs)):
        values = {name: value.detach().requires_grad_() for name, value in params.items()}
        outputs = network(take(inputs, slice(example, example + 1)), {**network.params, **values})[0]
        grads = [
            torch.autograd.grad(
                outputs,
                list(values.values()),
                direction[example].to(outputs),
                retain_graph=True,
                allow_unused=True,
                materialize_grads=True,
            )
            for direction in cotangents
        ]
        for position, name in enumerate(values):
            rows[name].append(torch.stack([grad[position].flatten() for grad in grads]))
    return {name: torch.stack(block) for name, block in rows.items()}
