"""What a posterior predicts as a module of plain PyTorch: for a server that has no lapwing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor, nn

from lapwing.ground.data.inputs import Inputs, count, take, tensors
from lapwing.ground.errors import ConfigError, check_option
from lapwing.jacobian.recording import recorded
from lapwing.predictive.distributions import Predictive

EXAMPLES = 11
"""Those a module is recorded with: a number that sizes of networks hardly ever are."""

TARGET_MOMENTS = ("mean", "std", "variance", "covariance")
"""Moments of targets, their noise included, where the predictive distribution has them."""

OUTPUT_MOMENTS = {f"outputs_{name}": name for name in TARGET_MOMENTS}
"""The same of what the network puts out, without noise: logits, log rates, or means."""

QUANTITIES = (
    *TARGET_MOMENTS,
    *("probs", "labels", "confidence", "entropy", "uncertainty", "aleatoric", "epistemic"),
    *OUTPUT_MOMENTS,
)
"""What a module can be asked for: attributes of predictions, and moments of their ``latent``."""


def quantities_asked(names: Sequence[str] | None, labels: bool) -> tuple[str, ...]:
    """The names of what a module is to give.

    Args:
        names: Of ``QUANTITIES``; ``None`` for the usual ones.
        labels: Whether targets are labels, which have probabilities.

    Raises:
        ConfigError: If they are none, one string, or there is no such quantity.
    """
    if names is None:
        return ("probs", "outputs_std") if labels else ("mean", "std")
    if isinstance(names, str):
        raise ConfigError("a sequence of names of what is predicted", f"the string {names!r}", f"outputs=({names!r},)")
    if not names:
        raise ConfigError("names of what is predicted", f"{names!r}", 'outputs=("mean", "std")')
    for name in names:
        check_option("each of outputs", name, QUANTITIES)
    return tuple(names)


def predictive_module(predict: Callable[[Any], Predictive], inputs: Inputs, names: Sequence[str]) -> nn.Module:
    """A module that gives what is predicted, by name.

    Args:
        predict: Without checks of numbers.
        inputs: Some examples.
        names: Of ``QUANTITIES``.
    """

    def quantities(given: Inputs) -> dict[str, Tensor]:
        prediction = predict(given)
        return {name: quantity(prediction, name) for name in names}

    some = take(inputs, torch.arange(EXAMPLES) % count(inputs))
    module = recorded(quantities, some)
    module.meta["outputs"] = tuple(names)
    module.meta["inputs"] = tuple(map(torch.zeros_like, tensors(some)))  # their shapes and types, for torch.export
    return module


def quantity(prediction: Predictive, name: str) -> Tensor:
    """One of ``QUANTITIES``.

    Raises:
        ConfigError: If the prediction has it not.
    """
    if name not in quantities_of(type(prediction)):
        there = ", ".join(quantities_of(type(prediction)))
        hint = f'outputs=("outputs_{name}",), of the outputs' if name in TARGET_MOMENTS else 'outputs=("outputs_std",)'
        raise ConfigError(f"outputs among {there}, of {type(prediction).__name__}", f"{name!r}", hint)
    if name in OUTPUT_MOMENTS:
        return getattr(prediction.latent, OUTPUT_MOMENTS[name])
    return getattr(prediction, name)


def quantities_of(kind: type[Predictive]) -> tuple[str, ...]:
    """Those that a kind of prediction has."""
    attributes = {*dir(kind), *(field.name for field in fields(kind))}
    return tuple(name for name in QUANTITIES if name in OUTPUT_MOMENTS or name in attributes)
