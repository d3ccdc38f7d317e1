"""Outputs that keep their graph to the inputs, and how they move with the weights: for derivatives of predictions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.func import vmap

from lapwing.ground.data.inputs import Inputs, InputsLike, concatenated, count, over_tensors, take, tensors
from lapwing.ground.errors import UnsupportedError, check_bytes, reason_of
from lapwing.ground.tracing import traced
from lapwing.jacobian.forward_pass import Pass
from lapwing.jacobian.layers.autodiff import Way, right_way, vectorised_rows
from lapwing.jacobian.layers.base import jacobian_rows
from lapwing.jacobian.layers.capture import kind_of
from lapwing.jacobian.model import Model
from lapwing.jacobian.network.decompositions import twice_differentiable
from lapwing.likelihoods.base import identity_cotangents

ROWS = 2**32
"""Bytes that rows of the Jacobian with their graph may take (4 GiB)."""


@final
@dataclass(frozen=True, eq=False)
class LiveOutputs:
    """Some examples, t positions of each.

    Args:
        mean: Canonical outputs.
        rows: The rows of J.
    """

    mean: Float[Tensor, "n *event c"]
    rows: Float[Tensor, "n t c d"]


@final
@dataclass(frozen=True, eq=False)
class LiveFeatures:
    """The same of a layer that makes the outputs, where it alone is uncertain: ``J = I ⊗ aᵀ``.

    Args:
        mean: Canonical outputs.
        inputs: a, at each of m positions.
    """

    mean: Float[Tensor, "n *event c"]
    inputs: Float[Tensor, "m i"]


def live(inputs: InputsLike) -> bool:
    """Whether a derivative in some inputs is asked for."""
    if not torch.is_grad_enabled() or not isinstance(inputs, Tensor | Mapping | tuple):
        return False
    return any(value.requires_grad for value in tensors(inputs))


def live_features(model: Model, inputs: Inputs) -> LiveFeatures:
    """Outputs and features of a network of which one whole layer is uncertain, which makes the outputs.

    Args:
        model: The network and its likelihood.
        inputs: n examples.

    Cost:
        A forward pass.
    """
    forward = Pass.of(model.network, model.survey, inputs, model.likelihood, live=True)
    mean = model.likelihood.canonical(forward.returned)
    return LiveFeatures(mean, forward.head.by_position().columns[:, 0, :, 0])


def head_places(model: Model) -> Int[Tensor, "c i"]:
    """Place among the weights of that of each output and input of the layer that makes the outputs."""
    (layer,) = model.survey.layers
    network = model.network
    numbers = torch.arange(network.size, device=network.like.device)
    outputs = network.params[layer.names[0]].shape[0]
    return torch.cat([numbers[network.layout.slices[name]].view(outputs, -1) for name in layer.names], 1)


def live_rows(model: Model, inputs: Inputs, max_bytes: int = ROWS) -> LiveOutputs:
    """Outputs and rows of the Jacobian of all examples, differentiable in the inputs.

    Args:
        model: The network and its likelihood.
        inputs: n examples.
        max_bytes: Memory that the rows may take.

    Raises:
        TooLargeError: If they would take more.
        UnsupportedError: If an operation of the network cannot be vectorised, or is vectorised wrongly.

    Cost:
        A forward pass, a vectorised backward pass for every output, and ``n c d`` numbers with their graph.
    """
    needed = count(inputs) * model.width * model.network.layout.size * model.network.like.itemsize
    got = f"{count(inputs)} examples of {model.width:,} outputs and {model.network.layout.size:,} weights, which need"
    check_bytes("rows of the Jacobian", needed, max_bytes, got, "fewer inputs at a time, or weights=LastLayer()")
    if traced() and recorded_by_layers(model):
        return layer_rows(model, inputs)
    mean = model.likelihood.canonical(model.network(inputs))
    way = vectorised_way(model, inputs)
    cotangents = torch.cat(list(identity_cotangents(mean.detach())))
    directions = model.likelihood.returned(cotangents)
    network = model.network
    with twice_differentiable(live=True, any_number=traced()):
        try:
            found = vectorised_rows(network, network.params, inputs, directions, way)
        except (RuntimeError, ValueError) as reason:
            raise not_vectorised(reason_of(reason)) from reason
    rows = network.joined((((name,), block) for name, block in found.items()))
    return LiveOutputs(mean, rows.unflatten(1, (-1, mean.shape[-1])))


def recorded_by_layers(model: Model) -> bool:
    """Whether rows from layer factors are recorded for any number of examples."""
    return not model.survey.reorders and all(kind_of(layer).recorded for layer in model.survey.layers)


def layer_rows(model: Model, inputs: Inputs) -> LiveOutputs:
    """The same from layer factors, which are not differentiable: to be recorded.

    Args:
        model: The network and its likelihood.
        inputs: n examples.
    """
    forward = model.forward(inputs)
    mean = forward.outputs
    cotangents = torch.cat(list(identity_cotangents(mean)))
    rows = jacobian_rows(model.network, forward.factors(cotangents))
    return LiveOutputs(mean, rows.unflatten(1, (-1, mean.shape[-1])))


def drawn_outputs(model: Model, inputs: Inputs, weights: Float[Tensor, "s d"]) -> Float[Tensor, "s n *event c"]:
    """Canonical outputs of networks with other weights, all at once.

    Args:
        model: The network and its likelihood.
        inputs: n examples.
        weights: The uncertain weights of each network.

    Raises:
        UnsupportedError: If an operation of the network cannot be vectorised.
    """

    def outputs(own: Float[Tensor, " d"]) -> Tensor:
        return model.likelihood.canonical(model.network(inputs, model.network.with_weights(own)))

    with twice_differentiable(any_number=traced()):
        try:
            return vmap(outputs)(weights)
        except (RuntimeError, ValueError) as reason:
            raise not_vectorised(reason_of(reason)) from reason


def vectorised_way(model: Model, inputs: Inputs) -> Way:
    """How rows of all uncertain parameters are made at once; looked for once a network.

    Raises:
        UnsupportedError: If there is no such way.
    """
    network = model.network
    if network.vectorised is None:
        alone = over_tensors(lambda value: value.detach() if isinstance(value, Tensor) else value, inputs)
        first = take(alone, slice(2))
        two = first if count(first) > 1 else concatenated([first, first])
        network.vectorised = right_way(network, network.names, two)
    if network.vectorised == "one by one":
        raise not_vectorised("one that is computed example by example")
    return network.vectorised


def not_vectorised(got: str) -> UnsupportedError:
    """What is said of a network whose rows cannot be made of all examples at once."""
    return UnsupportedError(
        "a network that torch.func.vmap vectorises, to differentiate what is predicted in the inputs",
        got,
        "weights=LastLayer(), whose features are differentiated as they are, or torch.no_grad()",
    )
