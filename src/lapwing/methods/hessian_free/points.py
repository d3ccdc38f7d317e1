"""Evaluation points, found again by their values."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import final

import torch
from jaxtyping import Int
from torch import Tensor

from lapwing.ground.data import count, tensors
from lapwing.ground.errors import UnsupportedError
from lapwing.ground.types import Inputs


@final
@dataclass(frozen=True, eq=False)
class Points:
    """The inputs at which a posterior can answer.

    Args:
        inputs: The points.

    Example:
        >>> Points(torch.tensor([[1.0], [2.0]])).find(torch.tensor([[2.0]]))
        tensor([1])
    """

    inputs: Inputs

    @cached_property
    def _places(self) -> dict[bytes, int]:
        return {key: place for place, key in enumerate(keys(self.inputs))}

    def find(self, inputs: Inputs) -> Int[Tensor, " n"]:
        """Where each example stands among the points.

        Args:
            inputs: Examples, in the dtype of the points.

        Raises:
            UnsupportedError: If one is not among them.
        """
        found = [self._places.get(key, -1) for key in keys(inputs)]
        missing = sum(place < 0 for place in found)
        if missing:
            raise UnsupportedError(
                f"inputs among the {count(self.inputs)} evaluation points of the fit",
                f"{missing} others of {len(found)}",
                "fit(model, data, points) with all inputs to be predicted, or fits=PreTrained(), which knows any",
            )
        return torch.tensor(found, dtype=torch.long)


def keys(inputs: Inputs) -> list[bytes]:
    """A name for each example: its numbers."""
    n = count(inputs)
    rows = [value for value in tensors(inputs) if value.ndim and len(value) == n]
    flat = [value.detach().cpu().reshape(n, -1).contiguous().view(torch.uint8).numpy() for value in rows]
    return [b"|".join(part[i].tobytes() for part in flat) for i in range(n)]
