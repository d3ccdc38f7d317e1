"""A kernel that sees some columns of the inputs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from numbers import Integral
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.gp.kernels.base import Entries, FeatureMap, Kernel
from lapwing.ground.errors import ConfigError, ShapeError, check_kind


@final
@dataclass(frozen=True)
class Columns(Kernel):
    """A kernel of some columns alone: its functions do not vary along the others.

    Products are for functions of all columns together, sums for sums of functions of some each.

    Args:
        kernel: k, for as many columns as are active.
        active: Which columns it sees, counted from 0, in the order in which its length-scales are.

    Raises:
        ConfigError: If it is no kernel, or these are no columns.

    Example:
        >>> from lapwing.gp.kernels.stationary import RBF
        >>> kernel = Columns(RBF(), active=(0,))
        >>> kernel(torch.zeros(1, 2), torch.tensor([[1.0, 0.0], [0.0, 9.0]]))
        tensor([[0.6065, 1.0000]])
    """

    within = ("kernel",)
    kernel: Kernel
    active: tuple[int, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        check_kind("kernel", self.kernel, (Kernel,), "Columns(Matern(1.0), active=(0, 2))")
        given: Any = self.active
        active: tuple[Any, ...] = tuple(given) if isinstance(given, Iterable) else ()
        counted = all(isinstance(column, Integral) and int(column) >= 0 for column in active)
        if not active or not counted or len(set(active)) < len(active):
            hint = f"active=({given},)" if isinstance(given, Integral) else "active=(0, 2)"
            raise ConfigError("different columns, counted from 0", f"active={given!r:.40}", hint)
        object.__setattr__(self, "active", tuple(map(int, active)))

    def between(self, a: Float[Tensor, "n p"], b: Float[Tensor, "m p"]) -> Entries:
        """See ``Kernel``."""
        return self.kernel.between(self._seen(a), self._seen(b))

    def diagonal(self, x: Float[Tensor, "n p"]) -> Float[Tensor, " n"]:
        """See ``Kernel``."""
        return self.kernel.diagonal(self._seen(x))

    def categorical(self, columns: int) -> set[int]:
        """See ``Kernel``: those of the kernel, as the inputs count them."""
        return {self.active[column] for column in self.kernel.categorical(len(self.active))}

    def gradient(
        self, a: Float[Tensor, "n p"], b: Float[Tensor, "m p"], weight: Float[Tensor, "n m"]
    ) -> Float[Tensor, " h"]:
        """See ``Kernel``."""
        return self.kernel.gradient(self._seen(a), self._seen(b), weight)

    def features(self, count: int, x: Float[Tensor, "n p"], generator: torch.Generator) -> FeatureMap:
        """See ``Kernel``."""
        inner = self.kernel.features(count, self._seen(x), generator)
        return lambda inputs: inner(self._seen(inputs))

    def _seen(self, x: Float[Tensor, "n p"]) -> Float[Tensor, "n q"]:
        """The active columns.

        Raises:
            ShapeError: If there are fewer.
        """
        if x.ndim != 2 or max(self.active) >= x.shape[1]:
            expected = f"inputs of {max(self.active) + 1} columns or more, for active={self.active}"
            raise ShapeError(expected, f"{list(x.shape)}", "columns counted from 0")
        return x[:, list(self.active)]
