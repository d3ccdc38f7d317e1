"""One precision for all weights."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import final

from lapwing.ground.errors import ConfigError
from lapwing.ground.layout import Layout
from lapwing.priors.base import Prior, checked_one
from lapwing.priors.layerwise import Layerwise


@final
@dataclass(frozen=True, eq=False, repr=False)
class Isotropic(Prior):
    """One precision for all weights, A = λ I.

    Args:
        precision: λ = 1 / prior variance, in 1 / (units of a weight)².

    Raises:
        ConfigError: If it is not a positive finite number.

    Example:
        >>> Isotropic.from_weight_decay(5e-4, n=50_000)
        Isotropic(precision=25)
    """

    precision: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "precision", checked_one(self.precision, "Isotropic(1.0)"))

    @classmethod
    def from_weight_decay(cls, weight_decay: float, n: int) -> Isotropic:
        """The prior that a weight decay stands for: λ = n · weight_decay.

        For a training loss ``(1/n) Σ_i nll_i + (weight_decay / 2) |θ|²``, the mean over n examples: its minimum
        is then the maximum of likelihood × prior. ``torch.optim.SGD(weight_decay=)`` adds this gradient.

        Args:
            weight_decay: Coefficient of ``|θ|² / 2`` beside the mean loss; positive.
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

    def split_off(self, names: Collection[str], layout: Layout) -> Layerwise:
        """See ``Prior.split_off``."""
        return Layerwise(self.precision, parts=(tuple(names),), mean=self.mean, earlier=self.earlier)
