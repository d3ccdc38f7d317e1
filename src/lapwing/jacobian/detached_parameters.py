"""Parameters that move the outputs although no derivative reaches them: what is fitted would take them as certain."""

from __future__ import annotations

import torch
from torch import Tensor

from lapwing.ground import probes
from lapwing.ground.data.inputs import Inputs
from lapwing.ground.errors import NetworkWarning, warn
from lapwing.ground.layout import Params
from lapwing.jacobian.network.network import Network

TRIED = 16
"""Most parameters that are moved one by one."""

NAMED = 5
"""Most that a warning names."""

ROUNDING = 100
"""A difference of the outputs of fewer units in their last place than this is rounding."""


def warn_of_detached(network: Network, inputs: Inputs, outputs: Tensor, params: Params) -> None:
    """Warns of uncertain parameters whose Jacobian is zero for every example here, and that the outputs depend on.

    A zero Jacobian alone is no mistake: units may be dead, a weight may have no part in the outputs. So parameters
    whose gradient is exactly zero are moved a little, to and fro, first all of them together: a derivative is missing
    where the outputs follow. What is even about the trained weights, or follows in higher order alone, does not count.

    Args:
        network: The network.
        inputs: Some examples.
        outputs: The network's outputs for them, with their graph.
        params: The leaves of that graph.

    Warns:
        NetworkWarning: Naming the parameters.

    Cost:
        A backward pass over the examples; where a gradient is zero, two forward passes for all such parameters together
        and, if the outputs follow, two for each of the first ``TRIED``.
    """
    weighting = torch.arange(1, outputs.numel() + 1, device=outputs.device).sin().to(outputs).view_as(outputs)
    with torch.enable_grad():
        target = (outputs * weighting).sum()
    grads = torch.autograd.grad(target, list(params.values()), retain_graph=True, allow_unused=True)
    silent = [name for name, grad in zip(params, grads, strict=True) if grad is None or not bool(grad.any())]
    if not silent or not follow(network, inputs, silent):
        return
    hidden = [name for name in silent[:TRIED] if follow(network, inputs, [name])]
    named = ", ".join(hidden[:NAMED]) or f"some of {len(silent)} parameters"
    if len(hidden) > NAMED:
        named += f" and {len(hidden) - NAMED} more"
    if len(silent) > TRIED:
        named += f", perhaps on some of {len(silent) - TRIED} more that were not tried,"
    warn(
        f"the outputs depend on {named} and no derivative reaches them, as behind detach(), torch.no_grad(), or a "
        "function that computes its gradient by itself: they count as known, and variances are too small if they are "
        "not. Try requires_grad_(False) on them or weights=Names(...) if they are, or a forward pass without what "
        "hides them",
        NetworkWarning,
    )


def follow(network: Network, inputs: Inputs, names: list[str]) -> bool:
    """Whether the outputs change to first order when some parameters move, as a central difference shows it."""
    step = torch.finfo(network.like.dtype).eps ** (1 / 3)
    generator = torch.Generator().manual_seed(0)
    moves: Params = {}
    for name in names:
        value = network.params[name]
        size = float(value.square().mean().sqrt()) or 1.0
        moves[name] = step * size * probes.rademacher(value.shape, like=value, generator=generator)
    with torch.no_grad():
        up = network(inputs, {name: value + moves.get(name, 0.0) for name, value in network.params.items()})
        down = network(inputs, {name: value - moves.get(name, 0.0) for name, value in network.params.items()})
    rounding = ROUNDING * torch.finfo(up.dtype).eps * float(up.abs().max())
    return float((up - down).abs().max()) > rounding
