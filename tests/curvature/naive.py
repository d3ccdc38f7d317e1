"""The slow, obvious way: Jacobians one output at a time from the module itself, and everything else from them."""

from __future__ import annotations

from functools import cache
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lapwing.ground.data.inputs import Inputs, take
from lapwing.ground.data.sources import Data
from lapwing.jacobian.layers.capture import Survey
from lapwing.jacobian.layers.convolution import ConvolutionGeometry
from lapwing.jacobian.model import Model
from lapwing.jacobian.network.network import Network
from lapwing.jacobian.network.output import output_of
from lapwing.jacobian.survey import find_layers
from lapwing.likelihoods import Likelihood
from tests.cases import Case, build


class Known(NamedTuple):
    case: Case
    network: Network
    survey: Survey
    data: Data
    outputs: Tensor
    jacobian: Tensor
    """Canonical, ``[n, *event, c, d]``."""

    @property
    def model(self) -> Model:
        return Model(self.network, self.survey, self.case.likelihood, self.data)


def surveyed(network: Network, likelihood: Likelihood, inputs: Inputs, targets: Tensor | None = None) -> Model:
    """The model of a network on some examples."""
    data = None if targets is None else Data([(inputs, targets)], like=network.like)
    return Model(network, find_layers(network, inputs), likelihood, data)


@cache
def known(name: str) -> Known:
    """A case with its network and its Jacobian, computed once a process."""
    case = build(name)
    network = Network.of(case.model)
    outputs, rows = jacobian(case.model, case.inputs)
    event = case.likelihood.canonical(outputs)
    rows = rows.movedim(case.likelihood.class_dim if case.likelihood.class_dim == 1 else -2, -2)
    data = Data([(case.inputs, case.targets)], like=network.like)
    return Known(case, network, find_layers(network, case.inputs), data, event, rows)


def call(model: nn.Module, inputs: Inputs) -> Tensor:
    """Outputs of the module in eval mode."""
    modes = [part.training for part in model.modules()]
    model.eval()
    if isinstance(inputs, dict):
        result: Any = model(**inputs)
    else:
        result = model(*inputs) if isinstance(inputs, tuple) else model(inputs)
    for part, mode in zip(model.modules(), modes, strict=True):
        part.training = mode
    return output_of(result)


def jacobian(model: nn.Module, inputs: Inputs) -> tuple[Tensor, Tensor]:
    """Outputs ``[n, *outputs]`` and Jacobian ``[n, *outputs, d]`` in the parameters that require a gradient."""
    params = [value for value in model.parameters() if value.requires_grad]
    outputs, rows = [], []
    for example in range(len(call(model, inputs))):
        single = call(model, take(inputs, slice(example, example + 1)))[0]
        outputs.append(single.detach())
        rows.append(torch.stack([gradient(entry, params) for entry in single.flatten()]).unflatten(0, single.shape))
    return torch.stack(outputs), torch.stack(rows)


def gradient(scalar: Tensor, params: list[nn.Parameter]) -> Tensor:
    grads = torch.autograd.grad(scalar, params, retain_graph=True, allow_unused=True, materialize_grads=True)
    return torch.cat([grad.flatten() for grad in grads])


def ggn(known: Known) -> Tensor:
    """``sum J_nᵀ B_n J_n`` over examples and event positions."""
    c, d = known.jacobian.shape[-2:]
    total = torch.zeros(d, d, dtype=torch.float64)
    hessians = known.case.likelihood.hessian(known.outputs, known.case.targets)
    for rows, hessian in zip(known.jacobian.reshape(-1, c, d), hessians.reshape(-1, c, c), strict=True):
        total += rows.mT @ hessian @ rows
    return total


def pulled_back(known: Known, cotangents: Tensor) -> Tensor:
    """``J_nᵀ u_nk`` as rows ``[n, k, d]``, for canonical cotangents ``[k, n, *event, c]``."""
    n, d = len(known.jacobian), known.jacobian.shape[-1]
    return torch.stack(
        [
            torch.stack([u.flatten() @ rows.reshape(-1, d) for u in cotangents[:, i]])
            for i, rows in enumerate(known.jacobian)
        ]
    ).view(n, len(cotangents), d)


def patches(image: Tensor, options: ConvolutionGeometry) -> Tensor:
    """``[n, p, i, t]``, pixel by pixel."""
    n, channels = image.shape[:2]
    sizes = image.shape[2:]
    width = channels // options.groups

    def pixel(example: int, channel: int, place: list[int]) -> float:
        inside = all(0 <= x < size for x, size in zip(place, sizes, strict=True))
        return float(image[(example, channel, *place)]) if inside else 0.0

    geometry = list(zip(sizes, options.kernel, options.stride, options.padding, options.dilation, strict=True))
    space = [(size + sum(pad) - d * (k - 1) - 1) // s + 1 for size, k, s, pad, d in geometry]
    taps = list(product(*(range(k) for k in options.kernel)))
    columns = [
        [
            [
                [
                    pixel(
                        example,
                        group * width + channel,
                        [
                            x * s - pad[0] + tap_x * d
                            for x, tap_x, (_, _, s, pad, d) in zip(position, tap, geometry, strict=True)
                        ],
                    )
                    for position in product(*(range(size) for size in space))
                ]
                for channel in range(width)
                for tap in taps
            ]
            for group in range(options.groups)
        ]
        for example in range(n)
    ]
    return torch.tensor(columns, dtype=torch.float64)
