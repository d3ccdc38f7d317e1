"""Weights whose scale has no effect, because a normalisation follows: found by trying, not by name."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from lapwing.ground import probes
from lapwing.ground.data.inputs import Inputs, InputsLike, checked, count, ordinary, over_tensors, place, take
from lapwing.ground.errors import DataError, UnsupportedError
from lapwing.ground.layout import Params
from lapwing.ground.precision import wide
from lapwing.jacobian.network.network import Network
from lapwing.jacobian.network.output import Output
from lapwing.jacobian.network.serving import call, serving
from lapwing.jacobian.network.unwrapping import unwrapped
from lapwing.priors import Layerwise

TOLERANCE = 1e-6
"""Relative change of the outputs that is rounding, or what a normalisation adds to its variance."""

TINY = 1e-18
"""What normalisations add to their variance while they are tried: their usual 1e-5 is not quite scale-invariant."""

SMALL = 1e-3
"""Parameters of smaller root mean square are tried with other values: the scale of a zero has no effect anywhere."""

FEWEST = 16
MOST = 256
"""Examples to try with, three a parameter: not fewer, where there are as many, and not more."""


def normalised(model: nn.Module, inputs: InputsLike, precision: float = 1.0, *, output: Output = None) -> Layerwise:
    """A prior with one precision for each group of normalised weights, and one for all other weights.

    Normalised weights v'' have no scale, ``g(v' + v'') = g(v' + c v'')`` for all c > 0. With precisions of their own,
    at their optimum, what the posterior predicts does not depend on c; with one precision for all weights it does
    (Antorán 2024, recommendation 2 and proposition 5).

    Args:
        model: The trained network; left exactly as it is.
        inputs: Inputs of some examples, a few dozen.
        precision: The precision all start from.
        output: Which part of what the network returns is its output: a key, an index or a function of it.

    Raises:
        DataError: If there are no inputs, they are not finite or not what the network takes, or there are no two for a
            normalisation over the batch.
        UnsupportedError: If no weight is normalised.

    Cost:
        A few forward passes of these examples for each parameter, in float64.

    Example:
        >>> net = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Tanh(), nn.Linear(4, 2))
        >>> normalised(net, torch.randn(20, 3)).parts
        (('0.weight', '0.bias'),)
    """
    network = Network.of(unwrapped(model, "normalised(model, x)"), output)
    parts = scale_invariant(network, checked(inputs, network.like))
    if not parts:
        raise UnsupportedError(
            "a network with weights that a normalisation leaves without a scale", "none", "Isotropic() or Layerwise()"
        )
    return Layerwise(precision, parts)


def scale_invariant(network: Network, inputs: Inputs) -> tuple[tuple[str, ...], ...]:
    """Groups of uncertain parameters whose common scale has no effect, in the order of the parameters.

    The network is taken as it was trained: normalisations use the statistics of the batch, and all else, dropout
    included, is as it is served. First every layer is scaled by itself: all of its parameters, and those that need no
    others. What is left is searched for sets across layers, such as all that feed the residual stream of a network
    that normalises within its branches: the k with entries 0 and 1 for which ``sum_p k_p J_p θ_p = 0``, found by linear
    programming, the largest parameters first, and then tried.

    Args:
        network: The network.
        inputs: Inputs of some examples.

    Raises:
        DataError: If there are no two examples for a normalisation over the batch.
    """
    trial = RescalingTrial(network, inputs)
    with torch.no_grad(), torch.inference_mode(False), as_trained(network.module):
        groups = list(_within_layers(network, trial))
        known = {name for group in groups for name in group}
        groups += _across_layers([name for name in network.names if name not in known], trial)
    order = {name: number for number, name in enumerate(network.names)}
    return tuple(sorted(groups, key=lambda group: order[group[0]]))


@final
class RescalingTrial:
    """A network in float64 with weights that are not zero, to see what scaling some of them does.

    Args:
        network: The network.
        inputs: Inputs of some examples.
    """

    def __init__(self, network: Network, inputs: Inputs) -> None:
        examples = min(max(3 * len(network.names), FEWEST), MOST)
        few = take(inputs, slice(0, min(count(inputs), examples)))
        self._network = network
        self._inputs = over_tensors(ordinary, place(few, wide(network.like)))
        averaging = any(hasattr(part, "running_mean") for part in network.module.modules())
        if averaging and count(few) < 2:
            raise DataError(
                "two examples or more, for a normalisation over the batch", f"{count(few)}", "a whole batch"
            )
        self._fixed = _in_double({**network.fixed, **network.buffers})
        self.params = _in_double(network.params)
        generator = torch.Generator().manual_seed(0)
        for name, value in self.params.items():
            noise = 0.1 * probes.gaussian(value.shape, like=value, generator=generator)
            if float(value.square().mean()) < SMALL**2:
                self.params[name] = noise

    def outputs(self, values: Params) -> Tensor:
        """Outputs at given values of the parameters, flat."""
        network = self._network
        fixed = {name: value.clone() for name, value in self._fixed.items()}
        outputs = call(network.module, {**fixed, **values}, self._inputs, tied=network.tied, output=network.output)
        return outputs.flatten()

    def unchanged(self, names: Collection[str]) -> bool:
        """Whether the outputs stay as they are when these parameters are scaled."""
        for c in (2.0, 0.3):
            scaled = {name: c * self.params[name] for name in names}
            if not self._moved(scaled) <= TOLERANCE:  # NaN too has moved
                return False
        return True

    def alive(self, names: Collection[str]) -> bool:
        """Whether the outputs change when these parameters take another direction."""
        generator = torch.Generator().manual_seed(1)
        turned: Params = {}
        for name in names:
            value = self.params[name]
            turned[name] = value * (1 + 0.5 * probes.gaussian(value.shape, like=value, generator=generator))
        return self._moved(turned) > TOLERANCE

    def slope(self, name: str) -> Float[Tensor, " m"]:
        """``J_p θ_p``: how the outputs begin to change when a parameter is scaled."""
        step = 1e-5
        value = self.params[name]
        up = self.outputs({**self.params, name: (1 + step) * value})
        down = self.outputs({**self.params, name: (1 - step) * value})
        return (up - down) / (2 * step)

    def _moved(self, changed: Params) -> float:
        """Relative change of the outputs."""
        moved = self.outputs({**self.params, **changed}) - self._base
        return float(torch.linalg.vector_norm(moved) / torch.linalg.vector_norm(self._base).clamp_min(1e-300))

    @cached_property
    def _base(self) -> Tensor:
        return self.outputs(self.params)


@contextmanager
def as_trained(module: nn.Module) -> Generator[None]:
    """The module with normalisations by the statistics of the batch, exact ones; restored whatever happens."""
    with serving(module):
        for part in module.modules():
            part.training = hasattr(part, "running_mean")
            if isinstance(getattr(part, "eps", None), float):
                part.eps = TINY  # type: ignore[assignment]
        yield


def _within_layers(network: Network, trial: RescalingTrial) -> Iterator[tuple[str, ...]]:
    """Layers that have no scale, or those of their parameters that have none."""
    for layer in network.layout.layers:
        group = tuple(name for name in layer if trial.unchanged((name,)))
        if len(group) < len(layer) and trial.unchanged(layer):
            group = layer
        if group and trial.alive(group):
            yield group


def _across_layers(names: list[str], trial: RescalingTrial) -> list[tuple[str, ...]]:
    """Sets of parameters of several layers that have no common scale."""
    if not names:
        return []
    slopes = torch.stack([trial.slope(name) for name in names], dim=1)
    _, sizes, rows = torch.linalg.svd(slopes, full_matrices=False)
    determined = rows[sizes > 1e-6 * sizes[0]].cpu().numpy()
    weights = np.array([float(trial.params[name].numel()) for name in names])
    widest = _vertex(-weights / weights.sum(), determined, np.zeros(len(names)), np.ones(len(names)))
    left = widest > 0.5
    groups: list[tuple[str, ...]] = []
    while left.any():
        first = int(left.argmax())
        lowest = np.eye(len(names))[first]
        smallest = _vertex(np.ones(len(names)), determined, lowest, left.astype(float)) > 0.5
        smallest[first] = True
        group = tuple(name for name, member in zip(names, smallest, strict=True) if member)
        if trial.unchanged(group) and trial.alive(group):
            groups.append(group)
        left &= ~smallest
    return groups


def _vertex(cost: np.ndarray, determined: np.ndarray, lowest: np.ndarray, highest: np.ndarray) -> np.ndarray:
    """The cheapest k between two bounds with no component that the outputs see; 0 where there is none."""
    from scipy.optimize import linprog  # half a second to import

    bounds = np.stack([lowest, highest], axis=1)
    found = linprog(cost, A_eq=determined, b_eq=np.zeros(len(determined)), bounds=bounds, method="highs")
    return np.zeros(len(cost)) if found.x is None else np.asarray(found.x)


def _in_double(values: Params) -> Params:
    return {name: wide(value) if value.is_floating_point() else value for name, value in values.items()}
