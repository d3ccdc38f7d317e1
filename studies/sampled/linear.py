"""A posterior over weights as functions: the linear model at drawn weights, the same draws for every input."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.curvature.jacobian import BatchJacobian
from lapwing.posteriors.sampled import SampledWeights


@dataclass(frozen=True, eq=False)
class Linearised:
    """Functions ``f(x) + J(x) (w_j - w̃)`` for draws w_j of the weights.

    Args:
        posterior: Whose.
        draws: Deviations ``w_j - w̃``, ``[s, d]``.
    """

    posterior: SampledWeights
    draws: Float[Tensor, "s d"]

    @classmethod
    def of(cls, posterior: SampledWeights, samples: int, generator: torch.Generator) -> Linearised:
        """With draws of a posterior."""
        return cls(posterior, posterior.sample(samples, generator=generator) - posterior.network.weights)

    def outputs(self, x: Tensor) -> Float[Tensor, "s n c"]:
        """Outputs of every function at some inputs."""
        network = self.posterior.network
        with torch.no_grad():
            mean = network(x)
            jacobian = BatchJacobian(network, self.posterior.survey, self.posterior.likelihood, x)
            return mean + jacobian.push(self.draws.mT).view(*mean.shape, -1).movedim(-1, 0)
