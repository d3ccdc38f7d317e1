"""Priors from what JSON keeps of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from lapwing.ground.errors import ConfigError
from lapwing.priors.base import Prior
from lapwing.priors.diagonal import DiagonalPrior
from lapwing.priors.gprior import GPrior
from lapwing.priors.grouped import Isotropic, Layerwise


def prior_from_state(state: Mapping[str, Any]) -> Prior:
    """The prior that gave a ``state``.

    Args:
        state: What ``Prior.state`` returned, directly or through JSON.

    Raises:
        ConfigError: If it names no prior of this module.

    Example:
        >>> prior_from_state(Layerwise((1.0, 2.0)).state())
        Layerwise(precision=(1.0, 2.0), parts=None)
    """
    kinds: dict[str, Callable[..., Prior]] = {
        "Isotropic": Isotropic,
        "Layerwise": lambda precision, parts=None: Layerwise(_tuples(precision), _tuples(parts)),
        "DiagonalPrior": lambda precision: DiagonalPrior(_tensor(precision)),
        "GPrior": lambda precision, samples, floor, scale: GPrior(precision, samples, floor, _tensor(scale)),
    }
    options = {name: value for name, value in state.items() if name != "kind"}
    if state.get("kind") not in kinds or "precision" not in options:
        raise ConfigError(f"the state of one of {', '.join(kinds)}", f"{dict(state)}", "prior.state()")
    return kinds[state["kind"]](**options)


def _tuples(value: Any) -> Any:
    """JSON's lists as the tuples they were."""
    return tuple(_tuples(part) for part in value) if isinstance(value, list | tuple) else value


def _tensor(value: Any) -> Any:
    """JSON's list of numbers as the tensor it was."""
    return torch.tensor(value, dtype=torch.float64) if isinstance(value, list) else value
