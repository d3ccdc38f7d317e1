"""Posteriors whose evidence is a closed function of prior and noise; of them that with a structured precision."""

from __future__ import annotations

import abc
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lapwing.curvature.gram import joint
from lapwing.curvature.head import basis, spectra
from lapwing.curvature.sums import Held
from lapwing.curvature.variance import CHEAPER, Propagation
from lapwing.ground import probes
from lapwing.ground.data.inputs import Inputs, InputsLike
from lapwing.ground.errors import ConvergenceWarning, NumericalError, UnsupportedError, finite_evidence, warn
from lapwing.ground.progress import Bar, working
from lapwing.jacobian.network.modes import undisturbed
from lapwing.likelihoods import Likelihood
from lapwing.likelihoods.base import at_places
from lapwing.linalg import BlockDiagonal, Dense, Diagonal, Kronecker, Structured
from lapwing.linalg.operators.eigenbasis import Eigenbasis
from lapwing.linear.evidence import Complexity, LogEvidence, NewtonStep
from lapwing.linear.log_det_ratio import complexity_of
from lapwing.posteriors.base import Posterior
from lapwing.posteriors.dimension import Step
from lapwing.predictive import BasisMoments, FactorMoments, JointMoments, Moments, WideMoments
from lapwing.priors import Prior

logger = logging.getLogger(__name__)

JACOBIAN = 2**31
"""Bytes the Jacobian of one example may take, layer by layer, for covariances of its outputs (2 GiB)."""

DRAWS = 64
"""Draws of the weights that outputs are known by where it would take more."""

BLOCK = 2**28
"""Bytes that draws made at a time may take (256 MiB)."""

COPIES = 4
"""Float64 copies of a draw that are made on the way."""

DROWNED = 1e3
"""The rounding of a curvature over the prior precision from which its posterior is refused."""

P = TypeVar("P", bound="ExactPosterior")


@dataclass(frozen=True, eq=False, repr=False)
class ExactPosterior(Posterior):
    """A Gaussian whose log determinant is exact, so that its prior and noise can be tuned by the evidence."""

    @working("evidence")
    def log_marginal(self) -> float:
        """Log evidence, nats; see ``Posterior.log_marginal``.

        Raises:
            NumericalError: If it is not finite.

        Cost:
            One factorisation of the curvature, kept for the next call. No data.
        """
        return finite_evidence(float(self.evidence.log_marginal(self.prior_precisions, self.scale)))

    @working("effective dimension")
    def effective_dimension(self) -> float:
        """Directions of weight space that the data determined, ``γ = d - tr(A Λ⁻¹)`` (MacKay 1992)."""
        return float(self.evidence.effective_dimensions(self.prior_precisions, self.scale).sum())

    @cached_property
    def evidence(self) -> LogEvidence:
        """The evidence as a function of prior precision and noise."""
        return self._evidence(self._complexity())

    def with_choices(self: P, prior: Prior, likelihood: Likelihood, steps: tuple[Step, ...] = ()) -> P:
        """See ``Posterior.with_choices``; the factorisation behind the evidence is shared."""
        changed = super().with_choices(prior, likelihood, steps)
        if "evidence" in vars(self) and prior.shares(self.prior, self.network.uncertain):
            vars(changed)["evidence"] = self.evidence
        return changed

    @abc.abstractmethod
    def _complexity(self) -> Complexity: ...


@final
@dataclass(frozen=True, eq=False, repr=False)
class WeightPosterior(ExactPosterior):
    """N(θ*, Λ⁻¹) with Λ = s G + A: curvature G at the trained weights θ*, prior precision A, noise s.

    Args:
        held: The curvature G.
    """

    held: Held

    def __repr__(self) -> str:
        more, less = self.precision_error
        known = super().__repr__()
        if not (more or less):
            return known
        return (
            f"{known[:-1]}, precision at most {more:.2g} too large and {less:.2g} too small, in 1 / weight², by rank=)"
        )

    @property
    def precision_error(self) -> tuple[float, float]:
        """By how much Λ is at most too large and too small, where ``KFAC`` holds factors by their leading eigenpairs.

        Beside the smallest prior precision α that makes variances too small by at most a factor ``1 + a / α`` and too
        large by at most ``1 + b / α``.

        Returns:
            a and b in 1 / weight², 0 where Λ is exact.
        """
        blocks = self.held.operator.blocks if isinstance(self.held.operator, BlockDiagonal) else ()
        kinds = [block for block in blocks if isinstance(block, Kronecker)]
        found = [(float(block.scale) * part for part in factor_error(*block.bases)) for block in kinds]
        more, less = (self.noise_scale * max(each) for each in zip((0.0, 0.0), *found, strict=True))
        return more, less

    @working("sample")
    def sample(self, samples: int = 1, *, generator: torch.Generator | None = None) -> Float[Tensor, "s d"]:
        """See ``Posterior.sample``; W is the operator's own inverse root."""
        probes.check_draws(samples, generator)
        return self.network.weights + self._deviations(samples, generator).mT

    def _deviations(self, samples: int, generator: torch.Generator | None) -> Float[Tensor, "d k"]:
        """``W ε`` for some ε, one a column."""
        weights, operator = self.network.weights, self.precision.operator
        noise = probes.gaussian((self.network.size, samples), like=weights, generator=generator)
        return (operator.inverse_root() @ noise.to(operator.dtype)).to(weights)

    @cached_property
    def precision(self) -> Held:
        """The posterior precision Λ.

        Warns:
            ConvergenceWarning: If the rounding of a dense curvature is larger than the prior precision.
        """
        curvature = self.held.operator if self.noise_scale == 1.0 else self.held.operator.scaled(self.noise_scale)
        precisions, layout = self.prior_precisions, self.network.uncertain
        warn_of_rounding(curvature, lambda: float(self.prior_diagonal.min()))
        if len(precisions) == 1 and self.prior.relative(layout) is None:
            return Held(curvature.shifted(float(precisions)), self.held.partition)
        prior = Diagonal(self.prior_diagonal.to(curvature.dtype))
        return Held(curvature.plus_diagonal(prior.values), self.held.partition)

    @property
    def precision_operator(self) -> Structured:
        """The posterior precision Λ as an operator."""
        return self.precision.operator

    @cached_property
    def shift(self) -> NewtonStep | None:
        """How the mode of the linear model moves with the hyper-parameters; ``None`` where no score was kept."""
        if self.totals.score is None:
            return None
        layout, device, dtype = self.network.uncertain, self.network.like.device, self.held.operator.dtype
        group, relative = self.prior.groups(layout)[0].to(device), self.prior.relative(layout)
        relative = None if relative is None else relative.to(device)
        return NewtonStep(
            self.held.operator, self.totals.score.to(dtype), self.network.weights.to(dtype), group, relative
        )

    def _complexity(self) -> Complexity:
        layout = self.network.uncertain
        return complexity_of(self.held.operator, self.prior.groups(layout)[0], self.prior.relative(layout))

    @property
    def wide(self) -> bool:
        """See ``Posterior.wide``."""
        return self.model.many and self._by_layers

    @property
    def _by_layers(self) -> bool:
        return isinstance(self.held.operator, BlockDiagonal | Diagonal)

    def _moments(
        self, inputs: Inputs, choices: Sequence[WeightPosterior], places: Int[Tensor, " p"] | None = None
    ) -> Sequence[Moments | WideMoments]:
        given = Propagation(self.model, tuple(choice.precision for choice in choices))
        if self.survey.head and self._by_layers:
            found = wide_moments(given, inputs, places)
            return found if self.wide else [each.written for each in found]
        if self._drawn and not self.survey.head:
            return [choice._moments_by_draws(inputs, places) for choice in choices]
        mean, covariances = given.moments(inputs, places)
        return [Moments(mean, covariance) for covariance in covariances]

    @property
    def _drawn(self) -> bool:
        """Whether the Jacobian of one example is too large to be made, layer by layer as it would be."""
        network = self.network
        return self.survey.bytes(self.model.event[-1], network.like.itemsize) > JACOBIAN

    def _moments_by_draws(self, inputs: Inputs, places: Int[Tensor, " p"] | None = None) -> FactorMoments:
        """Outputs known by ``DRAWS`` draws of the weights, the same at every call: ``F = J W ε / √DRAWS``.

        Args:
            inputs: n examples.
            places: As for ``Propagation.moments``.

        Cost:
            About two forward passes a draw, and its making; memory ``BLOCK`` beside the result.
        """
        outputs = self.model.event[-1]
        needed = self.survey.bytes(outputs, self.network.like.itemsize) >> 20
        words = (
            "the Jacobian of one example, %d outputs, would take %s MiB: covariances are those of %d draws, with a "
            "relative standard error of %.2g of a variance. weights=LastLayer() has them exactly"
        )
        logger.warning(words, outputs, f"{needed:,}", DRAWS, (2 / DRAWS) ** 0.5)
        generator = torch.Generator().manual_seed(0)
        together = max(1, BLOCK // (COPIES * 8 * self.network.size))
        mean = self.network.like
        columns = list[Tensor]()
        with Bar("draws of outputs", DRAWS, unit="draws", cheaper=CHEAPER) as bar:
            for first in range(0, DRAWS, together):
                deviations = self._deviations(min(together, DRAWS - first), generator)
                mean, moved = self.pushed(inputs, deviations)
                columns += [at_places(column, places) for column in moved.unbind(-1)]
                bar.update(moved.shape[-1])
        return FactorMoments(at_places(mean, places), torch.stack(columns, -1) / DRAWS**0.5)

    @undisturbed()
    @working("predict")
    def outputs_at(
        self, x: InputsLike, places: Int[Tensor, " p"], choices: Sequence[WeightPosterior]
    ) -> Sequence[Moments | WideMoments]:
        """``outputs_each`` at some event positions, counted over all axes, which become one; others cost nothing."""
        inputs = self._inputs(x)
        with torch.no_grad():
            return self._moments(inputs, choices, places)

    def _joint_moments(self, inputs: Inputs) -> JointMoments:
        if len(set(self.held.partition)) < len(self.held.partition):
            outputs = f"{self.model.event[-1]:,} of them, of which some are held apart"
            raise UnsupportedError("outputs few enough for a joint covariance", outputs, "joint=False, or sample()")
        if self._drawn and not self.survey.head:
            found = self._moments_by_draws(inputs)
            rows = found.factor.flatten(0, -2)
            return JointMoments(found.mean, (rows @ rows.mT).view(*found.mean.shape, *found.mean.shape), found.factor)
        mean, covariance = joint(Propagation(self.model, (self.precision,)), inputs)
        return JointMoments(mean, covariance.to(mean).view(*mean.shape, *mean.shape))


def wide_moments(given: Propagation, inputs: Inputs, places: Int[Tensor, " p"] | None = None) -> list[BasisMoments]:
    """Outputs of a head, whose covariances at all positions have the same eigenvectors, under each precision.

    Args:
        given: Carries the weights' Gaussian to the outputs.
        inputs: n examples.
        places: As for ``Propagation.moments``.

    Cost:
        A forward pass; for each precision a product as large as that of the last layer.
    """
    network, means, values = given.model.network, list[Tensor](), list[list[Tensor]]()
    for part in given.passes(inputs):
        means.append(at_places(part.outputs, places))
        each = spectra(part.head, given.precisions, network, places)
        values.append([found.view_as(means[-1]) for found in each])
    mean, mixed = torch.cat(means), basis(given.precisions[0], network)
    columns = [list(column) for column in zip(*values, strict=True)]
    values.clear()  # what was put together is let go of, precision by precision
    return [BasisMoments(mean, torch.cat(columns.pop(0)), *mixed) for _ in given.precisions]


def check_rounding(posterior: WeightPosterior) -> None:
    """Refuse a posterior of whose undetermined directions nothing is left beside the rounding of its curvature.

    Raises:
        NumericalError: If the rounding is ``DROWNED`` times the prior precision.
    """
    prior = float(posterior.prior_diagonal.min())
    rounding = rounding_above(posterior.held.operator, lambda: DROWNED * prior)
    if rounding is not None:
        raise NumericalError(
            f"a curvature whose rounding is less than {DROWNED:g} times the prior precision, {prior:.2g}",
            f"a rounding of {rounding:.2g}: variances of what the data say little about would be wrong",
            "inputs, targets and log variances of size 1, a larger prior precision, or structure=KFAC()",
        )


def rounding_above(curvature: Structured, limit: Callable[[], float]) -> float | None:
    """The rounding of a dense curvature, if it is above a limit and directions drown in it; else ``None``.

    Args:
        curvature: s G.
        limit: The limit.

    Cost:
        The trace; an eigendecomposition only where its rounding is above the limit.
    """
    if not isinstance(curvature, Dense):
        return None
    rounding = float(curvature.diagonal().sum()) * torch.finfo(curvature.dtype).eps
    if rounding <= limit() or float(curvature.eigenvalues()[0]) >= rounding:
        return None
    return rounding


def warn_of_rounding(curvature: Structured, smallest: Callable[[], float]) -> None:
    """Warn where directions that the data leave to the prior drown in the rounding of a dense curvature.

    Args:
        curvature: s G.
        smallest: Smallest precision of the prior.

    Cost:
        That of ``rounding_above``.
    """
    rounding = rounding_above(curvature, smallest)
    if rounding is not None:
        warn(
            f"the rounding of the curvature, {rounding:.2g}, is larger than the prior precision, {smallest():.2g}: "
            "variances of what the data say little about are wrong. "
            'Try Full(view="functions"), or a larger prior precision',
            ConvergenceWarning,
        )


def distinct(variances: list[Float[Tensor, " d"]]) -> tuple[tuple[Float[Tensor, " d"], ...], list[tuple[int, float]]]:
    """Those that are not multiples of one another; for each variance, which of them it is and how many times it.

    Example:
        >>> distinct([torch.ones(2), 3 * torch.ones(2)])[1]
        [(0, 1.0), (0, 3.0)]
    """
    found: list[Tensor] = []
    places: list[tuple[int, float]] = []
    for variance in variances:
        ratios = [variance / known for known in found]
        same = [i for i, ratio in enumerate(ratios) if bool(ratio.max() <= (1 + 1e-12) * ratio.min())]
        if same:
            places.append((same[0], float(ratios[same[0]][0])))
        else:
            places.append((len(found), 1.0))
            found.append(variance)
    return tuple(found), places


def factor_error(left: Eigenbasis, right: Eigenbasis) -> tuple[float, float]:
    """By how much ``L ⊗ R`` is at most too large and too small: ``-b I ≼ what it is - what it stands for ≼ a I``.

    Where what a factor stands for lies between ``F = Q diag(λ) Qᵀ`` and ``F + error I``, as for a Nyström factor,

        a = ρ_L t_R + ρ_R t_L + ρ_L ρ_R,   b = t_L t_R - λ_L λ_R,   t = λ + error for the largest λ.

    Returns:
        a and b, 0 for factors that are exact.
    """
    sizes = [float(side.values.max()) if side.values.numel() else 0.0 for side in (left, right)]
    one, other = (size + side.error for size, side in zip(sizes, (left, right), strict=True))
    return left.rest * other + right.rest * one + left.rest * right.rest, one * other - sizes[0] * sizes[1]
