"""A Gaussian over the outputs, held by the tangent kernel between the training rows: for few data and many weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.curvature.gram import TangentKernel
from lapwing.curvature.sums import BUDGET, Held
from lapwing.curvature.variance import Propagation
from lapwing.data import chunks
from lapwing.errors import UnsupportedError
from lapwing.evidence import Complexity, Grams, Spectrum, semidefinite
from lapwing.likelihoods import Likelihood
from lapwing.linalg import Dense, Operator
from lapwing.posteriors.base import Posterior
from lapwing.posteriors.exact import ExactPosterior
from lapwing.posteriors.step import Step
from lapwing.predictive import JointMoments, Moments
from lapwing.priors import Prior
from lapwing.types import Inputs


@final
@dataclass(frozen=True, eq=False, repr=False)
class FunctionPosterior(ExactPosterior):
    """The same posterior as the full weight view, in function space.

    With K = J A⁻¹ Jᵀ, B = S Sᵀ, x the training inputs and * the new ones:

        cov(f) = K** - K*x S (I + s Sᵀ K S)⁻¹ s Sᵀ Kx*                (Rasmussen & Williams 2006, equation 2.24)

    Args:
        inputs: Training inputs, kept because a prediction needs the kernel between them and the new ones.
        cotangents: Roots S of the output Hessians at the training inputs, as cotangents.
        grams: ``Sᵀ J_g J_gᵀ S`` of each prior group g.
    """

    inputs: Inputs
    cotangents: Float[Tensor, "k n ..."]
    grams: Float[Tensor, "g m m"]

    def __post_init__(self) -> None:
        """Check that the prior has the groups the kernel was computed for."""
        super().__post_init__()
        groups = self.prior.groups(self.network.uncertain)[1]
        if groups != len(self.grams):
            raise UnsupportedError(
                f"a prior with {len(self.grams)} precisions, as when the kernel was computed",
                f"{type(self.prior).__name__} with {groups}",
                "fitting again with this prior, or Full(view='weights')",
            )

    def with_choices(self, prior: Prior, likelihood: Likelihood, steps: tuple[Step, ...] = ()) -> FunctionPosterior:
        """See ``Posterior.with_choices``; the prior may differ in its precisions alone.

        Raises:
            UnsupportedError: If it groups or scales the weights in another way.
        """
        changed = super().with_choices(prior, likelihood, steps)
        if not prior.shares(self.prior, self.network.uncertain):
            raise UnsupportedError(
                f"a prior that differs from {self.prior} in its precisions alone, as the kernel was computed for it",
                f"{prior}",
                "fitting again with this prior, or Full(view='weights')",
            )
        return changed

    def _complexity(self) -> Complexity:
        if len(self.grams) > 1:
            return Grams(torch.stack([semidefinite(gram) for gram in self.grams]))
        eigenvalues = Dense(self.grams[0]).eigenvalues()
        return Spectrum(eigenvalues, torch.zeros(len(eigenvalues), dtype=torch.long, device=eigenvalues.device))

    @cached_property
    def _inner(self) -> Operator:
        """``W`` with ``W Wᵀ = s (I + s Sᵀ K S)⁻¹``."""
        gram = torch.einsum("g,gmn->mn", self.noise_scale / self.prior_precisions, self.grams.double())
        return Dense(gram, 1.0, 1.0).scaled(1.0 / self.noise_scale).inverse_root()

    @cached_property
    def _variance(self) -> Float[Tensor, " d"]:
        return 1.0 / self.prior.diagonal(self.network.uncertain, self.network.like.double())

    @cached_property
    def _prior_propagation(self) -> Propagation:
        """The outputs' covariance before any data: the tangent kernel at one input."""
        prior = self.prior.operator(self.network.uncertain, self.network.like.double())
        return Propagation(self.network, self.survey, self.likelihood, (Held(prior),))

    def _explained(self, inputs: Inputs) -> Float[Tensor, "m r"]:
        """A root of what the data took away from the prior covariance of the outputs."""
        kernel = TangentKernel(self.network, self.survey, self.likelihood)
        cross = kernel.cross(inputs, self.inputs, self.cotangents, self._variance)
        return (self._inner.T @ cross.double().mT).mT

    def _moments(self, inputs: Inputs, choices: Sequence[Posterior]) -> list[Moments]:
        return [choice._own_moments(inputs) for choice in choices if isinstance(choice, FunctionPosterior)]

    def _own_moments(self, inputs: Inputs) -> Moments:
        mean, (prior,) = self._prior_propagation.moments(inputs)
        rows = self.survey.output.numel() * self.grams.shape[-1]
        covariances = []
        for place, part in chunks(inputs, max(1, BUDGET // (8 * rows))):
            explained = self._explained(part).view(*mean[place].shape, -1)
            covariances.append((prior[place] - explained @ explained.mT).to(mean))
        return Moments(mean, torch.cat(covariances))

    def _joint_moments(self, inputs: Inputs) -> JointMoments:
        mean, prior = self._prior_propagation.joint(inputs)
        explained = self._explained(inputs)
        covariance = prior.double() - explained @ explained.mT
        return JointMoments(mean, covariance.to(mean).view(*mean.shape, *mean.shape))
