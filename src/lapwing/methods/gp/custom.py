"""A kernel of the user's own, known by what it makes of two blocks of inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.methods.gp.kernels import Features, Kernel


@final
@dataclass(frozen=True)
class Custom(Kernel):
    """A kernel of the user's own.

    Args:
        function: From two blocks of inputs ``[n, p]`` and ``[m, p]`` to ``k`` ``[n, m]``.
        draw: From a count D, inputs and a generator to random features; ``None`` for a kernel without any.

    Example:
        >>> Custom(lambda a, b: torch.exp(-torch.cdist(a, b)))(torch.zeros(1, 1), torch.ones(1, 1))
        tensor([[0.3679]])
    """

    function: Callable[[Tensor, Tensor], Tensor]
    draw: Callable[[int, Tensor, torch.Generator], Features] | None = None

    def __call__(self, a: Float[Tensor, "n p"], b: Float[Tensor, "m p"]) -> Float[Tensor, "n m"]:
        """See ``Kernel``."""
        return self.function(a, b)

    def diagonal(self, x: Float[Tensor, "n p"]) -> Float[Tensor, " n"]:
        """See ``Kernel``."""
        return torch.cat([self.function(row, row)[0] for row in x.split(1)])

    def features(self, count: int, x: Float[Tensor, "n p"], generator: torch.Generator) -> Features:
        """See ``Kernel``."""
        return super().features(count, x, generator) if self.draw is None else self.draw(count, x, generator)
