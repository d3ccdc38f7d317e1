"""Priors with one precision for all weights, or one a layer."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lapwing.ground.errors import ConfigError
from lapwing.ground.tree import Layout
from lapwing.priors.base import Prior, check_length, checked, checked_one, expanded


@final
@dataclass(frozen=True)
class Isotropic(Prior):
    """One precision for all weights, A = λ I.

    Args:
        precision: λ = 1 / prior variance, in 1 / (units of a weight)².

    Raises:
        ConfigError: If it is not a positive finite number.

    Example:
        >>> Isotropic.from_weight_decay(5e-4, n=50_000)
        Isotropic(precision=25.0)
    """

    precision: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "precision", checked_one(self.precision, "Isotropic(1.0)"))

    @classmethod
    def from_weight_decay(cls, weight_decay: float, n: int) -> Isotropic:
        """The prior that a weight decay stands for: λ = n · weight_decay.

        For a training loss (1/n) Σ_i nll_i + (weight_decay / 2) |θ|², the mean over n examples: its minimum
        is then the maximum of likelihood × prior. ``torch.optim.SGD(weight_decay=)`` adds this gradient.

        Args:
            weight_decay: Coefficient of |θ|² / 2 beside the mean loss; positive.
            n: Number of training examples.

        Raises:
            ConfigError: If either is not positive.
        """
        if not (weight_decay > 0 and math.isfinite(weight_decay) and n > 0):
            raise ConfigError(
                "a positive weight_decay and a positive number of examples n",
                f"weight_decay={weight_decay}, n={n}",
                "Isotropic(1.0) and lapwing.tune for a network trained without weight decay",
            )
        return cls(weight_decay * n)

    def groups(self, layout: Layout) -> tuple[Int[Tensor, " d"], int]:
        """All weights in group 0; see ``Prior.groups``."""
        return torch.zeros(layout.size, dtype=torch.long), 1

    def precisions(self, layout: Layout) -> Float[Tensor, " g"]:
        """The one precision; see ``Prior.precisions``."""
        return torch.tensor([self.precision], dtype=torch.float64)

    def with_precisions(self, precisions: Float[Tensor, " g"]) -> Isotropic:
        """The prior with another precision ``[1]``; see ``Prior.with_precisions``."""
        check_length(precisions, 1, "one precision for all weights")
        return Isotropic(float(precisions))


@final
@dataclass(frozen=True)
class Layerwise(Prior):
    """One precision a layer, in the order of ``Layout.layers``, or one for each part of the network that you name.

    Args:
        precision: One number for every part, or one a part, in 1 / (units of a weight)².
        parts: Names of the parameters in each part; all parameters that are in none share the last precision.
            ``None`` takes the layers. ``normalised`` finds the parts whose scale has no effect.

    Raises:
        ConfigError: If a precision is not a positive finite number, or a parameter is in two parts.

    Example:
        >>> layout = Layout(("fc.weight", "fc.bias", "out.weight"), ((2,), (1,), (2,)))
        >>> Layerwise((1.0, 4.0)).diagonal(layout, torch.zeros(1))
        tensor([1., 1., 1., 4., 4.])
        >>> Layerwise((1.0, 4.0), parts=(("fc.weight",),)).diagonal(layout, torch.zeros(1))
        tensor([1., 1., 4., 4., 4.])
    """

    precision: float | tuple[float, ...] = 1.0
    parts: tuple[tuple[str, ...], ...] | None = None

    def __post_init__(self) -> None:
        values = checked(self.precision, "Layerwise(1.0)").tolist()
        object.__setattr__(self, "precision", tuple(values) if isinstance(values, list) else values)
        if self.parts is None:
            return
        given: Any = self.parts
        if isinstance(given, str) or any(isinstance(part, str) for part in given):
            raise ConfigError("parts that are lists of names", f"{given!r:.60}", "parts=(('0.weight', '0.bias'),)")
        object.__setattr__(self, "parts", tuple(tuple(part) for part in given))
        names = [name for part in given for name in part]
        if len(set(names)) < len(names) or not (given and all(given)):
            raise ConfigError("parts that are not empty and share no parameter", f"{given}", "each name once")

    def check_names(self, names: Collection[str]) -> None:
        """See ``Prior.check_names``."""
        for name in (name for part in self.parts or () for name in part):
            if name not in names:
                near = get_close_matches(name, names, 3) or sorted(names)[:5]
                raise ConfigError(f"parts of the network's {len(names)} parameters", f"{name!r}", f"one of {near}")

    def groups(self, layout: Layout) -> tuple[Int[Tensor, " d"], int]:
        """Weights grouped by part; see ``Prior.groups``. Parts that have no uncertain weight are left out."""
        if self.parts is None:
            return layout.layer_index, len(layout.layers)
        named = {name: number for number, part in enumerate(self.parts) for name in part}
        numbers = [named.get(name, len(self.parts)) for name in layout.names]
        present = {number: place for place, number in enumerate(sorted(set(numbers)))}
        index = torch.tensor([present[number] for number in numbers]).repeat_interleave(torch.tensor(layout.sizes))
        return index, len(present)

    def precisions(self, layout: Layout) -> Float[Tensor, " g"]:
        """One precision a part; see ``Prior.precisions``."""
        values = torch.tensor(self.precision, dtype=torch.float64)
        count, what = self.groups(layout)[1], "layers" if self.parts is None else "parts"
        return expanded(values, count, f"one precision for each of {count} {what}")

    def with_precisions(self, precisions: Float[Tensor, " g"]) -> Layerwise:
        """The prior with these precisions, one a part; see ``Prior.with_precisions``."""
        return Layerwise(tuple(precisions.tolist()), self.parts)
