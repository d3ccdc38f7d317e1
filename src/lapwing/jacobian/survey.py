"""One look at a network before any curvature: which parameters have layer factors, and where the examples are.

Three examples are enough to find the axis of examples at every layer, to check the factors against automatic
differentiation, and to catch networks whose outputs are random or depend on the other examples of the batch.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import replace
from typing import TypeAlias

import torch
from torch import Tensor

from lapwing.ground.data.inputs import Inputs, count, take
from lapwing.ground.data.sources import Data
from lapwing.ground.precision import Precision, Words
from lapwing.jacobian.checks import check_depends, check_outputs, check_types, examples_apart, rounds_by_batch
from lapwing.jacobian.detached_parameters import warn_of_detached
from lapwing.jacobian.forward_pass import Pass
from lapwing.jacobian.layers.autodiff import close, right_way
from lapwing.jacobian.layers.base import Call, Layer, LayerKind
from lapwing.jacobian.layers.capture import Survey, captured, kind_of, kind_of_uses, origin, reorders
from lapwing.jacobian.model import Model
from lapwing.jacobian.network.network import Network
from lapwing.likelihoods import Likelihood

logger = logging.getLogger(__name__)

Use: TypeAlias = tuple[str | None, str | None, bool]
"""Weight and bias of a layer, and whether its outputs are added to something: see ``Call``."""


def surveyed(network: Network, likelihood: Likelihood, data: Data, precision: Words | None = None) -> Model:
    """The model of a network, surveyed on the first examples of the data; see ``first_pass``."""
    first = first_pass(network, data.first())
    head = makes_outputs(first.with_survey(first.survey, likelihood))
    survey = replace(first.survey, head=head)
    return Model(network, survey, likelihood, data, Precision.of(precision, network.like.device))


def find_layers(network: Network, inputs: Inputs) -> Survey:
    """The survey of ``first_pass``."""
    return first_pass(network, inputs).survey


def first_pass(network: Network, inputs: Inputs) -> Pass:
    """The forward pass of the first three examples of ``inputs``, with the survey of the network made by it.

    Args:
        network: The network.
        inputs: At least one example.

    Returns:
        The pass; its survey has the layers with factors, and the parameters without, which are logged.

    Raises:
        ConfigError: If the outputs do not depend on the uncertain weights.
        DataError: If the outputs are not finite.
        ShapeError: If the outputs have no axis of examples, or no axis of outputs.
        UnsupportedError: If the outputs are random, depend on the other examples of the batch, or have another type
            than the weights.

    Warns:
        NetworkWarning: If the outputs depend on an uncertain parameter that no derivative reaches.

    Cost:
        Three forward passes of two or three examples, three backward passes; two more where parameters have no factors;
        and what ``warn_of_detached`` takes where parameters have a gradient of zero.
    """
    three = probe(inputs, 3)
    two = probe(inputs, 2)
    with examples_apart(network, inputs):
        first = Pass.of(network, Survey((), (), torch.Size(), (0, 0)), three)
        fewer_outputs, fewer_calls = captured(network, two, first.params)
    check_depends(network, first.returned)
    check_types(network, first.returned, first.calls)

    # The same examples again, where nobody watches the layers: random outputs differ.
    with torch.enable_grad():
        again = network(three, first.params)
    check_outputs(first.returned.detach(), again.detach(), fewer_outputs.detach(), rounds_by_batch(network.module))
    warn_of_detached(network, three, again, first.params)

    # Layers whose factors are not what automatic differentiation says are left to it.
    layers = _layers(first.calls, fewer_calls)
    first = first.with_survey(_survey(network, layers, first))
    wrong = _disagreeing(first, again)
    if first.survey.reorders:
        turned = Pass.of(network, first.survey, take(three, torch.arange(2, -1, -1)))
        wrong |= _disagreeing(turned, turned.returned)
    if wrong:
        right = tuple(layer for layer in layers if not wrong & set(layer.names))
        first = first.with_survey(_survey(network, right, first))
    if not first.survey.without_factors:
        return first
    logger.info(
        "no layer factors for %s: using automatic differentiation there", ", ".join(first.survey.without_factors)
    )
    return first.with_survey(replace(first.survey, way=right_way(network, first.survey.without_factors, two)))


def probe(inputs: Inputs, size: int) -> Inputs:
    """The first examples, repeated where there are fewer than ``size``."""
    if count(inputs) == size:
        return inputs
    return take(inputs, torch.arange(size) % count(inputs))


def makes_outputs(forward: Pass) -> bool:
    """Whether the canonical outputs are those of a layer used once, the only uncertain one, position by position.

    Args:
        forward: Some examples in a surveyed network, without what is found here.

    Cost:
        A backward pass from the outputs to that layer, where there is one.
    """
    survey = forward.survey
    if survey.without_factors or forward.network.index is not None or len(survey.layers) != 1:
        return False
    if not kind_of(survey.layers[0]).by_output or len(forward.calls) != 1:
        return False
    (call,) = forward.calls
    if origin(forward.returned, (call.edge.node,)) is not call.edge.node:
        return False
    f = forward.outputs
    shape = forward.head.g.shape
    if shape[2:4] != (1, f.shape[-1]) or shape[3:].numel() != survey.output.numel():
        return False
    cotangent = torch.arange(f.numel(), dtype=torch.float32).sin_().to(f).view_as(f)
    (factor,) = forward.layer_factors(cotangent[None])
    return close(factor.g[:, 0, 0].mT, cotangent.view(len(f), -1, f.shape[-1]))


def _layers(calls: list[Call], fewer: list[Call]) -> tuple[Layer, ...]:
    """Layers whose every call tells the same story; parameters shared across different layers are left out.

    But for those of which ``capture.TIED`` knows a kind.

    Args:
        calls: The calls of a pass of three examples.
        fewer: Those of two.
    """
    axes: dict[Use, set[int | None]] = {}
    kinds: dict[Use, set[type[LayerKind]]] = {}
    for call, smaller in zip(calls, fewer, strict=False):
        use = (call.weight, call.bias, call.added)
        same = (smaller.weight, smaller.bias, smaller.added) == use
        axis = _example_axis(call.shape, smaller.shape) if same else None
        axes.setdefault(use, set()).add(axis)
        kinds.setdefault(use, set()).add(call.kind)
    owners = Counter(name for pair in {use[:2] for use in axes} for name in pair)
    layers: dict[tuple[str | None, str | None], Layer] = {}
    for (weight, bias, added), own in axes.items():
        kind = kind_of_uses(kinds[weight, bias, added])
        axis = own.pop() if len(own) == 1 else None
        if kind is None or axis is None:
            continue
        layer = Layer(kind.__name__, weight, bias, axis, added)
        if all(owners[name] == 1 for name in layer.names):
            layers.setdefault((weight, bias), layer)
    return tuple(layers.values())


def _example_axis(three: torch.Size, two: torch.Size) -> int | None:
    """The one axis that grew from 2 to 3 parts."""
    if len(three) != len(two):
        return None
    grown = [axis for axis in range(len(three)) if three[axis] != two[axis]]
    if len(grown) != 1:
        return None
    (axis,) = grown
    return axis if three[axis] * 2 == two[axis] * 3 else None


def _survey(network: Network, layers: tuple[Layer, ...], forward: Pass) -> Survey:
    """What is known of a network whose factors these layers have, by a pass of three examples."""
    known = {name for layer in layers for name in layer.names}
    others = tuple(name for name in network.names if name not in known)
    uses = [(kind_of(layer), call) for layer in layers for call in forward.calls if layer.owns(call)]
    examples = 3
    sizes = [kind.sizes(call, examples, _entries(network, call.weight)) for kind, call in uses]
    outputs = sum(each.outputs for each in sizes)
    inputs = max((each.inputs for each in sizes), default=0)
    matrix = max((each.matrix for each in sizes), default=0)
    rows = sum(network.params[name].numel() for name in others)
    floats = (outputs + 2 * matrix + rows, 3 * outputs + 2 * inputs)
    moved = reorders(forward.returned)
    return Survey(layers, others, forward.returned.shape[1:], floats, reorders=moved, matrix=matrix)


def _entries(network: Network, name: str | None) -> int:
    return 0 if name is None else network.params[name].numel()


def _disagreeing(forward: Pass, again: Tensor) -> set[str]:
    """Parameters whose factors, for some example alone, differ from its gradient by automatic differentiation.

    Args:
        forward: The examples, with the survey.
        again: Their outputs where nobody watched the layers, with their graph.
    """
    cotangent = torch.linspace(0.5, 1.5, forward.outputs[0].numel()).to(forward.outputs)
    cotangent = cotangent.view(forward.outputs.shape[1:])
    unchecked = forward.with_survey(replace(forward.survey, reorders=False))
    factors = list(unchecked.layer_factors(cotangent.expand_as(forward.outputs).unsqueeze(0)))
    names = [name for factor in factors for name in factor.names]
    if not names:
        return set()
    params = [forward.params[name] for name in names]
    wrong: set[str] = set()
    for example, outputs in enumerate(again):
        with torch.enable_grad():
            target = (outputs * cotangent).sum()
        grads = torch.autograd.grad(target, params, retain_graph=True, allow_unused=True, materialize_grads=True)
        expected = dict(zip(names, grads, strict=True))
        for factor in factors:
            truth = torch.cat([expected[name].flatten() for name in factor.names])
            found = factor.taken(slice(example, example + 1)).rows()[0, 0]
            tolerance = 1e-3 * truth.norm() + 1e-6 * cotangent.norm()
            if found.shape != truth.shape or not bool((found - truth).norm() <= tolerance):
                wrong.update(factor.names)
    return wrong
