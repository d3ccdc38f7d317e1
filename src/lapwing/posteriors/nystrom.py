"""A Gaussian whose data part lies in the span of a few directions: ELLA, the Nyström approximation of the kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lapwing.curvature.blocked import BlockedCurvature
from lapwing.curvature.propagation import Propagation
from lapwing.curvature.tangent_features import OutputFeatures, TangentFeatures
from lapwing.curvature.tangent_kernel import joint
from lapwing.ground import probes
from lapwing.ground.data.inputs import Inputs
from lapwing.ground.data.sources import Data
from lapwing.ground.errors import NumericalError, UnsupportedError
from lapwing.ground.files.archive import Json
from lapwing.ground.files.records import Records
from lapwing.ground.precision import DOUBLE, WIDE, wide
from lapwing.ground.progress import working
from lapwing.ground.results import Estimate
from lapwing.jacobian.network.modes import undisturbed
from lapwing.jacobian.network.network import Network
from lapwing.jacobian.products.linearisation import Linearisation
from lapwing.linalg import Diagonal, LowRank
from lapwing.linalg.operators.eigenbasis import decompose
from lapwing.linalg.operators.inverse_forms import SumForm
from lapwing.linear.log_det_ratio import Complexity, complexity_of_compression, metric_root
from lapwing.posteriors.exact import ExactPosterior, distinct
from lapwing.posteriors.record import check_part_shape
from lapwing.posteriors.rounding import (
    DOUBLE_NETWORK,
    DOUBLE_PRODUCTS,
    excess,
    some_inputs,
    variances,
    warn_of_products,
)
from lapwing.predictive import JointMoments, Moments

ROUNDING = 0.5
"""That of a variance by a difference of two, over the rounding of one product of the larger: as measured."""


@final
@dataclass(frozen=True, eq=False)
class NystromReport:
    """How good the features are, and how many examples made the posterior.

    Args:
        eigenvalues: Of the landmarks' Gram matrix in the prior's units, descending.
        kept: Eigenpairs K that were kept.
        pairs: The landmarks: number of the example in the pass over the data that chose it, and output.
        error: ``tr(K - φφᵀ) / tr K`` of the tangent kernel K = J A⁻¹ Jᵀ at training examples drawn at random.
        trace: (examples, validation NLL in nats) as data came in, from no data on; empty without ``stopping``.
        partial: Whether data were left out because they raised the validation NLL.
    """

    eigenvalues: Float[Tensor, " m"]
    kept: int
    pairs: Int[Tensor, "m 2"]
    error: Estimate
    trace: tuple[tuple[int, float], ...] = ()
    partial: bool = False


@final
@dataclass(frozen=True, eq=False)
class Compression:
    """The posterior inside the span: prior ``M = Wᵀ A W`` and data ``S = Wᵀ G W``, both K × K in float64.

    Args:
        upper: Triangular R with ``Rᵀ R = M``.
        curvature: S.
    """

    upper: Float[Tensor, "k k"]
    curvature: Float[Tensor, "k k"]

    @cached_property
    def prior_root(self) -> Float[Tensor, "k k"]:
        """``P`` with ``P Pᵀ = M⁻¹``."""
        return torch.linalg.solve_triangular(self.upper, torch.eye(len(self.upper)).to(self.upper), upper=True)

    @cached_property
    def root(self) -> Float[Tensor, "k k"]:
        """``Q`` with ``Q Qᵀ = (M + S)⁻¹``, computed in units in which M is 1.

        By a Cholesky factorisation, or where the rounding of S is larger than that 1, by the eigenvalues that are not
        rounding.
        """
        p = self.prior_root
        identity = torch.eye(len(p)).to(p)
        product = p.mT @ self.curvature @ p
        whitened = (product + product.mT) / 2
        lower, failed = torch.linalg.cholesky_ex(identity + whitened)
        if not bool(failed):
            return p @ torch.linalg.solve_triangular(lower, identity, upper=False).mT
        spectrum = decompose(whitened)
        rounding = len(p) * torch.finfo(p.dtype).eps * spectrum.values[-1]
        eigenvalues = spectrum.values.masked_fill(spectrum.values < rounding, 0.0)
        return p @ (spectrum.vectors * (1.0 + eigenvalues).rsqrt())

    def moments(self, features: OutputFeatures, prior: Float[Tensor, "n *event c c"] | None) -> Moments:
        """Outputs ``f ~ N(f(x), φ (M + S)⁻¹ φᵀ)``, and with J A⁻¹ Jᵀ at hand the prior's variance beside the span.

        Args:
            features: f and φ.
            prior: ``J A⁻¹ Jᵀ``; ``None`` leaves out what the span does not see.

        Raises:
            NumericalError: If a covariance is too large for the dtype of the outputs.
        """
        f = features.mean
        factor = features.values @ self.root
        if prior is None:
            return Moments.from_factor(f, factor.to(f))
        prior_factor = features.values @ self.prior_root
        covariance = prior - prior_factor @ prior_factor.mT + factor @ factor.mT
        if not bool(covariance.to(f).isfinite().all()):
            raise NumericalError(
                f"output covariances that fit {f.dtype}",
                f"one of {float(covariance.abs().max()):.3g}",
                "float32, or a larger prior precision",
            )
        return Moments(f, covariance.to(f))


@final
@dataclass(frozen=True, eq=False, repr=False)
class NystromPosterior(ExactPosterior):
    """N(θ*, Λ⁻¹) with the curvature G compressed on the span of W, in the metric of the prior A.

        Λ = A W M⁻¹ (s S) M⁻¹ Wᵀ A + A,    M = Wᵀ A W,    S = Wᵀ G W

    so that with φ = J W the outputs have the covariance ``φ (M + s S)⁻¹ φᵀ + (J A⁻¹ Jᵀ - φ M⁻¹ φᵀ)``. The first term is
    ELLA's (Deng et al. 2022, equation 9); the second is the prior's variance in all other directions. Another prior
    keeps W and S, and compresses again. The evidence is that of the compressed model, whose log determinant
    ``log det(M + s S) / det M`` is at most that of G; the residual has no part in it.

    Args:
        changes: W.
        compressed: S, float64.
        residual: Whether the second term is there.
        report: How good W is.
    """

    changes: Float[Tensor, "d k"]
    compressed: Float[Tensor, "k k"]
    residual: bool
    report: NystromReport

    def record(self, records: Records, *, training_inputs: bool = False) -> Json:
        """See ``Posterior.record``."""
        return self._fields_record(records)

    @classmethod
    def of_record(cls, record: Json, records: Records, network: Network, data: Data | None) -> NystromPosterior:
        """See ``Posterior.of_record``."""
        posterior = super().of_record(record, records, network, data)
        report = replace(posterior.report, pairs=posterior.report.pairs.cpu())
        return replace(posterior, report=report)

    def check_record(self) -> None:
        """See ``Posterior.check_record``."""
        super().check_record()
        check_part_shape("the span", self.changes.shape[:1], (self.network.size,))

    @property
    def training(self) -> Linearisation:
        """See ``Posterior.training``."""
        if self.partial:
            raise UnsupportedError(
                "a posterior made of all its training data",
                f"one that stopped early, at {self.totals.examples} examples",
                "Nystrom without stopping=, or Validation(...), MacKay() or EvidenceGradient(), which need no data",
            )
        return super().training

    @cached_property
    def compression(self) -> Compression:
        """Prior and data inside the span."""
        return Compression(metric_root(self.changes, self.prior_diagonal), self.noise_scale * self.compressed)

    @property
    def precision_operator(self) -> LowRank:
        """The posterior precision Λ as an operator.

        Raises:
            UnsupportedError: Without the residual, where the covariance is singular.
        """
        if not self.residual:
            raise UnsupportedError(
                "a covariance that has an inverse", f"one of rank {self.changes.shape[1]}", "Nystrom(residual=True)"
            )
        prior = self.prior_diagonal
        p = self.compression.prior_root
        values, vectors = torch.linalg.eigh(self.noise_scale * self.compressed)
        root = vectors * values.clamp_min(0.0).sqrt()
        factor = prior[:, None] * (wide(self.changes) @ (p @ (p.mT @ root)))
        return LowRank(factor.to(self.changes), Diagonal(prior.to(self.changes)))

    @working("sample")
    def sample(self, samples: int = 1, *, generator: torch.Generator | int | None = None) -> Float[Tensor, "s d"]:
        """See ``Posterior.sample``: the prior's draw outside the span, the posterior's inside."""
        source = probes.generator_of(generator)
        probes.check_draws(samples, source)
        d, k = self.changes.shape
        w = wide(self.changes)
        within = self.compression
        epsilon = probes.gaussian((k, samples), like=within.curvature, generator=source)
        draws = w @ (within.root @ epsilon)
        if self.residual:
            prior = self.prior_diagonal[:, None]
            of_prior = probes.gaussian((d, samples), like=w, generator=source) / prior.sqrt()
            p = within.prior_root
            draws += of_prior - w @ (p @ (p.mT @ (w.mT @ (prior * of_prior))))
        return self.network.weights + draws.mT.to(self.network.weights)

    def warn_of_precision(self) -> None:
        """See ``Capabilities.warn_of_precision``; also where features are of the type of the network."""
        features = TangentFeatures(self.model, self.changes)
        epsilon = features.epsilon
        if epsilon <= DOUBLE.epsilon:
            return
        p = self.compression.prior_root
        largest = float(torch.linalg.eigvalsh(p.mT @ self.compression.curvature @ p)[-1])
        prior = float(self.prior_diagonal.min())
        if self.model.precision.products == WIDE:
            error = partial(self._error_of_sums, ROUNDING * epsilon * largest)
            cure = DOUBLE_NETWORK
        else:
            error = partial(self._error_of_differences, ROUNDING * epsilon)
            cure = DOUBLE_PRODUCTS
        warn_of_products(epsilon, largest * prior, prior, error, cure)

    @undisturbed()
    @torch.no_grad()
    def _error_of_sums(self, rounding: float) -> float | None:
        """By how much variances of outputs would be smaller, were S as much larger as its rounding, beside M."""
        inputs = some_inputs(self.model)
        if inputs is None:
            return None
        upper = self.compression.upper
        raised = self.compressed + rounding / self.noise_scale * (upper.mT @ upper)
        own, less = (each._moments(inputs, [each])[0] for each in (self, replace(self, compressed=raised)))
        return excess(variances(own.covariance), variances(less.covariance))

    @undisturbed()
    @torch.no_grad()
    def _error_of_differences(self, rounding: float) -> float | None:
        """The rounding of the prior's variances of outputs, beside what the data leave of them."""
        inputs = some_inputs(self.model)
        if inputs is None:
            return None
        features = TangentFeatures(self.model, self.changes, (1.0 / self.prior_diagonal,)).of(inputs)
        left = self._moments(inputs, [self])[0].covariance
        return rounding * excess(variances(features.covariances[0]), variances(left))

    @property
    def _curvature(self) -> Float[Tensor, "k k"]:
        return self.compressed

    def _complexity(self) -> Complexity:
        layout = self.network.uncertain
        group = self.prior.groups(layout)[0]
        return complexity_of_compression(self.changes, self.compressed, group, self.prior.relative(layout))

    @cached_property
    def inverse_form(self) -> SumForm:
        """See ``Posterior.inverse_form``."""
        w = wide(self.changes)
        within = self.compression
        added = w @ within.root
        if not self.residual:
            return SumForm(added=added)
        return SumForm(1.0 / self.prior_diagonal, added=added, taken=w @ within.prior_root)

    def _moments(self, inputs: Inputs, choices: Sequence[NystromPosterior]) -> list[Moments]:
        if not self.residual:
            features = TangentFeatures(self.model, self.changes).of(inputs)
            return [choice.compression.moments(features, None) for choice in choices]
        variances, multiples = distinct([1.0 / choice.prior_diagonal for choice in choices])
        features = TangentFeatures(self.model, self.changes, variances).of(inputs)
        moments = list[Moments]()
        for choice, (place, multiple) in zip(choices, multiples, strict=True):
            moments.append(choice.compression.moments(features, multiple * features.covariances[place]))
        return moments

    def _functions(
        self, inputs: Inputs, samples: int, generator: torch.Generator | None
    ) -> Float[Tensor, "s n *event c"]:
        if self._more_than_outputs(samples, inputs):
            return super()._functions(inputs, samples, generator)
        weights = self.sample(samples, generator=generator)
        return self._moved(inputs, (weights - self.network.weights).mT)

    def _joint_moments(self, inputs: Inputs) -> JointMoments:
        features = TangentFeatures(self.model, self.changes).of(inputs)
        shape = features.mean.shape
        prior = None
        if self.residual:
            propagation = Propagation(self.model, (BlockedCurvature(Diagonal(self.prior_diagonal)),))
            prior = wide(joint(propagation, inputs)[1])[None]
        together = OutputFeatures(features.mean.view(1, -1), features.values.flatten(0, -2)[None])
        whole = self.compression.moments(together, prior)
        factor = None if whole.factor is None else whole.factor.view(*shape, -1)
        return JointMoments(features.mean, whole.covariance.view(*shape, *shape), factor)
