"""A Gaussian over the outputs, held by the tangent kernel between the training rows: for few data and many weights."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.curvature.blocked import BlockedCurvature
from lapwing.curvature.propagation import Propagation
from lapwing.curvature.tangent_kernel import TangentKernel, joint
from lapwing.curvature.training_rows import TrainingRows
from lapwing.ground import probes
from lapwing.ground.data.inputs import Inputs, chunks
from lapwing.ground.errors import DataError, UnsupportedError, check_bytes
from lapwing.ground.files.archive import Json
from lapwing.ground.files.records import REPAIR, UNRECORDED, Records
from lapwing.ground.precision import WIDE, wide, wide_like
from lapwing.ground.progress import working
from lapwing.ground.shared import Shared
from lapwing.jacobian.layers.base import contracted
from lapwing.jacobian.network.modes import undisturbed
from lapwing.likelihoods import Likelihood
from lapwing.linalg import Diagonal, FunctionOperator, Operator
from lapwing.linalg.operators.eigenbasis import Eigenbasis, decompose, semidefinite
from lapwing.linalg.operators.inverse_forms import SumForm
from lapwing.linear.evidence import Complexity
from lapwing.linear.log_det_ratio import Determinant, Spectrum
from lapwing.posteriors.base import JOINT
from lapwing.posteriors.exact import ExactPosterior, distinct
from lapwing.posteriors.record import check_part_shape
from lapwing.posteriors.rounding import excess, some_inputs, variances, warn_of_products
from lapwing.posteriors.step import Step
from lapwing.predictive import JointMoments, Moments
from lapwing.priors import Prior

logger = logging.getLogger(__name__)

LEFT_OUT = (
    "the training inputs, which a prediction needs, are not in the file: load(path, model, data) takes them again, in "
    "the order they had at the fit. save(..., training_inputs=True) writes them into the file"
)
"""What is said where inputs are left out."""

ROUNDING = 0.3
"""That of a variance by a difference of two, over the rounding of one product of the larger: as measured."""


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
        shared_spectrum: The eigendecomposition of the kernel, once it was asked for. Of a single group that before its
            prior, which is the same under every prior and noise; else of all groups together.
    """

    rows: TrainingRows
    grams: Float[Tensor, "g m m"]
    shared_spectrum: Shared[Eigenbasis] = field(default_factory=Shared[Eigenbasis], kw_only=True, metadata=UNRECORDED)

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, {self.rows.held})"

    def record(self, records: Records, *, training_inputs: bool = False) -> Json:
        """See ``Posterior.record``; features of training inputs are always held, the inputs on request."""
        if training_inputs:
            return self._fields_record(records)
        if not self.rows.by_features:
            logger.warning(LEFT_OUT)
        return replace(self, rows=self.rows.without_inputs())._fields_record(records)

    def check_record(self) -> None:
        """See ``Posterior.check_record``."""
        super().check_record()
        misfit = self.rows.misfit(self.model)
        if misfit:
            raise DataError("training rows of the network", misfit, REPAIR)
        axes = self.rows.cotangents.shape[2:]  # in the order of the likelihood, not of the network
        check_part_shape("the cotangents", sorted(axes), sorted(self.survey.output))
        groups = self.prior.groups(self.network.uncertain)[1]
        rows = len(self.rows)
        check_part_shape("the kernel", self.grams.shape, (groups, rows, rows))

    def with_checked_data(self) -> FunctionPosterior:
        """See ``Posterior.with_checked_data``; with training inputs again where there are none.

        Raises:
            DataError: If the data are in another order than at the fit.

        Cost:
            A pass over the data, a product with the Jacobian and one with its adjoint.
        """
        checked = super().with_checked_data()
        if self.data is None or self.partial:
            return checked
        relative = self.prior.relative(self.network.uncertain)
        units = torch.ones_like(self._variance) if relative is None else (1 / relative).to(self._variance)
        return replace(checked, rows=self.rows.with_data(self.model, self.grams.sum(0), units))

    def with_hyperparameters(
        self, prior: Prior, likelihood: Likelihood, steps: tuple[Step, ...] = ()
    ) -> FunctionPosterior:
        """See ``Posterior.with_hyperparameters``; the prior may differ in its precisions alone.

        Raises:
            UnsupportedError: If it groups or scales the weights in another way.
        """
        if not prior.shares(self.prior, self.network.uncertain):
            raise UnsupportedError(
                f"a prior that differs from {self.prior} in its precisions alone, as the kernel was computed for it",
                f"{prior}",
                "fitting again with this prior, or Full(view='weights')",
            )
        return super().with_hyperparameters(prior, likelihood, steps)

    @property
    def precision_operator(self) -> Operator:
        """The posterior precision Λ as an operator; a product is one with ``J̃`` and one with its transpose."""
        prior = self.prior.operator(self.network.uncertain, self.network.like)

        def product(block: Tensor) -> Tensor:
            explained = self.rows.pull(self.model, self.rows.push(self.model, block))
            return self.noise_scale * explained + prior @ block

        return FunctionOperator(product, product, prior.shape, prior.values)

    @working("sample")
    def sample(self, samples: int = 1, *, generator: torch.Generator | int | None = None) -> Float[Tensor, "s d"]:
        """See ``Posterior.sample``; a draw of the prior, conditioned on the data (Wilson et al. 2021).

            θ* + ζ - A⁻¹ J̃ᵀ (J̃ A⁻¹ J̃ᵀ + I / s)⁻¹ (J̃ ζ + ε / √s),    ζ ~ N(0, A⁻¹),  J̃ = Sᵀ J

        Cost:
            A product with ``J̃`` and one with its transpose: of features two matrix products, of training inputs forward
            passes and a backward pass for every draw.
        """
        source = probes.generator_of(generator)
        probes.check_draws(samples, source)
        noise = probes.gaussian((self.network.size, samples), like=self._variance, generator=source)
        zeta = self._variance.sqrt()[:, None] * noise
        with torch.no_grad():
            observed = wide(self.rows.push(self.model, zeta.to(self.network.like)))
            epsilon = probes.gaussian((self.grams.shape[-1], samples), like=observed, generator=source)
            observed += epsilon / self.noise_scale**0.5
            drawn = self._conditioned(zeta, observed)
        return self.network.weights + drawn.mT.to(self.network.weights)

    def _conditioned(self, block: Float[Tensor, "d s"], observed: Float[Tensor, "m s"]) -> Float[Tensor, "d s"]:
        """``V - A⁻¹ J̃ᵀ W Wᵀ U``, for what was observed of V or should have been."""
        weighed = self._root @ (self._root.mT @ observed)
        explained = self.rows.pull(self.model, weighed.to(self.network.like))
        return block - self._variance[:, None] * explained

    def mode_step(self) -> Float[Tensor, " d"] | None:
        """``Λ⁻¹ (s ∇ log p(y | θ*) - A θ*)``: with Gaussian noise the way from the trained weights to the linear mode.

        With Woodbury's identity it takes the kernel between the training rows alone: ``a - A⁻¹ J̃ᵀ W Wᵀ J̃ a`` with
        ``a = s A⁻¹ ∇ log p(y | θ*) - θ*`` and ``W Wᵀ = s (I + s Sᵀ K S)⁻¹``. ``None`` where no score was kept.

        Cost:
            A factorisation of the kernel, a product with J and one with Jᵀ.
        """
        if self.totals.score is None:
            return None
        like = self.network.like
        whole = self.noise_scale * self._variance * wide(self.totals.score) - wide(self.network.weights)
        with torch.no_grad():
            observed = wide(self.rows.push(self.model, whole.to(like)[:, None]))
            return self._conditioned(whole[:, None], observed)[:, 0].to(like)

    @property
    def _curvature(self) -> Float[Tensor, "g m m"]:
        return self.grams

    def _complexity(self) -> Complexity:
        if len(self.grams) > 1:
            return Determinant.of_grams(torch.stack([semidefinite(gram, self._epsilon) for gram in self.grams]))
        eigenvalues = self._spectrum.values
        return Spectrum(eigenvalues, torch.zeros(len(eigenvalues), dtype=torch.long, device=eigenvalues.device))

    @cached_property
    def _spectrum(self) -> Eigenbasis:
        """Of the kernel's only group, before its prior, which the evidence needs too; or of all groups together."""
        if len(self.grams) == 1:
            return self.shared_spectrum.of(self.grams, make=lambda: decompose(self.grams[0], self._epsilon))
        return self.shared_spectrum.of(self.grams, self.prior, make=self._spectrum_of_all)

    def _spectrum_of_all(self) -> Eigenbasis:
        """Of ``Sᵀ K S`` with the prior of each group."""
        return decompose(torch.einsum("g,gmn->mn", 1 / self.prior_precisions, wide(self.grams)), self._epsilon)

    def warn_of_precision(self) -> None:
        """See ``Capabilities.warn_of_precision``; its kernel has the eigenvalues of the curvature."""
        largest = float(self.grams.diagonal(dim1=1, dim2=2).sum(1).max())
        prior = float(self.prior_precisions.min())
        precision = self.model.precision
        if precision.products != WIDE:
            warn_of_products(precision.epsilon, self.noise_scale * largest, prior, self._error_of_products)

    @undisturbed()
    @torch.no_grad()
    def _error_of_products(self) -> float | None:
        """The rounding of the prior's variances of outputs, beside what the data leave of them."""
        inputs = some_inputs(self.model)
        if inputs is None:
            return None
        prior = variances(self._prior_propagation.moments(inputs, rounded=False)[1][0])
        left = variances(self._moments(inputs, [self])[0].covariance)
        return ROUNDING * self._epsilon * excess(prior, left)

    @property
    def _epsilon(self) -> float:
        """Relative rounding of the kernel's products."""
        return self.model.precision.epsilon

    @property
    def _eigenvalues(self) -> Float[Tensor, " m"]:
        """Eigenvalues γ of ``Sᵀ K S``."""
        values = self._spectrum.values
        return values / self.prior_precisions if len(self.grams) == 1 else values

    @cached_property
    def _root(self) -> Float[Tensor, "m m"]:
        """``W`` with ``W Wᵀ = s (I + s Sᵀ K S)⁻¹``."""
        s = self.noise_scale
        return self._spectrum.vectors * (s / (1 + s * self._eigenvalues)).sqrt()

    @cached_property
    def _variance(self) -> Float[Tensor, " d"]:
        """``A⁻¹``."""
        return 1.0 / self.prior_diagonal

    @cached_property
    def _prior_propagation(self) -> Propagation:
        """The outputs' covariance before any data: the tangent kernel at one input."""
        return Propagation(self.model, (BlockedCurvature(Diagonal(self.prior_diagonal)),))

    def _cross(self, inputs: Inputs) -> Float[Tensor, "m r"]:
        """``K*x S``, float64."""
        kernel = TangentKernel(self.model)
        return wide(kernel.cross(inputs, self.rows, self._variance))

    @cached_property
    def inverse_form(self) -> SumForm:
        """See ``Posterior.inverse_form``: ``A⁻¹ - A⁻¹ J̃ᵀ W Wᵀ J̃ A⁻¹``.

        Raises:
            TooLargeError: If ``J̃ᵀ W`` is of more than ``JOINT`` bytes.
        """
        d = self.network.size
        m = self.grams.shape[-1]
        got = f"those of {m:,} training rows and {d:,} weights, which need"
        check_bytes("training rows of the Jacobian", 8 * d * m, JOINT, got, "Full(view='weights'), or KFAC()")
        with torch.no_grad():
            pulled = wide(self.rows.pull(self.model, self._root.to(self.network.like)))
        return SumForm(self._variance, taken=self._variance[:, None] * pulled)

    def _moments(self, inputs: Inputs, choices: Sequence[FunctionPosterior]) -> list[Moments]:
        variances, multiples = distinct([self._variance, *(choice._variance for choice in choices)])
        if len(variances) > 1:
            return [choice._under_multiples(inputs, [(1.0, choice.noise_scale)])[0] for choice in choices]
        scales = [(kappa, choice.noise_scale) for choice, (_, kappa) in zip(choices, multiples[1:], strict=True)]
        return self._under_multiples(inputs, scales)

    def _under_multiples(self, inputs: Inputs, scales: list[tuple[float, float]]) -> list[Moments]:
        """Outputs with the prior's variances times κ and the noise precision s, for several κ and s.

        With ``Sᵀ K S = Q diag(γ) Qᵀ``: ``κ K** - K*x S Q diag(s κ² / (1 + s κ γ)) Qᵀ Sᵀ Kx*``.
        """
        mean, (prior,) = self._prior_propagation.moments(inputs, rounded=False)
        kappa, s = torch.tensor(scales, **wide_like(prior)).unbind(1)
        gain = (s * kappa.square())[:, None] / (1 + (s * kappa)[:, None] * self._eigenvalues)
        rows = self.grams.shape[-1]
        together = max(1, self.model.limits.training // (8 * self.model.width * rows))
        parts: list[Tensor] = []
        for place, part in chunks(inputs, together):
            before = wide(prior[place])
            rotated = (self._cross(part) @ self._spectrum.vectors).view(-1, mean.shape[-1], rows)
            explained = contracted(rotated, gain).view(-1, *before.shape)
            parts.append(torch.einsum("m,...->m...", kappa, before) - explained)
        return [Moments(mean, covariance) for covariance in torch.cat(parts, 1).to(mean)]

    def _joint_moments(self, inputs: Inputs) -> JointMoments:
        mean, prior = joint(self._prior_propagation, inputs)
        explained = self._cross(inputs) @ self._root
        covariance = wide(prior) - explained @ explained.mT
        return JointMoments(mean, covariance.to(mean).view(*mean.shape, *mean.shape))
