"""Where the mode would be if the network were linear in its weights, and what the evidence gains there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from jaxtyping import Float
from torch import Tensor

from lapwing.curvature.sums import score
from lapwing.ground.data import Data, Source
from lapwing.ground.errors import UnsupportedError
from lapwing.ground.types import Unpack
from lapwing.posteriors import MatrixFreePosterior, Posterior, WeightPosterior
from lapwing.posteriors.solved import warn_unless


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
        posterior: A posterior over the weights, structured or matrix-free.
        data: Its training data.
        unpack: Splits one element of the data into inputs and targets.

    Raises:
        UnsupportedError: If the posterior has no precision to solve with.

    Warns:
        ConvergenceWarning: If a matrix-free posterior's solve missed its tolerance.

    Cost:
        One forward and one backward pass over the data, and a solve.

    Example:
        >>> import torch
        >>> import lapwing as lw
        >>> model, x, y = torch.nn.Linear(2, 1), torch.randn(30, 2), torch.randn(30, 1)
        >>> posterior = lw.Laplace(lw.Gaussian()).fit(model, (x, y))
        >>> newton_step(posterior, (x, y)).gain > 0
        True
    """
    if not isinstance(posterior, WeightPosterior | MatrixFreePosterior):
        raise UnsupportedError(
            "a posterior over the weights", f"{type(posterior).__name__}", "Full(view='weights') or KFAC()"
        )
    network = posterior.network
    read = Data(data, like=network.like, unpack=unpack)
    prior = posterior.prior.diagonal(network.uncertain, network.like)
    gradient = score(network, posterior.survey, read, posterior.likelihood) - prior * network.weights
    step = _solved(posterior, gradient)
    return NewtonStep(network.weights + step, 0.5 * float((gradient * step).double().sum()))


def _solved(posterior: WeightPosterior | MatrixFreePosterior, b: Float[Tensor, " d"]) -> Float[Tensor, " d"]:
    """``Λ⁻¹ b``."""
    if isinstance(posterior, MatrixFreePosterior):
        solution = posterior.solve(b)
        warn_unless(solution, posterior.solver.cure)
        return solution.value
    operator = posterior.precision.operator
    return operator.solve(b.to(operator.dtype)).to(b)
