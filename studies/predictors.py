"""Predictors of every study: the linear model at drawn weights, and any predictor a hundred images at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.evaluation.scores import Predictor
from lapwing.posteriors import Posterior
from lapwing.predictive import Classification, Moments

BATCH = 100


@dataclass(frozen=True, eq=False)
class Linearised:
    """Functions ``f(x) + J(x) (w_j - w̃)`` for draws w_j of the weights, the same for every input.

    Args:
        posterior: Whose.
        draws: Deviations ``w_j - w̃``, ``[s, d]``.
    """

    posterior: Posterior
    draws: Float[Tensor, "s d"]

    @classmethod
    def of(cls, posterior: Posterior, samples: int, generator: torch.Generator) -> Linearised:
        """With draws of a posterior."""
        return cls(posterior, posterior.sample(samples, generator=generator) - posterior.network.weights)

    def outputs(self, x: Tensor) -> Float[Tensor, "s n c"]:
        """Outputs of every function at some inputs."""
        own = self.posterior
        with torch.no_grad():
            mean, moved = own.pushed(x, self.draws.mT)
            return mean + moved.movedim(-1, 0)


@dataclass(frozen=True, eq=False)
class Batched:
    """A predictor that is given a hundred images at a time, so that draws of their logits fit in memory."""

    inner: Predictor

    @property
    def likelihood(self) -> Any:
        """p(y | f)."""
        return self.inner.likelihood

    def predict(self, x: Tensor) -> Classification:
        """All predictions, as one."""
        probs = probabilities(self.inner, x)
        return Classification(Moments.certain(probs.clamp_min(1e-30).log()), probs)


def probabilities(predictor: Any, x: Tensor, options: dict[str, Any] | None = None) -> Tensor:
    """Probabilities of a hundred images at a time."""
    return torch.cat([predictor.predict(part, **(options or {})).probs for part in x.split(BATCH)])
