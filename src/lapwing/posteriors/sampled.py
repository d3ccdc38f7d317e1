"""Posteriors that can be drawn from."""

from __future__ import annotations

import abc
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground import probes
from lapwing.ground.types import Inputs, Params
from lapwing.linalg import Operator
from lapwing.posteriors.base import Posterior


@dataclass(frozen=True, eq=False, repr=False)
class SampledWeights(Posterior):
    """A Gaussian over the weights that gives draws of them."""

    @property
    @abc.abstractmethod
    def precision_operator(self) -> Operator:
        """The posterior precision Λ as an operator."""

    @abc.abstractmethod
    def sample(self, samples: int = 1, *, generator: torch.Generator | None = None) -> Float[Tensor, "s d"]:
        """Draws of the uncertain weights, one flat vector a row.

        Args:
            samples: Draws s.
            generator: Source of randomness.

        Returns:
            ``θ* + W ε`` with ``W Wᵀ = Λ⁻¹`` and standard normal ε.
        """

    def params(self, weights: Float[Tensor, " d"]) -> Params:
        """One draw as named parameters, ready for ``torch.func.functional_call``."""
        return self.network.with_weights(weights)

    def _network_draws(
        self, inputs: Inputs, samples: int, generator: torch.Generator | None
    ) -> Float[Tensor, "s n *event c"]:
        probes.check_draws(samples, generator)
        draws = self.sample(samples, generator=generator)
        outputs = [self.network(inputs, self.params(draw)) for draw in draws]
        return torch.stack([self.likelihood.canonical(f) for f in outputs])
