"""One look at a network before any curvature: which parameters have layer factors, and where the examples are.

Three examples are enough to find the axis of examples at every layer, to check the factors against automatic
differentiation, and to catch networks whose outputs are random or depend on the other examples of the batch.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from math import prod

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from lapwing.ground.data.inputs import Inputs, count, take
from lapwing.ground.data.sources import Data, Source, Unpack
from lapwing.ground.distributed import several
from lapwing.ground.errors import ConfigError, DataError, LapwingError, ShapeError, UnsupportedError, reason_of
from lapwing.ground.layout import Params
from lapwing.jacobian.hidden import warn_of_hidden
from lapwing.jacobian.layers.capture import NORMS, Call, Layer, Survey, captured, history, leaves, origin
from lapwing.jacobian.layers.loose import close, right_way
from lapwing.jacobian.model import Model, Pass
from lapwing.jacobian.network.network import Network, like_of
from lapwing.likelihoods import Likelihood

logger = logging.getLogger(__name__)

ROUNDED = 0.05
"""Share of the largest output by which rounding to 8 bits in several layers may move one."""

WHOLE = (
    "a module that holds x and the edges as buffers and takes the numbers of nodes: forward(self, nodes) returns "
    "self.network(self.x, self.edges)[nodes]"
)
"""What a network whose examples are the nodes of one graph can be wrapped in."""


def probe(inputs: Inputs, size: int) -> Inputs:
    """The first examples, repeated where there are fewer than ``size``."""
    return take(inputs, torch.arange(size) % count(inputs)) if size != count(inputs) else inputs


def surveyed(network: Network, likelihood: Likelihood, data: Data) -> Model:
    """The model of a network, surveyed on the first examples of the data; see ``first_pass``."""
    seen = first_pass(network, data.first())
    head = makes_outputs(seen.knowing(seen.survey, likelihood))
    return Model(network, replace(seen.survey, head=head), likelihood, data)


def makes_outputs(forward: Pass) -> bool:
    """Whether the canonical outputs are those of a layer used once, the only uncertain one, position by position.

    Args:
        forward: Some examples in a surveyed network, without what is found here.

    Cost:
        A backward pass from the outputs to that layer, where there is one.
    """
    network, survey = forward.network, forward.survey
    if survey.loose or network.index is not None or len(survey.layers) != 1:
        return False
    outputs, calls = forward.watched
    if survey.layers[0].kind not in ("linear", "conv") or len(calls) != 1:
        return False
    if origin(outputs, (calls[0].edge.node,)) is not calls[0].edge.node:
        return False
    f, made = forward.outputs, forward.head.g.shape
    if made[2:4] != (1, f.shape[-1]) or made[3:].numel() != survey.output.numel():
        return False
    cotangent = torch.arange(f.numel(), dtype=torch.float32).sin_().to(f).view_as(f)
    (factor,) = forward.layer_factors(cotangent[None])
    return close(factor.g[:, 0, 0].mT, cotangent.view(len(f), -1, f.shape[-1]))


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
        and what ``warn_of_hidden`` takes where parameters have a gradient of zero.
    """
    params = leaves(network)
    three = probe(inputs, 3)
    seen = Pass(network, Survey((), (), torch.Size(), (0, 0)), three)
    with examples_apart(network, inputs):
        outputs, calls = seen.watched
        two, fewer = captured(network, probe(inputs, 2), params)
    if not outputs.requires_grad:
        raise ConfigError(
            "uncertain weights that the outputs depend on",
            f"{', '.join(network.names[:5])}, in which they have no derivative",
            "weights=Names(...) or LastLayer() with others, or requires_grad_(True) on these",
        )
    _check_types(network, outputs, calls)
    with torch.enable_grad():
        plain = network(three, params)
    _check_outputs(outputs.detach(), plain.detach(), two.detach(), coarse(network.module))
    warn_of_hidden(network, three, plain, params)
    layers = _layers(calls, fewer)
    survey = _survey(network, layers, calls, outputs)
    wrong = _disagreeing(seen.knowing(survey), plain, params)
    if wrong:
        survey = _survey(network, tuple(x for x in layers if not wrong & set(x.names)), calls, outputs)
    if survey.loose:
        logger.info("no layer factors for %s: using automatic differentiation there", ", ".join(survey.loose))
        survey = replace(survey, way=right_way(network, survey.loose, probe(inputs, 2)))
    return seen.knowing(survey)


@contextmanager
def examples_apart(network: Network, inputs: Inputs) -> Generator[None]:
    """A call of the network with a few of the examples; what fails there, and not with all of them, is explained.

    Args:
        network: The network.
        inputs: The examples there are, such as the nodes of a graph and its edges.

    Raises:
        UnsupportedError: If the network takes all examples and not a few of them.
    """
    try:
        yield
    except LapwingError:
        raise
    except Exception as error:
        try:
            with torch.no_grad():
                network(inputs)
        except Exception:
            raise error from None
        failed = f"{type(error).__name__}, {reason_of(error):.120}"
        raise UnsupportedError(
            "a network that takes any of the examples without the others",
            f"one that takes all {count(inputs)} and fails on the first few: {failed}",
            f"{WHOLE}, if they are nodes of a graph, or an axis of graphs in front of all inputs",
        ) from error


def _check_types(network: Network, outputs: Tensor, calls: list[Call]) -> None:
    """Products go from the weights through the layers to the outputs and back: all have one type, and a derivative."""
    found = {outputs.dtype, *(value.dtype for value in network.params.values()), *(call.dtype for call in calls)}
    if len(found) > 1:
        raise UnsupportedError(
            "uncertain weights, layers and outputs of one type",
            " and ".join(sorted(str(each).removeprefix("torch.") for each in found)),
            "model.float() before the fit, a forward pass without torch.autocast, or weights=LastLayer() where the "
            "head has the type of the outputs",
        )
    if any(node.name().endswith("NotImplemented") for node in history(outputs)):
        # Backward passes end at this mark: what lies before it would get no curvature, with a warning at most.
        raise UnsupportedError(
            "operations with a gradient between the uncertain weights and the outputs",
            "one without, such as a layer in 8 bits",
            "weights=LastLayer(), or the layers before they were quantised",
        )


def coarse(module: nn.Module) -> bool:
    """Whether a layer rounds its inputs to 8 bits by the largest of the batch, as dynamic quantisation of PyTorch does.

    Its outputs depend on the other examples by that rounding.
    """
    return any("quantized.dynamic" in type(part).__module__ for part in module.modules())


def _check_outputs(outputs: Tensor, again: Tensor, fewer: Tensor, rounded: bool) -> None:
    """Outputs of three examples, of the same again, and of the first two of them, which may be rounded by the batch."""
    if outputs.ndim < 2 or (len(outputs), len(fewer)) != (3, 2):
        raise ShapeError(
            "outputs of shape [n, ..., c] for n inputs",
            f"{list(outputs.shape)} for the first 3",
            "unsqueeze(-1) for a single output, or a leading axis of examples",
        )
    if not bool(torch.isfinite(outputs).all()):
        raise DataError(
            "finite outputs",
            f"{int((~torch.isfinite(outputs)).sum())} NaN or infinite values for the first 3 inputs",
            "checking the inputs and the weights of the network",
        )
    if not torch.allclose(again, outputs, rtol=1e-3, atol=1e-5 * float(outputs.abs().max())):
        raise UnsupportedError(
            "a network that gives the same outputs twice in eval mode",
            "different outputs for the same inputs",
            "nn.Dropout instead of functional dropout that ignores eval()",
        )
    share = ROUNDED if rounded else 1e-3
    if not torch.allclose(fewer, outputs[:2], rtol=1e-2, atol=share * float(outputs.abs().max() + 1e-6)):
        raise UnsupportedError(
            "outputs that depend on one example each",
            "an output that changes with the other examples of the batch",
            f"BatchNorm with running statistics, a batch of size one, or, for nodes of a graph, {WHOLE}",
        )


def _layers(calls: list[Call], fewer: list[Call]) -> tuple[Layer, ...]:
    """Layers whose every call tells the same story; parameters shared across different layers are left out."""
    found: dict[tuple[str | None, str | None], Layer | None] = {}
    for call, smaller in zip(calls, fewer, strict=False):
        key = (call.weight, call.bias)
        axis = _example_axis(call.shape, smaller.shape) if (smaller.weight, smaller.bias) == key else None
        layer = None if axis is None else Layer(call.kind, call.weight, call.bias, axis)
        found[key] = layer if found.get(key, layer) == layer else None
    uses = Counter(name for key in found for name in key)
    return tuple(x for x in found.values() if x is not None and all(uses[name] == 1 for name in x.names))


def _example_axis(three: torch.Size, two: torch.Size) -> int | None:
    """The one axis that grew from 2 to 3 parts."""
    if len(three) != len(two):
        return None
    moved = [axis for axis, (a, b) in enumerate(zip(three, two, strict=True)) if a != b]
    return moved[0] if len(moved) == 1 and three[moved[0]] * 2 == two[moved[0]] * 3 else None


def _survey(network: Network, layers: tuple[Layer, ...], calls: list[Call], outputs: Tensor) -> Survey:
    known = {name for layer in layers for name in layer.names}
    loose = tuple(name for name in network.names if name not in known)
    own = [call for call in calls if any(layer.owns(call) for layer in layers)]
    return Survey(layers, loose, outputs.shape[1:], _floats(network, own, loose))


def _floats(network: Network, calls: list[Call], loose: tuple[str, ...]) -> tuple[int, int]:
    """Numbers one of three examples occupies: a cotangent's gradients and Jacobian, and the activations and inputs."""
    outputs = sum(prod(call.shape) // 3 for call in calls if call.kind not in NORMS)
    columns, matrices = [0], [0]
    for call in calls:
        if call.options is None:
            columns.append(call.input.numel() // 3)
        else:
            columns.append(call.input.shape[1] * prod(call.options.kernel) * prod(call.shape[2:]))
            matrices.append(network.params[call.weight].numel() if call.weight is not None else 0)
    rows = sum(network.params[name].numel() for name in loose)
    return outputs + 2 * max(matrices) + rows, 3 * outputs + 2 * max(columns)


def _disagreeing(full: Pass, plain: Tensor, params: Params) -> set[str]:
    """Parameters whose factors, for one example alone, differ from its gradient by automatic differentiation.

    Args:
        full: The examples, with the survey.
        plain: Their outputs where nobody watched the layers.
        params: The parameters of those.
    """
    cotangent = torch.linspace(0.5, 1.5, full.outputs[0].numel()).to(full.outputs).view(full.outputs.shape[1:])
    factors = list(full.layer_factors(cotangent.expand_as(full.outputs).unsqueeze(0)))
    names = [name for factor in factors for name in factor.names]
    if not names:
        return set()
    with torch.enable_grad():
        target = (plain[1] * cotangent).sum()
    grads = torch.autograd.grad(target, [params[name] for name in names], allow_unused=True, materialize_grads=True)
    expected = dict(zip(names, grads, strict=True))
    wrong: set[str] = set()
    for factor in factors:
        truth = torch.cat([expected[name].flatten() for name in factor.names])
        error = (factor.taken(slice(1, 2)).rows()[0, 0] - truth).norm()
        if not bool(error <= 1e-3 * truth.norm() + 1e-6 * cotangent.norm()):
            wrong.update(factor.names)
    return wrong


def opened(model: nn.Module, data: Source, call: str, *, unpack: Unpack | None = None) -> tuple[nn.Module, Data]:
    """The network inside ``model``, and the data as tensors of its kind.

    Args:
        model: What the user passed as the model.
        data: What the user passed as the data.
        call: How it is passed, for the message.
        unpack: Makes ``(inputs, targets)`` of a batch.

    Raises:
        ConfigError: If the model is no module, or its weights have no values yet.
        UnsupportedError: If its forward pass writes to them.
    """
    module = unwrapped(model, call)
    like = like_of(module)
    like = torch.zeros(()) if like is None else like
    return module, Data(data, like=like, unpack=unpack, shared=several())


def unwrapped(model: nn.Module, call: str = "the trained nn.Module") -> nn.Module:
    """The network inside ``DataParallel``, ``DistributedDataParallel``, ``checkpoint_wrapper`` and ``torch.compile``.

    They may be around each other in any order.

    Raises:
        ConfigError: If the model is no module; see ``check_usable`` too.
    """
    if not isinstance(model, nn.Module):
        got = f"the class {model.__name__}" if isinstance(model, type) else f"a {type(model).__name__}"
        raise ConfigError("a network that is an nn.Module", got, call)
    if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        return unwrapped(model.module, call)
    for name in ("_orig_mod", "_checkpoint_wrapped_module"):
        inner = getattr(model, name, None)
        if isinstance(inner, nn.Module):
            return unwrapped(inner, call)
    check_usable(model)
    return model


def check_usable(module: nn.Module) -> None:
    """Refuses a module whose weights have no values yet, or that writes to them.

    Raises:
        ConfigError: If a tensor is uninitialised or on the meta device.
        UnsupportedError: If an embedding rescales its rows as they are looked up.
    """
    for name, value in chain(module.named_parameters(), module.named_buffers()):
        if is_lazy(value):
            raise ConfigError(
                "weights that have a shape",
                f"{name!r} of a lazy module that has seen no input",
                "model(x) once on some inputs, and training, before the fit",
            )
        if value.is_meta:
            raise ConfigError(
                "weights that have values",
                f"{name!r} on the meta device",
                "model.to_empty(device=...) with load_state_dict, or loading the network without device='meta'",
            )
    for name, part in module.named_modules():
        if isinstance(part, nn.Embedding | nn.EmbeddingBag) and part.max_norm is not None:
            own = f"model.{name}" if name else "model"
            raise UnsupportedError(
                "a network whose forward pass leaves its weights alone",
                f"{name!r} with max_norm={part.max_norm}, which rescales the rows it looks up where they are",
                f"{own}.weight.data.renorm_({part.norm_type}, 0, {part.max_norm}) and {own}.max_norm = None, after "
                "which the outputs are the same",
            )
