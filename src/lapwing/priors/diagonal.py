"""A prior with one precision a weight."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lapwing.ground.tree import Layout
from lapwing.priors.base import Prior, checked, expanded


@final
@dataclass(frozen=True, eq=False)
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
        values = checked(self.precision, "DiagonalPrior(1.0)")
        object.__setattr__(self, "precision", values if values.ndim else float(values))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DiagonalPrior):
            return NotImplemented
        return torch.equal(torch.as_tensor(self.precision), torch.as_tensor(other.precision))

    def __hash__(self) -> int:
        return hash(tuple(torch.as_tensor(self.precision).reshape(-1).tolist()))

    def groups(self, layout: Layout) -> tuple[Int[Tensor, " d"], int]:
        """Every weight a group of its own; see ``Prior.groups``."""
        return torch.arange(layout.size), layout.size

    def precisions(self, layout: Layout) -> Float[Tensor, " g"]:
        """One precision a weight; see ``Prior.precisions``."""
        values = torch.as_tensor(self.precision, dtype=torch.float64)
        return expanded(values, layout.size, f"one precision for each of {layout.size} weights")

    def with_precisions(self, precisions: Float[Tensor, " g"]) -> DiagonalPrior:
        """The prior with these precisions, one a weight; see ``Prior.with_precisions``."""
        return DiagonalPrior(precisions)

    def state(self) -> dict[str, Any]:
        """See ``Prior.state``; d numbers, so keep ``precisions`` as a tensor where d is large."""
        precision = self.precision.tolist() if isinstance(self.precision, Tensor) else self.precision
        return {"kind": "DiagonalPrior", "precision": precision}
