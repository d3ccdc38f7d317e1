"""What a posterior predicts as a module of plain PyTorch: for a server that has no lapwing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lapwing.ground.data.inputs import Inputs, count, take, tensors
from lapwing.ground.errors import ConfigError, check_option
from lapwing.jacobian.recording import recorded
from lapwing.predictive.distributions import Predictive

EXAMPLES = 11
"""Those a module is recorded with: a number that sizes of networks hardly ever are."""

OF_OUTPUTS = ("mean", "std", "variance", "covariance")
"""What targets and outputs both have: of targets with their noise, of outputs without."""

ANSWERS = (
    *OF_OUTPUTS,
    *("probs", "labels", "confidence", "entropy", "uncertainty", "aleatoric", "epistemic"),
)
"""What a module can be asked for: the attributes of predictions of these names."""


def check_answers(names: Sequence[str]) -> None:
    """Refuse what no prediction has.

    Raises:
        ConfigError: Naming what there is.
    """
    if not names or isinstance(names, str):
        raise ConfigError("names of what is predicted", f"{names!r}", 'outputs=("probs", "std")')
    for name in names:
        check_option("each of outputs", name, ANSWERS)


def served(predict: Callable[[Any], Predictive], inputs: Inputs, names: Sequence[str], noise: bool) -> nn.Module:
    """A module that gives what is predicted, by name.

    Args:
        predict: Without checks of numbers.
        inputs: Some examples.
        names: Of ``ANSWERS``.
        noise: Whether ``OF_OUTPUTS`` are those of targets, where these have them.
    """
    check_answers(names)

    def answers(given: Inputs) -> dict[str, Tensor]:
        prediction = predict(given)
        return {name: answer(prediction, name, noise) for name in names}

    some = take(inputs, torch.arange(EXAMPLES) % count(inputs))
    module = recorded(answers, some)
    module.meta["outputs"] = tuple(names)
    module.meta["inputs"] = tuple(map(torch.zeros_like, tensors(some)))  # their shapes and types, for torch.export
    return module


def answer(prediction: Predictive, name: str, noise: bool) -> Tensor:
    """One of ``ANSWERS``.

    Raises:
        ConfigError: If the prediction has it not.
    """
    of = prediction
    if name in OF_OUTPUTS and not (noise and hasattr(type(prediction), name)):
        of = prediction.latent
    found = getattr(of, name, None)
    if not isinstance(found, Tensor):
        there = [each for each in ANSWERS if each in OF_OUTPUTS or hasattr(type(prediction), each)]
        raise ConfigError(f"outputs among {', '.join(there)}", f"{name!r}", 'outputs=("mean", "std")')
    return found


def usual_answers(labels: bool) -> tuple[str, ...]:
    """What is asked for where nothing else is."""
    return ("probs", "std") if labels else ("mean", "std")
