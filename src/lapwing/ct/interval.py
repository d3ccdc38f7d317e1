"""What a linear functional of an image is, with its error bar."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor


@final
@dataclass(frozen=True, eq=False)
class Interval:
    """What a linear functional of the image is, with its error bar.

    Args:
        mean: Its value at the reconstruction.
        std: Its standard deviation.
        level: Probability that it lies between ``low`` and ``high``.
    """

    mean: Float[Tensor, " m"]
    std: Float[Tensor, " m"]
    level: float

    @property
    def low(self) -> Float[Tensor, " m"]:
        """Lower end."""
        return self.mean - self._width

    @property
    def high(self) -> Float[Tensor, " m"]:
        """Upper end."""
        return self.mean + self._width

    @property
    def _width(self) -> Float[Tensor, " m"]:
        return torch.special.ndtri(self.std.new_tensor(0.5 + 0.5 * self.level)) * self.std
