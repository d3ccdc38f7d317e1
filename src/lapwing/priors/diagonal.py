"""One precision a weight."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lapwing.ground.errors import precisions_of
from lapwing.ground.layout import Layout
from lapwing.priors.base import Prior


@final
@dataclass(frozen=True, eq=False, repr=False)
class DiagonalPrior(Prior):
    """One precision a weight.

    Args:
        precision: One number for every weight, or one a weight ``[d]``, in 1 / (units of a weight)²; kept as
            float64 on the CPU. Two such priors are equal when their numbers are.

    Raises:
        ConfigError: If one is not a positive finite number.

    Example:
        >>> DiagonalPrior(torch.tensor([1.0, 4.0])) == DiagonalPrior(torch.tensor([1.0, 4.0]))
        True
    """

    precision: float | Float[Tensor, " d"] = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        values = precisions_of("prior", self.precision, "DiagonalPrior(1.0)")
        object.__setattr__(self, "precision", values if values.ndim else float(values))

    def groups(self, layout: Layout) -> tuple[Int[Tensor, " d"], int]:
        """Every weight a group of its own; see ``Prior.groups``."""
        return torch.arange(layout.size, device="cpu"), layout.size

    def with_precisions(self, precisions: Float[Tensor, " g"]) -> DiagonalPrior:
        """The prior with these precisions, one a weight; see ``Prior.with_precisions``."""
        return replace(self, precision=precisions)
