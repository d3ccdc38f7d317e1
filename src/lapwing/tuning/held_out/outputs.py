"""Outputs at inputs the network has not fitted, under every common factor of the prior precisions."""

from __future__ import annotations

import abc
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar, Generic, TypeAlias, final

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from lapwing.ground import progress
from lapwing.ground.data.inputs import Inputs
from lapwing.ground.data.sources import Batch
from lapwing.ground.errors import ConvergenceWarning, warn
from lapwing.ground.progress import Bar
from lapwing.likelihoods import Categorical, Likelihood
from lapwing.likelihoods.density import held_out_losses
from lapwing.linalg import Diagonal
from lapwing.predictive import Link, Moments, WideMoments
from lapwing.tuning.held_out.budget import Budget
from lapwing.tuning.held_out.examples import evenly, joined, selected, spread
from lapwing.tuning.held_out.interpolation import weights_at
from lapwing.tuning.hyperparameters import Hyperparameters
from lapwing.tuning.method import P
from lapwing.tuning.result import with_hyperparameters

logger = logging.getLogger(__name__)

SPACING = 0.4
"""Decades between the factors at which covariances are contracted; between them they are interpolated."""

THIRD = 3
"""Of those factors every third begins a search."""

STRIDE = 1.0
"""Decades between the factors tried where every one of them is a solve."""

FIRST = 8
"""Examples that tell how long all take."""

FEWEST = 64
"""Examples that are looked at, whatever the seconds, where there are so many."""

LONG = 10.0
"""Seconds from which examples are looked at piece by piece, so that Ctrl-C keeps those that were."""

TOGETHER = 10.0
"""Seconds that a piece takes."""


Known: TypeAlias = tuple[Moments | WideMoments, Tensor]
"""The moments of a batch under the first of some priors, and what spreads them under each, ``[m, n, ...]``."""


@final
@dataclass(frozen=True)
class LookLimits:
    """How much of the held-out data is looked at, and in how much memory.

    Args:
        positions: Held-out positions, spread evenly over the data: more would hardly move the choice.
        least: Positions, however many outputs there are.
        places: Positions of an example, the same of all: more examples say more than more pixels.
        covariances: Bytes the covariances of all factors may take together (512 MiB).
        variances: Bytes the variances of the weights under all precisions may take together (768 MiB), or the pass is
            repeated.
    """

    positions: int = 2048
    least: int = 16
    places: int = 16
    covariances: int = 2**29
    variances: int = 3 * 2**28


LIMITS = LookLimits()
"""The usual ones."""


@dataclass(eq=False)
class HeldOut(abc.ABC, Generic[P]):
    """The linearised outputs of a posterior at some inputs, its prior precisions multiplied by any factor.

    Args:
        posterior: The posterior.
        batches: Inputs and targets.
        log_factors: Logarithms of factors, from strong priors, which are easy to solve for, to weak ones.
        places: Event positions that are looked at, which targets and outputs have on one axis; ``None`` for all.
        budget: Seconds to spend on them.
        limits: In how much memory.
        either: Whether every example has two targets, ``[m, 2, ...]``, of which one is as likely as the other.
    """

    posterior: P
    batches: tuple[Batch, ...]
    log_factors: list[float]
    places: Int[Tensor, " p"] | None = None
    budget: Budget = field(default_factory=Budget)
    limits: LookLimits = LIMITS
    either: bool = False

    refinements: ClassVar[int]
    """Most factors that a search tries between those of its grid."""

    halvings: ClassVar[int]
    """Times an interval between two factors of the grid is halved to tell where data begin to reject them."""

    patience: ClassVar[int | None]
    """Factors, none better than the best before, after which a search over the grid gives up; ``None`` for never."""

    @property
    @abc.abstractmethod
    def grid(self) -> list[float]:
        """Logarithms of the factors to begin with."""

    @abc.abstractmethod
    def moments(self, log_factor: float) -> list[Moments | WideMoments]:
        """Outputs of each batch at a factor."""

    def losses(
        self,
        likelihood: Likelihood,
        part: Moments | WideMoments,
        targets: Tensor,
        link: Link,
        temperature: float = 1.0,
    ) -> Float[Tensor, " m"]:
        """Negative log predictive density of each target, nats; of two targets of an example the mean.

        Args:
            likelihood: p(y | f).
            part: Outputs of a batch.
            targets: Those of the batch.
            link: As in ``predict``.
            temperature: As in ``predictive``.
        """
        return held_out_losses(likelihood, part, targets, link, temperature=temperature, either=self.either)

    @property
    def examples(self) -> int:
        """Examples that are looked at."""
        return sum(map(len, self.batches))

    @property
    def given(self) -> int:
        """Examples that there were to be looked at."""
        return self.examples

    @property
    def exhausted(self) -> bool:
        """Whether nothing more should be tried, however little is known."""
        return False

    @property
    def likelihood(self) -> Likelihood:
        """p(y | f) at the positions that are looked at."""
        likelihood = self.posterior.likelihood
        if self.places is None:
            return likelihood
        return replace(likelihood, event_dim=1, class_dim=-1)

    def added(self, *sums: float) -> list[float]:
        """Sums over the held-out data of all processes, from those over what this one has."""
        own = torch.tensor(sums, dtype=torch.float64)
        training = self.posterior.data
        whole = own if training is None else training.added(own)
        return whole.tolist()

    def posterior_at(self, log_factor: float) -> P:
        """The posterior at a factor."""
        return with_hyperparameters(self.posterior, self.hyperparameters_at(log_factor))

    def hyperparameters_at(self, log_factor: float) -> Hyperparameters:
        """The prior precisions multiplied by a factor, and the noise as it is."""
        return Hyperparameters(self.posterior.prior_precisions * math.exp(log_factor), self.posterior.scale)


@final
@dataclass(eq=False)
class Contracted(HeldOut[P]):
    """Where the evidence is exact: all factors share one set of Jacobians.

    Covariances are contracted on a grid of factors, and found between by ``weights_at``.

    Args:
        available: Examples that there were.
        parts: Of each batch that is looked at the moments at the first factor, and what spreads them at every one.
    """

    refinements = 14  # three of each link, and five more of the best
    halvings = 3
    patience = None

    available: int = field(init=False)
    parts: list[Known] = field(init=False)

    def __post_init__(self) -> None:
        self.available = self.examples
        self.parts = self._looked_at()

    @property
    def given(self) -> int:
        """See ``HeldOut``."""
        return self.available

    @property
    def grid(self) -> list[float]:
        """Logarithms of the factors to begin with."""
        return self.log_factors[::THIRD]

    def moments(self, log_factor: float) -> list[Moments | WideMoments]:
        """Outputs of each batch at a factor; those that overflow in half precision at others have no part in them."""
        weights = torch.from_numpy(weights_at(log_factor, np.array(self.log_factors)))
        used = weights.nonzero()[:, 0]
        found = list[Moments | WideMoments]()
        for first, spreads in self.parts:
            exact = torch.promote_types(spreads.dtype, torch.float32)
            near = spreads[used.to(spreads.device)].to(exact)
            between = torch.einsum("m,m...->...", weights[used].to(near), near)
            found.append(first.with_compact_covariance(between.to(spreads)))
        return found

    def _looked_at(self) -> list[Known]:
        """What is known of the outputs, those of a few examples first: they tell how long all take.

        Where that is not long, all are taken batch by batch; else piece by piece, as many as the seconds buy.
        """
        if self.examples > FEWEST:
            order = spread(self.examples)
            begun = progress.clock()
            first = self._piece(order[:FIRST])
            known = [self.contracted(batch) for batch in first]
            seconds = progress.clock() - begun
            if self.examples * seconds / FIRST > min(LONG, self.budget.left):
                words = "%d examples took %.2g s under all priors: of %d as many as %.3g s buy, %d at least"
                logger.info(words, FIRST, seconds, self.examples, max(0.0, self.budget.left), FEWEST)
                return self._by_pieces(order, first, known)
        with Bar("outputs under every prior", len(self.batches), unit="batches") as bar:
            found = list[Known]()
            for batch in self.batches:
                found.append(self.contracted(batch))
                bar.update()
        return found

    def _by_pieces(
        self,
        order: Int[Tensor, " all"],
        batches: list[Batch],
        found: list[Known],
    ) -> list[Known]:
        """The same piece by piece, each spread over all examples, until the seconds are spent; then no others are kept.

        Args:
            order: The numbers of all examples, in the order in which they are taken.
            batches: The first piece.
            found: What is known of its outputs.
        """
        done = sum(map(len, batches))
        measured = 0
        begun = progress.clock()
        with Bar("examples under every prior", len(order), unit="examples", done=done) as bar:
            try:
                while True:
                    each = (progress.clock() - begun) / measured if measured else math.inf
                    affordable = self._affordable(len(order), done, each)
                    bar.total = done + affordable
                    if not affordable:
                        break
                    piece = self._piece(order[done : done + min(affordable, max(FIRST, done), at_a_time(each))])
                    found += [self.contracted(batch) for batch in piece]
                    batches += piece
                    size = sum(map(len, piece))
                    done += size
                    measured += size
                    bar.update(size)
            except KeyboardInterrupt:
                said = f"interrupted after {done} of {len(order)} examples: the choice is by these"
                warn(said, ConvergenceWarning)
        self.batches = tuple(batches)
        return found[: len(batches)]

    def _affordable(self, examples: int, done: int, each: float) -> int:
        """Examples that are still to be looked at, after some, if each takes so many seconds."""
        left = examples - done
        if math.isinf(self.budget.left):
            return left
        needed = max(0, min(examples, FEWEST) - done)
        bought = int(max(0.0, self.budget.left) / each) if each > 0 else left
        return min(left, max(needed, bought))

    def _piece(self, index: Int[Tensor, " m"]) -> list[Batch]:
        """The examples of these numbers, put together where they can be."""
        return joined(list(selected(self.batches, index.sort().values)))

    def contracted(self, batch: Batch) -> Known:
        """The moments of a batch at the first factor, and what spreads them at every one."""
        parts = list[Moments | WideMoments]()
        for choices in self._choices:
            parts += self._each(batch.inputs, choices)
        first = parts[0]
        spreads = stacked(parts)
        float(spreads.flatten()[:1].sum())  # a device that works on its own has then done what is timed
        return first, spreads

    @cached_property
    def _choices(self) -> list[list[P]]:
        """The posterior at each factor, those together whose variances of the weights are made together."""
        choices = [self.posterior_at(point) for point in self.log_factors]
        size = self._factors_at_once
        return [choices[start : start + size] for start in range(0, len(choices), size)]

    @property
    def _factors_at_once(self) -> int:
        """Factors whose variances of the weights are made together: all where none are made."""
        posterior = self.posterior
        if posterior.wide and not isinstance(posterior.precision_operator, Diagonal):
            return len(self.log_factors)
        return max(1, self.limits.variances // (8 * max(1, posterior.numbers_by_choice)))

    def _each(self, inputs: Inputs, posteriors: Sequence[P]) -> Sequence[Moments | WideMoments]:
        """Outputs under each of some factors, at the positions that are looked at."""
        if self.places is None:
            return self.posterior.outputs_each(inputs, posteriors)
        return self.posterior.outputs_at(inputs, self.places, posteriors)


@final
@dataclass(eq=False)
class Solved(HeldOut[P]):
    """Where the evidence is none but an estimate: every factor is a solve, which starts from the one before.

    Args:
        latest: The posterior at the last factor.
    """

    refinements = 2
    halvings = 0
    patience = 2

    latest: P = field(init=False)

    def __post_init__(self) -> None:
        self.latest = self.posterior

    @property
    def exhausted(self) -> bool:
        """See ``HeldOut``."""
        return self.budget.left < 0.0

    @property
    def grid(self) -> list[float]:
        """Logarithms of the factors to begin with."""
        return self.log_factors

    def posterior_at(self, log_factor: float) -> P:
        """The posterior at a factor, its solves started from those at the last one."""
        return with_hyperparameters(self.latest, self.hyperparameters_at(log_factor))

    def moments(self, log_factor: float) -> list[Moments | WideMoments]:
        """Outputs of each batch at a factor."""
        there = self.latest = self.posterior_at(log_factor)
        return [there.outputs_each(batch.inputs, [there])[0] for batch in self.batches]


def stacked(parts: list[Moments | WideMoments]) -> Float[Tensor, "m n *event"]:
    """What spreads each of several moments, of which all but the first are let go of as they are put together."""
    first = parts[0].compact_covariance
    whole = first.new_empty(len(parts), *first.shape)
    for place in reversed(range(len(parts))):
        whole[place] = parts[place].compact_covariance
        del parts[max(1, place) :]
    return whole


def at_a_time(each: float) -> int:
    """Examples that take ``TOGETHER`` seconds, ``FIRST`` at least, if each takes so many: what Ctrl-C loses."""
    return max(FIRST, int(TOGETHER / each)) if each > 0 else FEWEST


def held_out_outputs(
    posterior: P,
    batches: Sequence[Batch],
    bounds: tuple[float, float],
    budget: Budget | None = None,
    limits: LookLimits = LIMITS,
    *,
    either: bool = False,
) -> HeldOut[P]:
    """Held-out outputs of a posterior at as many positions as the limits let it look at.

    Of examples with many labels each, some positions of more examples are looked at where the others then cost nothing.

    Args:
        posterior: The posterior.
        batches: The data.
        bounds: Least and largest factor of the prior precisions.
        budget: Seconds to spend; ``None`` for no end.
        limits: How much is looked at, and in how much memory.
        either: Whether every example has two targets; see ``HeldOut``.
    """
    kind = Contracted if posterior.exact else Solved
    log_factors = grid_of(bounds, SPACING, THIRD) if posterior.exact else grid_of(bounds, STRIDE, 1)
    kept_at_once = len(log_factors) if posterior.exact else 1
    each = kept_at_once * posterior.moment_numbers * posterior.network.like.itemsize
    room = min(limits.positions, max(limits.least, limits.covariances // each))
    budget = budget or Budget()
    positions = posterior.model.width // posterior.model.event[-1]  # of which an example may have several
    labelled = isinstance(posterior.likelihood, Categorical)
    if positions <= limits.places or not labelled or not posterior.separate_places:
        whole = tuple(evenly(batches, max(1, room // positions)))
        return kind(posterior, whole, log_factors, budget=budget, limits=limits, either=either)
    places = torch.randperm(positions, generator=torch.Generator().manual_seed(0))[: limits.places].sort().values
    before = 2 if either else 1  # axes of a target that are no positions
    some = list[Batch]()
    for batch in evenly(batches, max(1, room // limits.places)):
        targets = batch.targets.flatten(before)[..., places.to(batch.targets.device)]
        some.append(Batch(batch.inputs, targets))
    places = places.to(posterior.network.like.device)
    return kind(posterior, tuple(some), log_factors, places, budget, limits, either)


def grid_of(bounds: tuple[float, float], spacing: float, multiple: int) -> list[float]:
    """Logarithms of factors, evenly from the largest to the least, in so many steps that ``multiple`` divides them.

    Args:
        bounds: Least and largest factor.
        spacing: Decades between two of them, at most.
        multiple: What divides the number of steps.

    Example:
        >>> [round(point / math.log(10), 2) for point in grid_of((0.1, 10.0), 0.7, 2)]
        [1.0, 0.5, 0.0, -0.5, -1.0]
    """
    low = math.log(bounds[0])
    high = math.log(bounds[1])
    steps = math.ceil((high - low) / (spacing * math.log(10)) - 1e-9)
    whole = multiple * max(1, math.ceil(steps / multiple))
    return np.linspace(high, low, 1 + whole).tolist()
