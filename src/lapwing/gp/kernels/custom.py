"""A kernel of the user's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.gp.kernels.base import FeatureMap, Kernel
from lapwing.ground.errors import ConfigError
from lapwing.ground.tracing import traced


@final
@dataclass(frozen=True, repr=False)
class Custom(Kernel):
    """A kernel of the user's own.

    Args:
        function: From two blocks of inputs ``[n, p]`` and ``[m, p]`` to ``k`` ``[n, m]``, symmetric and positive
            definite.
        draw: From a count D, inputs and a generator to random features; ``None`` for a kernel without any.

    Raises:
        ConfigError: If it is no function.

    Example:
        >>> Custom(lambda a, b: torch.exp(-torch.cdist(a, b)))(torch.zeros(1, 1), torch.ones(1, 1))
        tensor([[0.3679]])
    """

    function: Callable[[Tensor, Tensor], Tensor]
    draw: Callable[[int, Tensor, torch.Generator], FeatureMap] | None = None

    def __post_init__(self) -> None:
        if not callable(self.function):
            hint = "Custom(lambda a, b: torch.exp(-torch.cdist(a, b)))"
            raise ConfigError("a function of two blocks of inputs", f"{self.function!r:.40}", hint)

    def __repr__(self) -> str:
        return f"Custom({getattr(self.function, '__name__', self.function)})"

    def __call__(self, a: Float[Tensor, "n p"], b: Float[Tensor, "m p"]) -> Float[Tensor, "n m"]:
        """See ``Kernel``; in the dtype of the inputs, whatever the function returns."""
        return torch.as_tensor(self.function(a, b)).to(a)

    def diagonal(self, x: Float[Tensor, "n p"]) -> Float[Tensor, " n"]:
        """See ``Kernel``."""
        if traced():
            return self(x, x).diagonal()
        return torch.cat([self(row, row)[0] for row in x.split(1)])

    def features(self, count: int, x: Float[Tensor, "n p"], generator: torch.Generator) -> FeatureMap:
        """See ``Kernel``."""
        return super().features(count, x, generator) if self.draw is None else self.draw(count, x, generator)
