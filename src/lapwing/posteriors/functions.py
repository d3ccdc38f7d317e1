"""A Gaussian over the outputs, held by the tangent kernel between the training rows: for few data and many weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.curvature.gram import TangentKernel, joint
from lapwing.curvature.sums import Held
from lapwing.curvature.training_rows import TrainingRows
from lapwing.curvature.variance import Propagation, contracted
from lapwing.ground import probes
from lapwing.ground.data.inputs import Inputs, chunks
from lapwing.ground.errors import UnsupportedError
from lapwing.ground.progress import working
from lapwing.jacobian.model import BUDGET
from lapwing.likelihoods import Likelihood
from lapwing.linalg import Diagonal, FunctionOperator, Operator
from lapwing.linalg.operators.eigenbasis import Eigenbasis, decompose, semidefinite
from lapwing.linear.log_det_ratio import Complexity, Determinant, Spectrum
from lapwing.posteriors.dimension import Step
from lapwing.posteriors.exact import ExactPosterior, distinct
from lapwing.predictive import JointMoments, Moments
from lapwing.priors import Prior


@final
@dataclass(frozen=True, eq=False, repr=False)
class FunctionPosterior(ExactPosterior):
    """The same posterior as the full weight view, in function space.

    With K = J A⁻¹ Jᵀ, B = S Sᵀ, x the training inputs and * the new ones:

        cov(f) = K** - K*x S (I + s Sᵀ K S)⁻¹ s Sᵀ Kx*                (Rasmussen & Williams 2006, equation 2.24)

    Args:
        rows: The rows ``J̃ = Sᵀ J`` of the training data, as a prediction needs the kernel between them and new inputs:
            features of the training inputs where the last layer is uncertain, else the inputs themselves.
        grams: ``J̃_g J̃_gᵀ`` of each prior group g.
    """

    rows: TrainingRows
    grams: Float[Tensor, "g m m"]

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, {self.rows.held})"

    def without_inputs(self) -> FunctionPosterior:
        """The same without training inputs, for a file; features of them stay."""
        return replace(self, rows=self.rows.without_inputs())

    def with_data(self) -> FunctionPosterior:
        """The same with training inputs again where there are none, from the data it has.

        Raises:
            DataError: If the data are in another order than at the fit.

        Cost:
            A pass over the data, a product with the Jacobian and one with its adjoint.
        """
        relative = self.prior.relative(self.network.uncertain)
        units = torch.ones_like(self._variance) if relative is None else (1 / relative).to(self._variance)
        return replace(self, rows=self.rows.with_data(self.model, self.grams.sum(0), units))

    def with_choices(self, prior: Prior, likelihood: Likelihood, steps: tuple[Step, ...] = ()) -> FunctionPosterior:
        """See ``Posterior.with_choices``; the prior may differ in its precisions alone.

        Raises:
            UnsupportedError: If it groups or scales the weights in another way.
        """
        if not prior.shares(self.prior, self.network.uncertain):
            raise UnsupportedError(
                f"a prior that differs from {self.prior} in its precisions alone, as the kernel was computed for it",
                f"{prior}",
                "fitting again with this prior, or Full(view='weights')",
            )
        changed = super().with_choices(prior, likelihood, steps)
        if len(self.grams) == 1 and "_basis" in vars(self):
            vars(changed)["_basis"] = self._basis
        return changed

    @property
    def precision_operator(self) -> Operator:
        """The posterior precision Λ as an operator; a product is one with ``J̃`` and one with its transpose."""
        prior = self.prior.operator(self.network.uncertain, self.network.like)

        def product(block: Tensor) -> Tensor:
            explained = self.rows.pull(self.model, self.rows.push(self.model, block))
            return self.noise_scale * explained + prior @ block

        return FunctionOperator(product, product, prior.shape, prior.values)

    @working("sample")
    def sample(self, samples: int = 1, *, generator: torch.Generator | None = None) -> Float[Tensor, "s d"]:
        """See ``Posterior.sample``; a draw of the prior, conditioned on the data (Wilson et al. 2021).

            θ* + ζ - A⁻¹ J̃ᵀ (J̃ A⁻¹ J̃ᵀ + I / s)⁻¹ (J̃ ζ + ε / √s),    ζ ~ N(0, A⁻¹),  J̃ = Sᵀ J

        Cost:
            A product with ``J̃`` and one with its transpose: of features two matrix products, of training inputs forward
            passes and a backward pass for every draw.
        """
        probes.check_draws(samples, generator)
        shape, rows = (self.network.size, samples), (self.grams.shape[-1], samples)
        noise = probes.gaussian(shape, like=self._variance, generator=generator)
        zeta = self._variance.sqrt()[:, None] * noise
        with torch.no_grad():
            seen = self.rows.push(self.model, zeta.to(self.network.like)).double()
            seen += probes.gaussian(rows, like=seen, generator=generator) / self.noise_scale**0.5
            drawn = self._conditioned(zeta, seen)
        return self.network.weights + drawn.mT.to(self.network.weights)

    def _conditioned(self, block: Float[Tensor, "d s"], seen: Float[Tensor, "m s"]) -> Float[Tensor, "d s"]:
        """``V - A⁻¹ J̃ᵀ W Wᵀ U``, for what was seen of V or should have been."""
        weighed = self._root @ (self._root.mT @ seen)
        explained = self.rows.pull(self.model, weighed.to(self.network.like))
        return block - self._variance[:, None] * explained

    def newton_step(self) -> Float[Tensor, " d"] | None:
        """``Λ⁻¹ (s ∇ log p(y | θ*) - A θ*)``: with Gaussian noise the way from the trained weights to the linear mode.

        With Woodbury's identity it takes the kernel between the training rows alone: ``a - A⁻¹ J̃ᵀ W Wᵀ J̃ a`` with
        ``a = s A⁻¹ ∇ log p(y | θ*) - θ*`` and ``W Wᵀ = s (I + s Sᵀ K S)⁻¹``. ``None`` where no score was kept.

        Cost:
            A factorisation of the kernel, a product with J and one with Jᵀ.
        """
        if self.totals.score is None:
            return None
        like = self.network.like
        whole = self.noise_scale * self._variance * self.totals.score.double() - self.network.weights.double()
        with torch.no_grad():
            seen = self.rows.push(self.model, whole.to(like)[:, None]).double()
            return self._conditioned(whole[:, None], seen)[:, 0].to(like)

    def _complexity(self) -> Complexity:
        if len(self.grams) > 1:
            return Determinant.of_grams(torch.stack([semidefinite(gram) for gram in self.grams]))
        eigenvalues = self._basis.values
        return Spectrum(eigenvalues, torch.zeros(len(eigenvalues), dtype=torch.long, device=eigenvalues.device))

    @cached_property
    def _basis(self) -> Eigenbasis:
        """Of the kernel's only group, before its prior, which the evidence needs too; or of all groups together."""
        if len(self.grams) == 1:
            return decompose(self.grams[0])
        return decompose(torch.einsum("g,gmn->mn", 1 / self.prior_precisions, self.grams.double()))

    @property
    def _values(self) -> Float[Tensor, " m"]:
        """Eigenvalues of ``Sᵀ K S``."""
        return self._basis.values / self.prior_precisions if len(self.grams) == 1 else self._basis.values

    @cached_property
    def _root(self) -> Float[Tensor, "m m"]:
        """``W`` with ``W Wᵀ = s (I + s Sᵀ K S)⁻¹``."""
        s = self.noise_scale
        return self._basis.vectors * (s / (1 + s * self._values)).sqrt()

    @cached_property
    def _variance(self) -> Float[Tensor, " d"]:
        return 1.0 / self.prior_diagonal

    @cached_property
    def _prior_propagation(self) -> Propagation:
        """The outputs' covariance before any data: the tangent kernel at one input."""
        return Propagation(self.model, (Held(Diagonal(self.prior_diagonal)),))

    def _cross(self, inputs: Inputs) -> Float[Tensor, "m r"]:
        """``K*x S``, float64."""
        kernel = TangentKernel(self.model)
        return kernel.cross(inputs, self.rows, self._variance).double()

    def _moments(self, inputs: Inputs, choices: Sequence[FunctionPosterior]) -> list[Moments]:
        variances, scales = distinct([self._variance, *(choice._variance for choice in choices)])
        if len(variances) > 1:
            return [moments for choice in choices for moments in choice._along(inputs, [(1.0, choice.noise_scale)])]
        return self._along(
            inputs, [(k, choice.noise_scale) for choice, (_, k) in zip(choices, scales[1:], strict=True)]
        )

    def _along(self, inputs: Inputs, scales: list[tuple[float, float]]) -> list[Moments]:
        """Outputs with the prior's variances times κ and the noise precision s, for several κ and s.

        With ``Sᵀ K S = Q diag(γ) Qᵀ``: ``κ K** - K*x S Q diag(s κ² / (1 + s κ γ)) Qᵀ Sᵀ Kx*``.
        """
        mean, (prior,) = self._prior_propagation.moments(inputs)
        kappa, s = torch.tensor(scales, dtype=torch.float64, device=prior.device).unbind(1)
        gain = (s * kappa.square())[:, None] / (1 + (s * kappa)[:, None] * self._values)
        rows = self.model.width * self.grams.shape[-1]
        parts: list[Tensor] = []
        for place, part in chunks(inputs, max(1, BUDGET // (8 * rows))):
            turned = (self._cross(part) @ self._basis.vectors).view(-1, mean.shape[-1], self.grams.shape[-1])
            before = prior[place].double()
            parts.append(torch.einsum("m,...->m...", kappa, before) - contracted(turned, gain).view(-1, *before.shape))
        return [Moments(mean, covariance) for covariance in torch.cat(parts, 1).to(mean)]

    def _joint_moments(self, inputs: Inputs) -> JointMoments:
        mean, prior = joint(self._prior_propagation, inputs)
        explained = self._cross(inputs) @ self._root
        covariance = prior.double() - explained @ explained.mT
        return JointMoments(mean, covariance.to(mean).view(*mean.shape, *mean.shape))
