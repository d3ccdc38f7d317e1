"""Zero-mean Gaussian priors over the weights, told apart by how many precisions they have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from lapwing.ground.errors import ConfigError
from lapwing.priors.base import Isotropic, Prior
from lapwing.priors.diagonal import DiagonalPrior, GPrior
from lapwing.priors.layerwise import Layerwise

__all__ = ["DiagonalPrior", "GPrior", "Isotropic", "Layerwise", "Prior", "prior_from_state"]


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
    kinds = {kind.__name__: kind for kind in (Isotropic, Layerwise, DiagonalPrior, GPrior)}
    kind = kinds.get(state.get("kind", ""))
    if kind is None or "precision" not in state:
        raise ConfigError(f"the state of one of {', '.join(kinds)}", f"{dict(state)}", "prior.state()")
    restored = _tuples if kind is Layerwise else _tensor
    return kind(**{name: restored(value) for name, value in state.items() if name != "kind"})


def _tuples(value: Any) -> Any:
    """JSON's lists as the tuples they were."""
    return tuple(_tuples(part) for part in value) if isinstance(value, list) else value


def _tensor(value: Any) -> Any:
    """JSON's list of numbers as the tensor it was."""
    return torch.tensor(value, dtype=torch.float64) if isinstance(value, list) else value
