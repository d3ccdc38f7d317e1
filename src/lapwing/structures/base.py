"""What a structure is, and what it is given to fit."""

from __future__ import annotations

import abc
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import NoneType
from typing import Any, ClassVar, TypeVar, cast, final

import torch

from lapwing.curvature.blocked import BlockedCurvature
from lapwing.curvature.diagonal import DiagonalSum
from lapwing.curvature.fold import Fold, Totals
from lapwing.curvature.kinds import GGN, Curvature, EmpiricalFisher, SampledGGN
from lapwing.curvature.sweep import Accumulator, chunk_size, sweep
from lapwing.ground.data.inputs import count
from lapwing.ground.errors import DataWarning, UnsupportedError, warn
from lapwing.ground.moving import Mover
from lapwing.ground.progress import clock
from lapwing.jacobian.layers.capture import kind_of
from lapwing.jacobian.model import Model
from lapwing.jacobian.products.strategy import multiplications
from lapwing.linalg import Structured
from lapwing.posteriors import Posterior, WeightPosterior
from lapwing.priors import GPrior, Prior

logger = logging.getLogger(__name__)

P = TypeVar("P", bound=Posterior)

EXACT = 1024
"""Most outputs of an example, over its positions, for which each has a backward pass of its own; more have draws."""

CHEAP = 128
"""Outputs for which each always has one."""

DRAWS = 64
"""Of those an example, each of all its outputs together."""

FEW_DRAWS = 16
"""Of those an example, where ``DRAWS`` would take more than ``MANY`` too."""

MANY = 1.2e12
"""Multiplications that backward passes for the outputs of all data may take where nobody asked for them by name."""

SAMPLES = 10
"""Draws over all data for each row of a matrix that is inverted: fewer make its inverse a ninth too large, and more."""

BACKWARD = 3
"""Forward passes that a backward pass takes, with the second moments of its gradients."""


class Structure(abc.ABC):
    """How the posterior is held, and what it takes to compute it in that form."""

    adds_to: ClassVar[tuple[type[Structured], ...]] = ()
    """Kinds of earlier curvature that its own has a sum with, see ``Structured.plus``."""

    @abc.abstractmethod
    def fit(self, task: FitTask) -> Posterior:
        """The posterior of a task in this structure."""

    def within(self, max_bytes: int) -> Structure:
        """The same structure with no more memory; itself where it has no such bound."""
        own = getattr(self, "max_bytes", None)
        return self if own is None else replace(cast(Any, self), max_bytes=min(own, max_bytes))

    def check_prior(self, prior: Prior) -> None:
        """Refuse a prior that knows of earlier data, whose curvature has no sum with this structure.

        Args:
            prior: The prior.

        Raises:
            UnsupportedError: If it does.
        """
        if not isinstance(prior.earlier, (*self.adds_to, NoneType)):
            raise UnsupportedError(
                f"a prior without earlier data for {self}",
                f"{prior}",
                "structure KFAC(), Diagonal() or Full(view='weights'), the one of the posterior that is the prior now",
            )


@final
@dataclass(frozen=True)
class StructureFit:
    """How a posterior was fitted; see ``posteriors.base.Fit``.

    Args:
        structure: The structure, the one that was picked in place of ``Auto``.
        curvature: Which matrix.
    """

    structure: Structure
    curvature: Curvature

    def again(self, model: Model, prior: Prior) -> Posterior:
        """The posterior of a model under a prior; draws of a curvature are the same at every call."""
        return self.structure.fit(FitTask(model, prior, self.curvature, seeded_by_data(model), self.structure))


@final
@dataclass(frozen=True, eq=False)
class FitTask:
    """Everything a structure needs to compute a posterior.

    Args:
        model: The network, its likelihood, and the data.
        prior: p(θ).
        curvature: Which matrix.
        generator: Source of randomness of the curvature.
        structure: The structure that computes it, where the posterior is to know how it was fitted.
        begun: When the fit began, by ``clock``.
    """

    model: Model
    prior: Prior
    curvature: Curvature
    generator: torch.Generator | None
    structure: Structure | None = None
    begun: float = field(default_factory=clock)

    def summed(self, total: Accumulator) -> WeightPosterior:
        """A posterior over the weights from one sweep over the data."""
        totals = sweep(self.model, self.curvature, total, generator=self.generator)
        posterior = self.posterior(WeightPosterior, totals, self.with_earlier(total.result()))
        many_labels = self.model.likelihood.labels and self.model.event[-1] > self.model.limits.joint_outputs
        if many_labels and (posterior.wide or posterior.predicts_by_draws):
            return posterior.with_link("probit")
        return posterior

    def affordable(
        self, most: float = MANY, *, inverted: bool = False, exact: int = EXACT, cheap: int = CHEAP, draws: int = DRAWS
    ) -> FitTask:
        """The task, its curvature by draws of N(0, B) where that of every output would take too much; says so.

        Which is where an example has more than ``exact`` outputs, or more than ``cheap`` whose backward passes over the
        data would take more than they may. ``GGN(exact=True)`` stays as it is.

        Args:
            most: Multiplications that backward passes may take.
            inverted: Whether matrices of all outputs are inverted, as the factors of ``KFAC`` are: of few data there
                are then ``SAMPLES`` draws an output over all data, where they may be; and else a warning.
            exact: Most outputs of an example, over its positions, for which each has a backward pass of its own.
            cheap: Outputs for which each always has one.
            draws: Those of an example, where they take no more than backward passes may; else ``FEW_DRAWS``.

        Warns:
            DataWarning: If variances are too large, since so few draws are inverted.

        Cost:
            A forward pass of one example where there are more than ``cheap`` outputs, to count what it takes.
        """
        model = self.model
        outputs = model.width
        asked = not isinstance(self.curvature, GGN) or self.curvature.exact
        if asked or model.survey.head or outputs <= cheap:
            return self
        shared = model.data.shared  # what one process counts others need not
        if outputs <= exact and (shared or multiplied(model, outputs) <= most):
            return self
        if not shared and multiplied(model, draws) > most:
            draws = FEW_DRAWS
        if inverted and not shared and self._inverts_outputs:
            draws = self._enough(draws, most)
            if draws >= outputs:
                return self
        words = (
            "%d outputs an example: the curvature from %d draws of N(0, B), in place of a backward pass for each; "
            "relative standard error of its diagonal %.2g / √(examples). curvature=GGN(exact=True) has them all"
        )
        logger.info(words, outputs, draws, (2 / draws) ** 0.5)
        generator = self.generator or seeded_by_data(model)
        return replace(self, curvature=SampledGGN(draws), generator=generator)

    @property
    def _inverts_outputs(self) -> bool:
        """Whether a Kronecker factor has a row for every output: that of a head, unless it is an embedding too."""
        outputs = self.model.event[-1]
        params = self.model.network.params
        layers = [layer for layer in self.model.survey.layers if kind_of(layer).kronecker]
        return any(outputs in params[name].shape for layer in layers for name in layer.names)

    def _enough(self, draws: int, most: float) -> int:
        """So many draws, or as many more as few data need for a matrix of all outputs at a position."""
        model = self.model
        rows = model.event[-1]
        samples = model.data.about(count(model.data.first())) * model.width // rows  # with one draw an example
        enough = min(math.ceil(SAMPLES * rows / samples), model.width)
        if enough <= draws:
            return draws
        if multiplied(model, enough) <= most:
            return enough
        factor = samples * draws / max(1, samples * draws - rows)
        size = f"up to about {factor:.2g} times" if samples * draws > rows else "far"
        warn(
            f"{samples * draws:,} draws for a Kronecker factor of {rows:,} outputs: where the data outweigh the prior "
            f"variances are {size} too large. Try more data, weights=LastLayer(), or curvature=GGN(exact=True)",
            DataWarning,
        )
        return draws

    def with_prior_scale(self) -> FitTask:
        """The task with a prior that knows its scale: diag(M), exact from layer factors or from noise.

        A prior that knows it already, or has none, stays as it is.

        Cost:
            A sweep over the data, with a backward pass for each output, or each sample of the prior.
        """
        prior = self.prior
        if not isinstance(prior, GPrior) or prior.scale is not None:
            return self
        total = DiagonalSum(self.model.network)
        curvature = GGN() if prior.samples is None else SampledGGN(prior.samples)
        sweep(self.model, curvature, total, generator=self.generator)
        diagonal = total.result().operator.diagonal()
        return replace(self, prior=prior.scaled_by(diagonal, self.model.network.uncertain))

    def with_earlier(self, curvature: BlockedCurvature) -> BlockedCurvature:
        """The curvature of the data and of those that the prior knows of, in the same structure.

        Raises:
            UnsupportedError: If that of the earlier data is of another.
        """
        if self.prior.earlier is None:
            return curvature
        earlier: Structured = Mover(curvature.operator.device)(self.prior.earlier)
        return BlockedCurvature(curvature.operator.plus(earlier), curvature.partition)

    def totals(self) -> Totals:
        """Sums over the data at the trained weights, from one pass of forward passes."""
        return Fold(self.model, chunk_size(self.model, self.curvature), graph=False).totals()

    def posterior(self, kind: Callable[..., P], totals: Totals, *own: Any, partial: bool = False) -> P:
        """A posterior of this kind, with what it alone holds."""
        return kind(
            self.model,
            self.prior,
            totals,
            *own,
            likelihood=self.model.likelihood,
            noise_fixed=isinstance(self.curvature, EmpiricalFisher),
            partial=partial,
            fit_seconds=clock() - self.begun,
            fitted_by=None if self.structure is None else StructureFit(self.structure, self.curvature),
        )


def multiplied(model: Model, passes: int) -> float:
    """Multiplications of so many backward passes an example over all data, with the second moments of what they make.

    Args:
        model: The network, its likelihood, and the data.
        passes: Backward passes an example.
    """
    first = model.data.first()
    examples = model.data.about(count(first))
    return float(BACKWARD * passes * examples * multiplications(model.network, first))


def seeded_by_data(model: Model) -> torch.Generator:
    """A generator of the network's device that is the same for the same data."""
    return torch.Generator(model.network.like.device).manual_seed(model.data.span[0])


def check_products(task: FitTask) -> None:
    """Refuse a curvature whose products are not those of the generalised Gauss-Newton matrix.

    Raises:
        UnsupportedError: If it is another.
    """
    if not isinstance(task.curvature, GGN):
        raise UnsupportedError(
            "the generalised Gauss-Newton matrix for products", f"{task.curvature}", "curvature=GGN()"
        )
