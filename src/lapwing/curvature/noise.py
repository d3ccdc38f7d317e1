"""The generalised Gauss-Newton matrix from noise: as many backward passes as draws, whatever the outputs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.curvature.ggn import Curvature
from lapwing.ground import probes
from lapwing.ground.errors import check_count
from lapwing.likelihoods import Likelihood
from lapwing.likelihoods.cotangents import COLUMNS


@final
@dataclass(frozen=True)
class Noise(Curvature):
    """``sum_n J_nᵀ ε εᵀ J_n`` with ``ε ~ N(0, B_n)``, unbiased for ``sum_n J_nᵀ B_n J_n`` example by example.

    Its diagonal adds up the squares of every example, ``sum_n (J_nᵀ ε_n)²``, with the mean of ``(sum_n J_nᵀ ε_n)²``
    and less variance (Antorán 2024, section 6.2.2). Unlike scores at drawn labels (``MCFisher``) every draw says
    something of a confident example, whose other labels are hardly ever drawn.

    Args:
        samples: Draws an example.

    Raises:
        ConfigError: If there are none.
    """

    samples: int

    def __post_init__(self) -> None:
        check_count("samples", self.samples)

    def cotangents(
        self,
        likelihood: Likelihood,
        outputs: Float[Tensor, "n *event c"],
        targets: Tensor,
        *,
        generator: torch.Generator | None = None,
    ) -> Iterator[Float[Tensor, "k n *event c"]]:
        """``S ε / √samples`` with standard normal ε; see ``Curvature.cotangents``."""
        root = likelihood.root(outputs, targets)
        for start in range(0, self.samples, COLUMNS):
            shape = (min(COLUMNS, self.samples - start), *root.shape[:-2], root.shape[-1], 1)
            noise = probes.gaussian(shape, like=root, generator=generator)
            yield (root @ noise).squeeze(-1) / self.samples**0.5

    def width(self, outputs: int) -> int:
        """One a sample, up to ``COLUMNS``."""
        return min(self.samples, COLUMNS)
