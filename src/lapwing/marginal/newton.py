"""Where the mode would be if the network were linear in its weights, and what the evidence gains there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.curvature.ggn import GGN
from lapwing.curvature.sums import chunk_size, raw, visit
from lapwing.data import Data, Source
from lapwing.errors import UnsupportedError
from lapwing.posteriors import Posterior, WeightPosterior
from lapwing.types import Unpack


@final
@dataclass(frozen=True, eq=False)
class NewtonStep:
    """One Newton step from trained weights.

    Args:
        weights: ``θ* = θ + Λ⁻¹ g``, with g the gradient of the log joint density.
        gain: ``½ gᵀ Λ⁻¹ g``, nats: how far the log evidence is above ``Posterior.log_marginal``, which is taken at θ;
            0 at a mode.
    """

    weights: Float[Tensor, " d"]
    gain: float


def newton_step(posterior: Posterior, data: Source, *, unpack: Unpack | None = None) -> NewtonStep:
    """The mean of the Laplace approximation off the optimum, and its evidence term (completing the square).

    A Gaussian whose precision is Λ and whose log density has gradient g at θ has its mean at ``θ + Λ⁻¹ g`` and its
    maximum ``½ gᵀ Λ⁻¹ g`` above its value at θ. Weights trained on the marginal likelihood are such: there, g is the
    gradient of ½ log det Λ. The covariance is unchanged.

    Args:
        posterior: A posterior over the weights.
        data: Its training data.
        unpack: Splits one element of the data into inputs and targets.

    Raises:
        UnsupportedError: If the posterior has no precision to solve with.

    Cost:
        One forward and one backward pass over the data, and a solve.

    Example:
        >>> import lapwing as lw
        >>> model, x, y = torch.nn.Linear(2, 1), torch.randn(30, 2), torch.randn(30, 1)
        >>> posterior = lw.Laplace(lw.Gaussian()).fit(model, (x, y))
        >>> newton_step(posterior, (x, y)).gain > 0
        True
    """
    if not isinstance(posterior, WeightPosterior):
        raise UnsupportedError(
            "a posterior over the weights", f"{type(posterior).__name__}", "Full(view='weights') or KFAC()"
        )
    network, likelihood = posterior.network, posterior.likelihood
    precision = posterior.precision.operator
    read = Data(data, like=network.like, unpack=unpack)
    size = chunk_size(network, posterior.survey, likelihood, GGN())
    score = torch.zeros_like(network.weights)
    for forward, f, y in visit(network, posterior.survey, read, likelihood, size):
        score += forward.gradient(raw(likelihood, likelihood.score(f, y).unsqueeze(0))[0])
    gradient = score - posterior.prior.diagonal(network.uncertain, network.like) * network.weights
    step = precision.solve(gradient.to(precision.dtype)).to(gradient)
    return NewtonStep(network.weights + step, 0.5 * float((gradient * step).double().sum()))
