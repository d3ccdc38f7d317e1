"""The posterior over the weights, with a structured precision: N(θ*, Λ⁻¹), Λ = s G + A."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from math import log, pi, prod
from typing import Any, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lapwing.curvature.blocked import BlockedCurvature
from lapwing.curvature.last_layer.head import basis, spectra
from lapwing.curvature.propagation import CHEAPER, LARGE, Propagation, keeps_variances
from lapwing.curvature.tangent_kernel import joint
from lapwing.ground import probes
from lapwing.ground.data.inputs import Inputs, InputsLike, chunks, count
from lapwing.ground.data.sources import Data, Joined
from lapwing.ground.errors import DataError, ShapeError, UnsupportedError, check_bytes
from lapwing.ground.files.archive import Json
from lapwing.ground.files.records import REPAIR, UNRECORDED, Records
from lapwing.ground.moving import Mover
from lapwing.ground.precision import WIDE, wide
from lapwing.ground.progress import Bar, working
from lapwing.ground.shared import Shared
from lapwing.jacobian.live import live
from lapwing.jacobian.network.modes import undisturbed
from lapwing.jacobian.products.strategy import multiplications
from lapwing.likelihoods import Categorical, Likelihood
from lapwing.likelihoods.base import at_places
from lapwing.linalg import BlockDiagonal, Dense, Diagonal, Kronecker, Structured
from lapwing.linalg.operators.eigenbasis import Eigenbasis
from lapwing.linalg.operators.inverse_forms import InverseForm
from lapwing.linear.evidence import Complexity, NewtonStep
from lapwing.linear.log_det_ratio import ComplexityDifference, complexity_of
from lapwing.posteriors.base import FitRecipe
from lapwing.posteriors.exact import ExactPosterior
from lapwing.posteriors.record import check_part_shape
from lapwing.posteriors.rounding import (
    DOUBLE_NETWORK,
    DOUBLE_PRODUCTS,
    excess,
    some_inputs,
    variances,
    warn_of_contrasts,
    warn_of_products,
    warn_of_rounding,
)
from lapwing.posteriors.step import Step
from lapwing.predictive import (
    BasisMoments,
    FactorMoments,
    JointMoments,
    Link,
    Moments,
    Outputs,
    VarianceMoments,
    WideMoments,
)
from lapwing.priors import Prior

logger = logging.getLogger(__name__)

SMALL = 1e-8
"""Rounding of a curvature over the prior precision, at most, with which Cholesky tells what eigenvalues do."""

COPIES = 4
"""Float64 copies of a draw that are made on the way."""


@final
@dataclass(frozen=True, eq=False, repr=False)
class WeightPosterior(ExactPosterior):
    """N(θ*, Λ⁻¹) with Λ = s G + A: curvature G at the trained weights θ*, prior precision A, noise s.

    Args:
        curvature: G.
        shared_precision: Λ, once it was asked for: that of every posterior with the same prior and noise.
        first_determinant: The precision whose determinant was asked for first, and ``log det Λ / det A``.
    """

    curvature: BlockedCurvature
    shared_precision: Shared[BlockedCurvature] = field(
        default_factory=Shared[BlockedCurvature], kw_only=True, metadata=UNRECORDED
    )
    first_determinant: Shared[tuple[BlockedCurvature, Float[Tensor, ""]]] = field(
        default_factory=Shared[tuple[BlockedCurvature, Tensor]], kw_only=True, metadata=UNRECORDED
    )

    def __repr__(self) -> str:
        more, less = self.precision_error
        known = super().__repr__()
        if not (more or less):
            return known
        return (
            f"{known[:-1]}, precision at most {more:.2g} too large and {less:.2g} too small, in 1 / weight², by rank=)"
        )

    def record(self, records: Records, *, training_inputs: bool = False) -> Json:
        """See ``Posterior.record``."""
        return self._fields_record(records)

    def check_record(self) -> None:
        """See ``Posterior.check_record``."""
        super().check_record()
        d = self.network.size
        check_part_shape("the curvature", self.curvature.operator.shape, (d, d))
        blocks = len(self.curvature.operator.blocks) if isinstance(self.curvature.operator, BlockDiagonal) else 0
        partition = self.curvature.partition
        names = {name for part in partition for name in part}
        if len(partition) != blocks or (names and names != set(self.network.names)):
            raise DataError(f"parameters of {blocks} blocks", f"{len(partition)} groups of others", REPAIR)

    @property
    def precision_error(self) -> tuple[float, float]:
        """By how much Λ is at most too large and too small, where ``KFAC`` holds factors by their leading eigenpairs.

        Beside the smallest prior precision α that makes variances too small by at most a factor ``1 + a / α`` and too
        large by at most ``1 + b / α``.

        Returns:
            a and b in 1 / weight², 0 where Λ is exact.
        """
        too_large = 0.0
        too_small = 0.0
        blocks = self.curvature.operator.blocks if isinstance(self.curvature.operator, BlockDiagonal) else ()
        for block in blocks:
            if isinstance(block, Kronecker):
                more, less = factor_error(*block.bases)
                too_large = max(too_large, float(block.scale) * more)
                too_small = max(too_small, float(block.scale) * less)
        return self.noise_scale * too_large, self.noise_scale * too_small

    @working("sample")
    def sample(self, samples: int = 1, *, generator: torch.Generator | int | None = None) -> Float[Tensor, "s d"]:
        """See ``Posterior.sample``; W is the operator's own inverse root."""
        source = probes.generator_of(generator)
        probes.check_draws(samples, source)
        return self.network.weights + self._deviations(samples, source).mT

    def _deviations(self, samples: int, generator: torch.Generator | None) -> Float[Tensor, "d k"]:
        """``W ε`` for some ε, one a column."""
        weights = self.network.weights
        operator = self.precision.operator
        epsilon = probes.gaussian((self.network.size, samples), like=weights, generator=generator)
        if not operator.indexed_blocks:
            return (operator.inverse_root() @ epsilon.to(operator.device, operator.dtype)).to(weights)
        found = torch.empty_like(epsilon)
        start = 0
        for block, index in operator.indexed_blocks:  # one after the other: a float64 copy of all is large
            noise = epsilon[start : start + len(index)].to(block.device, block.dtype)
            found[index] = (block.inverse_root() @ noise).to(weights)
            start += len(index)
        return found

    def with_hyperparameters(
        self, prior: Prior, likelihood: Likelihood, steps: tuple[Step, ...] = ()
    ) -> WeightPosterior:
        """See ``Posterior.with_hyperparameters``."""
        changed = super().with_hyperparameters(prior, likelihood, steps)
        return replace(changed, shared_precision=Shared[BlockedCurvature]())

    @property
    def precision(self) -> BlockedCurvature:
        """The posterior precision Λ = s G + A.

        Warns:
            ConvergenceWarning: If the rounding of a dense curvature is larger than the prior precision.
        """
        return self.shared_precision.of(self.curvature, self.prior, self.likelihood, make=self._precision)

    def _precision(self) -> BlockedCurvature:
        """See ``precision``."""
        curvature = self.curvature.operator
        if self.noise_scale != 1.0:
            curvature = curvature.scaled(self.noise_scale)
        if isinstance(curvature, Dense) and self.model.precision.products == WIDE:
            warn_of_rounding(curvature, float(self.prior_diagonal.min()))
        precisions = self.prior_precisions
        if len(precisions) == 1 and self.prior.relative(self.network.uncertain) is None:
            return BlockedCurvature(curvature.shifted(float(precisions)), self.curvature.partition)
        prior = Diagonal(self.prior_diagonal.to(curvature.device, curvature.dtype))
        return BlockedCurvature(curvature.plus_diagonal(prior.values), self.curvature.partition)

    def warn_of_precision(self) -> None:
        """See ``Capabilities.warn_of_precision``; covariances by single entries have no such error."""
        operator = self.curvature.operator
        asked = self.model.precision
        epsilon = operator.own_rounding
        cure = DOUBLE_NETWORK
        if asked.products != WIDE:
            epsilon = asked.epsilon
            cure = DOUBLE_PRODUCTS
        if epsilon:
            largest = self.noise_scale * operator.rounding_scale
            error = partial(self._error_of_products, epsilon)
            warn_of_products(epsilon, largest, float(self.prior_diagonal.min()), error, cure)
        if isinstance(self.likelihood, Categorical) and self.leaves_out_correlations:
            largest = self.noise_scale * operator.rounding_scale
            prior = float(self.prior_diagonal.min())
            warn_of_contrasts(self.network.like.dtype, largest, prior, self._some_covariances)

    @undisturbed()
    @torch.no_grad()
    def _some_covariances(self) -> Float[Tensor, "*batch c c"] | None:
        """Those of outputs at some training inputs; ``None`` where there are none, or outputs are too many."""
        inputs = some_inputs(self.model)
        if inputs is None or self.wide or self.by_draws(inputs):
            return None
        return self._moments(inputs, [self])[0].covariance

    @undisturbed()
    @torch.no_grad()
    def _error_of_products(self, epsilon: float) -> float | None:
        """By how much variances of outputs would be smaller, were all eigenvalues as much larger as rounding allows."""
        inputs = some_inputs(self.model)
        if inputs is None or self.wide or self.by_draws(inputs):
            return None
        operator = self.curvature.operator.raised(epsilon)
        curvature = replace(self.curvature, operator=operator)
        other = replace(self, curvature=curvature, shared_precision=Shared[BlockedCurvature]())
        if self.leaves_out_correlations:
            own, less = self._moments(inputs, [self, other])
        else:  # several dense precisions at once are decomposed
            (own,) = self._moments(inputs, [self])
            (less,) = other._moments(inputs, [other])
        return excess(variances(own.covariance), variances(less.covariance))

    @property
    def precision_operator(self) -> Structured:
        """The posterior precision Λ as an operator."""
        return self.precision.operator

    @property
    def stored_curvature(self) -> Structured:
        """See ``Capabilities.stored_curvature``."""
        return self.curvature.operator

    @cached_property
    def mode_shift(self) -> NewtonStep | None:
        """How the mode of the linear model moves with prior and noise; ``None`` where no score was kept."""
        if self.totals.score is None:
            return None
        layout = self.network.uncertain
        device = self.curvature.operator.device
        dtype = self.curvature.operator.dtype
        relative = self.prior.relative(layout)
        weights = self.network.weights.to(device, dtype)
        score = self.totals.score.to(device, dtype)
        pull = self.prior.earlier_gradient(weights, layout)
        return NewtonStep(
            self.curvature.operator,
            score if pull is None else score - pull,
            weights,
            self.prior.groups(layout)[0].to(device),
            None if relative is None else relative.to(device),
            self.prior.mean_of(layout, weights),
        )

    def as_prior(self) -> Prior:
        """See ``Posterior.as_prior``."""
        mean = self.network.uncertain.unflatten(self.network.weights)
        return replace(self.prior, mean=mean, earlier=self.curvature.operator.scaled(self.noise_scale))

    def _updated(self, fitted_by: FitRecipe, more: Data) -> WeightPosterior:
        """See ``Posterior.updated``: the curvatures are added, which are those at the fitted noise."""
        if not self.curvature.operator.shifts_exactly:
            return super()._updated(fitted_by, more)
        prior = replace(self.prior, earlier=None)
        alone = fitted_by.again(replace(self.model, source=more), prior)
        if not isinstance(alone, WeightPosterior):  # a structure that holds few examples in another view
            return super()._updated(fitted_by, more)
        operator = self.curvature.operator.pooled(alone.curvature.operator)
        data = None
        if self.model.source is not None:
            data = Data(Joined(self.model.source, more), like=self.network.like, shared=more.shared)
        changed = replace(
            self,
            model=replace(self.model, source=data),
            totals=self.totals.joined(alone.totals),
            curvature=BlockedCurvature(operator, self.curvature.partition),
            fit_seconds=self.fit_seconds + alone.fit_seconds,
        )
        return changed.with_hyperparameters(self.prior, self.likelihood)

    def log_prob(self, weights: Float[Tensor, "*s d"]) -> Float[Tensor, "*s"]:
        """The log density of the posterior, ``log N(θ; θ*, Λ⁻¹)``, normalised, nats, float64; differentiable in θ.

        Args:
            weights: θ, one vector or several, as ``sample`` draws them.

        Raises:
            ShapeError: If there are not ``d`` weights.

        Cost:
            A product with Λ for each, and its determinant, once.

        Example:
            >>> import lapwing as lw
            >>> model, x, y = torch.nn.Linear(2, 1), torch.randn(20, 2), torch.randn(20, 1)
            >>> posterior = lw.Laplace(lw.Gaussian()).fit(model, (x, y))
            >>> posterior.log_prob(posterior.sample(5)).shape
            torch.Size([5])
        """
        d = self.network.size
        if weights.shape[-1:] != (d,):
            raise ShapeError(f"weights [{d}] or [s, {d}]", f"{list(weights.shape)}", "posterior.sample(5)")
        precision = self.precision_operator
        mode = wide(self.network.weights)
        deviations = wide(weights.to(mode.device)).reshape(-1, d) - mode
        products = (precision @ deviations.mT.to(precision.device, precision.dtype)).mT
        squares = (deviations * products.to(deviations)).sum(1)
        constant = 0.5 * (precision.logdet().to(squares) - d * log(2 * pi))
        return (constant - 0.5 * squares).reshape(weights.shape[:-1])

    @property
    def _curvature(self) -> BlockedCurvature:
        return self.curvature

    def _log_det_ratio_at_first(self) -> Float[Tensor, ""] | None:
        """See ``ExactPosterior``: of a matrix by Cholesky, while no eigenvalues are known."""
        first = self.first_determinant.known(self.curvature)
        if first is None:
            ratio = self._log_det_ratio_by_cholesky()
            if ratio is None:
                return None
            first = self.first_determinant.replaced((self.precision, ratio), self.curvature)
        precision, ratio = first
        return ratio if precision is self.precision else None

    def _log_det_ratio_by_cholesky(self) -> Float[Tensor, ""] | None:
        """``log det Λ / det A``; ``None`` of what is no matrix, or where rounding is near the prior precision."""
        curvature = self.curvature.operator
        if not isinstance(curvature, Dense) or curvature.has_eigenbasis or self._known_evidence is not None:
            return None
        if self.prior.earlier is not None:
            return None
        prior = self.prior_diagonal
        rounding = torch.finfo(curvature.dtype).eps * self.noise_scale * curvature.eigenvalue_bound
        if rounding > SMALL * float(prior.min()):
            return None
        operator = self.precision.operator
        if not isinstance(operator, Dense) or not operator.has_cholesky:
            return None
        return operator.logdet() - prior.log().sum().to(operator.device)

    def _complexity(self) -> Complexity:
        layout = self.network.uncertain
        group = self.prior.groups(layout)[0]
        relative = self.prior.relative(layout)
        whole = complexity_of(self.curvature.operator, group, relative)
        if self.prior.earlier is None:
            return whole
        earlier: Structured = Mover(self.curvature.operator.device)(self.prior.earlier)
        return ComplexityDifference(whole, complexity_of(earlier, group, relative))

    @property
    def wide(self) -> bool:
        """See ``Posterior.wide``."""
        return self.model.many and self.leaves_out_correlations

    @property
    def leaves_out_correlations(self) -> bool:
        """See ``Capabilities.leaves_out_correlations``."""
        return isinstance(self.curvature.operator, BlockDiagonal | Diagonal)

    def _moments(
        self,
        inputs: Inputs,
        choices: Sequence[WeightPosterior],
        places: Int[Tensor, " p"] | None = None,
        large: int = LARGE,
        link: Link | None = None,
    ) -> Sequence[Moments | WideMoments]:
        propagation = Propagation(self.model, tuple(choice.precision for choice in choices), large)
        if self.survey.head and self.leaves_out_correlations:
            outputs = wide_moments(propagation, inputs, places)
            return outputs if self.wide else [each.written for each in outputs]
        if self.by_draws(inputs):
            alone = self._variances_alone(inputs, link)
            return [choice._moments_by_draws(inputs, places, variances_alone=alone) for choice in choices]
        mean, covariances = propagation.moments(inputs, places)
        return [Moments(mean, covariance) for covariance in covariances]

    def _linearised(self, inputs: Inputs, link: Link, joint: bool, samples: int) -> Outputs:
        """By draws no more than the link takes, where that would be too much to keep."""
        if joint or live(inputs):
            return super()._linearised(inputs, link, joint, samples)
        return self._moments(inputs, [self], link=link)[0]

    def _moments_of_both(self, inputs: Inputs, other: WeightPosterior, link: Link) -> tuple[Outputs, Outputs]:
        """See ``Posterior``; variances of large layers are made, which nodes between eigenvalues would only be near."""
        outputs, known = self._moments(inputs, [self, other], large=sys.maxsize, link=link)
        return outputs, known

    @property
    def numbers_by_choice(self) -> int:
        """See ``Posterior.numbers_by_choice``; not of large Kronecker products, whose variances are not kept."""
        if not isinstance(self.curvature.operator, BlockDiagonal):
            return self.network.size
        return sum(block.shape[0] for block in self.curvature.operator.blocks if keeps_variances(block))

    @property
    def predicts_by_draws(self) -> bool:
        """See ``Capabilities.predicts_by_draws``."""
        return self.data is not None and self.by_draws(self.data.first())

    def by_draws(self, inputs: Inputs) -> bool:
        """Whether the Jacobian of one example is too large to be made, layer by layer, or takes too long.

        Cost:
            A forward pass of one example, where it has more outputs than there would be draws.
        """
        if self.survey.head:
            return False
        limits = self.model.limits
        if self.survey.bytes(self.model.event[-1], self.network.like.itemsize) > limits.jacobian:
            return True
        return self.model.width > limits.draws and self._pulled(inputs) > limits.multiplications

    def _pulled(self, inputs: Inputs) -> float:
        """Multiplications that exact covariances of one example take: a backward pass an output, and as many again."""
        return 2.0 * self.model.width * multiplications(self.network, inputs)

    def _variances_alone(self, inputs: Inputs, link: Link | None) -> bool:
        """Whether a link takes the variances of outputs alone, and draws of them all are too much to keep beside."""
        if not self.likelihood.labels or link != "probit" or self.model.event[-1] <= self._draws:
            return False
        numbers = count(inputs) * self.model.width * self._draws
        return numbers * self.network.like.itemsize > self.model.limits.factor_bytes

    def _moments_by_draws(
        self, inputs: Inputs, places: Int[Tensor, " p"] | None = None, *, variances_alone: bool = False
    ) -> Moments | FactorMoments | VarianceMoments:
        """Outputs known by k draws of the weights (see ``Limits``), the same at every call: ``F = J W ε / √k``.

        Args:
            inputs: n examples.
            places: As for ``Propagation.moments``.
            variances_alone: Whether to keep no more than ``diag F Fᵀ``.

        Returns:
            ``F Fᵀ`` at each position; of more outputs than draws F itself.

        Raises:
            TooLargeError: If that is of more bytes than ``Limits.moved_bytes``.

        Cost:
            About two forward passes a draw, and its making; memory ``Limits.draw_bytes`` beside the result.
        """
        limits = self.model.limits
        draws = self._draws
        outputs = self.model.event[-1]
        written = outputs <= draws
        columns_kept = [outputs if written else draws]
        if variances_alone:
            columns_kept = []
        itemsize = self.network.like.itemsize
        needed = count(inputs) * self.model.width * prod(columns_kept) * itemsize
        got = f"{count(inputs)} examples of {self.model.width:,} outputs, which need"
        hint = "fewer inputs at a time, or weights=LastLayer()"
        if self.likelihood.labels:
            hint = "link='probit', which takes variances alone, " + hint
        check_bytes("covariances by draws", needed, limits.moved_bytes, got, hint)
        logger.warning(
            "exact covariances of %d outputs an example would take %.2g multiplications and %s MiB for each: they are "
            "those of %d draws, with a relative standard error of %.2g of a variance. weights=LastLayer() has them "
            "exactly",
            self.model.width,
            self._pulled(inputs),
            f"{self.survey.bytes(outputs, itemsize) >> 20:,}",
            draws,
            (2 / draws) ** 0.5,
        )
        examples = max(1, limits.draw_bytes // (self.model.width * self._together * itemsize))
        pieces = list(chunks(inputs, examples))
        means = [self.network.like] * len(pieces)
        found = self.network.like
        total = draws * count(inputs)
        with Bar("draws of outputs", total, unit="draws of an example", cheaper=CHEAPER) as bar:
            drawn = 0
            for deviations in self._blocks_of_draws():
                for number, (place, part) in enumerate(pieces):
                    mean, moved = self.pushed(part, deviations)
                    means[number] = at_places(mean, places)
                    columns = torch.stack([at_places(column, places) for column in moved.unbind(-1)], -1)
                    if not drawn and not number:
                        found = columns.new_zeros(count(inputs), *columns.shape[1:-1], *columns_kept)
                    if variances_alone:
                        found[place] += columns.square().sum(-1)
                    elif written:
                        found[place] += columns @ columns.mT
                    else:
                        found[place][..., drawn : drawn + columns.shape[-1]] = columns
                    bar.update(count(part) * columns.shape[-1])
                drawn += deviations.shape[1]
        mean = torch.cat(means)
        if variances_alone:
            return VarianceMoments(mean, found.div_(draws))
        if written:
            return Moments(mean, found.div_(draws))
        return FactorMoments(mean, found.div_(draws**0.5))

    @property
    def separate_places(self) -> bool:
        """See ``Capabilities.separate_places``."""
        return True

    @undisturbed()
    @working("predict")
    def outputs_at(
        self, x: InputsLike, places: Int[Tensor, " p"], choices: Sequence[Any]
    ) -> Sequence[Moments | WideMoments]:
        """See ``Posterior.outputs_at``."""
        inputs = self._inputs(x)
        with torch.no_grad():
            return self._moments(inputs, choices, places)

    @cached_property
    def inverse_form(self) -> InverseForm:
        """See ``Posterior.inverse_form``; by layers in the type of the network, as predictions are."""
        operator = self.precision.operator
        form = operator.inverse_form()
        return form.to(self.network.like.dtype) if self.leaves_out_correlations else form

    def check_differentiable(self, inputs: Inputs) -> None:
        """See ``Posterior.check_differentiable``."""
        if self.by_draws(inputs):
            raise UnsupportedError(
                "outputs few enough to be pulled back, to differentiate their covariances in the inputs",
                f"{self.model.width:,} outputs an example, known by draws",
                "torch.no_grad(), or weights=LastLayer()",
            )

    def _functions(
        self, inputs: Inputs, samples: int, generator: torch.Generator | None
    ) -> Float[Tensor, "s n *event c"]:
        if self._more_than_outputs(samples, inputs):
            return super()._functions(inputs, samples, generator)
        together = min(samples, self._together)
        drawn = list[Tensor]()
        for first in range(0, samples, together):
            deviations = self._deviations(min(together, samples - first), generator)
            drawn.append(self._moved(inputs, deviations))
        return torch.cat(drawn)

    def _joint_moments(self, inputs: Inputs) -> JointMoments:
        if len(set(self.curvature.partition)) < len(self.curvature.partition):
            outputs = f"{self.model.event[-1]:,} of them, of which some are held apart"
            raise UnsupportedError("outputs few enough for a joint covariance", outputs, "joint=False, or sample()")
        if self.by_draws(inputs):
            return self._joint_by_draws(inputs)
        mean, covariance = joint(Propagation(self.model, (self.precision,)), inputs)
        return JointMoments(mean, covariance.to(mean).view(*mean.shape, *mean.shape))

    @property
    def _draws(self) -> int:
        """Draws of the weights that outputs are known by, whatever the inputs."""
        limits = self.model.limits
        making = limits.draws * self.precision.operator.root_cost
        return limits.draws if making <= limits.multiplications else min(limits.few_draws, limits.draws)

    @property
    def _together(self) -> int:
        """Draws of the weights that are made at a time."""
        limits = self.model.limits
        return min(self._draws, max(1, limits.draw_bytes // (COPIES * 8 * self.network.size)))

    def _blocks_of_draws(self) -> Iterator[Float[Tensor, "d k"]]:
        """Deviations of all draws of the weights, the same at every call, some at a time."""
        generator = torch.Generator().manual_seed(0)
        draws = self._draws
        for first in range(0, draws, self._together):
            yield self._deviations(min(self._together, draws - first), generator)

    def _joint_by_draws(self, inputs: Inputs) -> JointMoments:
        """The same by draws, with F; see ``_moments_by_draws``."""
        draws = self._draws
        mean = self.network.like
        columns: list[Tensor] = []
        with Bar("draws of outputs", draws, unit="draws", cheaper=CHEAPER) as bar:
            for deviations in self._blocks_of_draws():
                mean, moved = self.pushed(inputs, deviations)
                columns.append(moved)
                bar.update(moved.shape[-1])
        factor = torch.cat(columns, -1) / draws**0.5
        rows = factor.flatten(0, -2)
        return JointMoments(mean, (rows @ rows.mT).view(*mean.shape, *mean.shape), factor)


def wide_moments(
    propagation: Propagation, inputs: Inputs, places: Int[Tensor, " p"] | None = None
) -> list[BasisMoments]:
    """Outputs of a head, whose covariances at all positions have the same eigenvectors, under each precision.

    Args:
        propagation: Carries the weights' Gaussian to the outputs.
        inputs: n examples.
        places: As for ``Propagation.moments``.

    Cost:
        A forward pass; for each precision a product as large as that of the last layer.
    """
    network = propagation.model.network
    means = list[Tensor]()
    eigenvalues = [list[Tensor]() for _ in propagation.precisions]
    for part in propagation.passes(inputs):
        mean = at_places(part.outputs, places)
        means.append(mean)
        of_each = spectra(part.head, propagation.precisions, network, places)
        for values, found in zip(eigenvalues, of_each, strict=True):
            values.append(found.view_as(mean))
    mean = torch.cat(means)
    eigenvectors = basis(propagation.precisions[0], network)
    moments = list[BasisMoments]()
    for values in eigenvalues:
        moments.append(BasisMoments(mean, torch.cat(values), *eigenvectors))
        values.clear()  # what was put together is let go of, precision by precision
    return moments


def factor_error(left: Eigenbasis, right: Eigenbasis) -> tuple[float, float]:
    """By how much ``L ⊗ R`` is at most too large and too small: ``-b I ≼ what it is - what it stands for ≼ a I``.

    Where what a factor stands for lies between ``F = Q diag(λ) Qᵀ`` and ``F + error I``, as for a Nyström factor,

        a = ρ_L t_R + ρ_R t_L + ρ_L ρ_R,   b = t_L t_R - λ_L λ_R,   t = λ + error for the largest λ.

    Returns:
        a and b, 0 for factors that are exact.
    """
    lambda_left = left.largest_eigenvalue
    lambda_right = right.largest_eigenvalue
    t_left = lambda_left + left.error
    t_right = lambda_right + right.error
    a = left.rest * t_right + right.rest * t_left + left.rest * right.rest
    b = t_left * t_right - lambda_left * lambda_right
    return a, b
