"""A Gaussian over the weights whose precision is any structured operator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.curvature.sums import Held
from lapwing.curvature.variance import Propagation
from lapwing.ground import probes
from lapwing.ground.errors import ConvergenceWarning, warn
from lapwing.ground.types import Inputs
from lapwing.linalg import Dense, Structured
from lapwing.linear.evidence import Complexity, Shift, complexity_of
from lapwing.posteriors.base import Posterior
from lapwing.posteriors.exact import ExactPosterior
from lapwing.posteriors.sampled import SampledWeights
from lapwing.predictive import JointMoments, Moments


@final
@dataclass(frozen=True, eq=False, repr=False)
class WeightPosterior(ExactPosterior, SampledWeights):
    """N(θ*, Λ⁻¹) with Λ = s G + A: curvature G at the trained weights θ*, prior precision A, noise s.

    Args:
        held: The curvature G.
    """

    held: Held

    def sample(self, samples: int = 1, *, generator: torch.Generator | None = None) -> Float[Tensor, "s d"]:
        """See ``SampledWeights.sample``; W is the operator's own inverse root."""
        probes.check_draws(samples, generator)
        weights, operator = self.network.weights, self.precision.operator
        noise = probes.gaussian((self.network.size, samples), like=weights, generator=generator)
        return weights + (operator.inverse_root() @ noise.to(operator.dtype)).mT.to(weights)

    @cached_property
    def precision(self) -> Held:
        """The posterior precision Λ.

        Warns:
            ConvergenceWarning: If the rounding of a dense curvature is larger than the prior precision.
        """
        prior = self.prior.operator(self.network.uncertain, self.network.like.to(self.held.operator.dtype))
        curvature = self.held.operator if self.noise_scale == 1.0 else self.held.operator.scaled(self.noise_scale)
        warn_of_rounding(curvature, float(prior.values.min()))
        return Held(curvature.plus_diagonal(prior), self.held.partition)

    @property
    def precision_operator(self) -> Structured:
        """The posterior precision Λ as an operator."""
        return self.precision.operator

    @cached_property
    def shift(self) -> Shift | None:
        """How the mode of the linear model moves with the hyper-parameters; ``None`` where no score was kept."""
        if self.totals.score is None:
            return None
        layout, device, dtype = self.network.uncertain, self.network.like.device, self.held.operator.dtype
        group, relative = self.prior.groups(layout)[0].to(device), self.prior.relative(layout)
        relative = None if relative is None else relative.to(device)
        return Shift(self.held.operator, self.totals.score.to(dtype), self.network.weights.to(dtype), group, relative)

    def _complexity(self) -> Complexity:
        layout = self.network.uncertain
        return complexity_of(self.held.operator, self.prior.groups(layout)[0], self.prior.relative(layout))

    @cached_property
    def _propagation(self) -> Propagation:
        return Propagation(self.model, (self.precision,))

    def _moments(self, inputs: Inputs, choices: Sequence[Posterior]) -> list[Moments]:
        precisions = tuple(choice.precision for choice in choices if isinstance(choice, WeightPosterior))
        mean, covariances = replace(self._propagation, precisions=precisions).moments(inputs)
        return [Moments(mean, covariance) for covariance in covariances]

    def _joint_moments(self, inputs: Inputs) -> JointMoments:
        mean, covariance = self._propagation.joint(inputs)
        return JointMoments(mean, covariance.to(mean).view(*mean.shape, *mean.shape))


def warn_of_rounding(curvature: Structured, prior: float) -> None:
    """Warn where directions that the data leave to the prior drown in the rounding of a dense curvature.

    Args:
        curvature: s G.
        prior: Smallest precision of the prior.

    Cost:
        The trace; an eigendecomposition only where its rounding is above the prior.
    """
    if not isinstance(curvature, Dense):
        return
    rounding = float(curvature.diagonal().sum()) * torch.finfo(curvature.dtype).eps
    if rounding > prior and float(curvature.eigenvalues()[0]) < rounding:
        warn(
            f"the rounding of the curvature, {rounding:.2g}, is larger than the prior precision, {prior:.2g}: "
            "variances of what the data say little about are wrong. "
            'Try Full(view="functions"), or a larger prior precision',
            ConvergenceWarning,
        )
