"""The prior precisions and the noise that are chosen, as every way of choosing hands them on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

BOUNDS = (1e-10, 1e12)
"""Precisions considered."""

EDGE = 1.01
"""A precision within this factor of an end of its range is at it."""


@final
@dataclass(frozen=True, eq=False)
class Hyperparameters:
    """The hyper-parameters of a posterior.

    Args:
        precisions: Prior precision α_g of each group.
        scale: Noise precision s, relative to the one the curvature was computed with.
    """

    precisions: Float[Tensor, " g"]
    scale: Float[Tensor, ""]

    @property
    def values(self) -> Float[Tensor, " m"]:
        """The prior precisions, then the noise's."""
        return torch.cat([self.precisions, self.scale.view(1)])

    def log_moves(self, before: Hyperparameters) -> Float[Tensor, " m"]:
        """By how much each logarithm has moved, the noise's last."""
        return (self.values / before.values).log()

    def with_precisions(self, precisions: Float[Tensor, " g"]) -> Hyperparameters:
        """The same noise, and other prior precisions, which are kept within ``BOUNDS``."""
        return Hyperparameters(precisions.clamp(*BOUNDS), self.scale)


def at_end(value: float) -> bool:
    """Whether a precision is at an end of the range considered.

    Example:
        >>> at_end(1e12), at_end(3.0)
        (True, False)
    """
    return not EDGE * BOUNDS[0] < value < BOUNDS[1] / EDGE
