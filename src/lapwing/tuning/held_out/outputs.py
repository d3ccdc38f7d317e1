"""Outputs at inputs the network has not fitted, under every common factor of the prior precisions."""

from __future__ import annotations

import abc
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar, Generic, final

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from lapwing.ground.data.inputs import Inputs
from lapwing.ground.data.sources import Batch
from lapwing.ground.progress import Bar
from lapwing.likelihoods import Categorical, Likelihood
from lapwing.linalg import Diagonal
from lapwing.predictive import Moments, WideMoments
from lapwing.tuning.held_out.examples import evenly
from lapwing.tuning.held_out.interpolation import weights_at
from lapwing.tuning.hyperparameters import Hyperparameters
from lapwing.tuning.method import P
from lapwing.tuning.result import with_hyperparameters

SPACING = 0.4
"""Decades between the factors at which covariances are contracted; between them they are interpolated."""

THIRD = 3
"""Of those factors every third begins a search."""

STRIDE = 1.0
"""Decades between the factors tried where every one of them is a solve."""

POSITIONS = 2048
"""Held-out positions that are looked at, spread evenly over the data: more would hardly move the choice."""

BYTES = 2**29
"""Bytes the covariances of all factors may take together (512 MiB)."""

VARIANCES = 3 * 2**28
"""Bytes the variances of the weights under all precisions may take together (768 MiB), or the pass is repeated."""

PLACES = 16
"""Positions of an example that are looked at, the same of all examples: more examples say more than more pixels."""

LEAST = 16
"""Positions that are looked at, however many outputs there are."""


@dataclass(eq=False)
class HeldOut(abc.ABC, Generic[P]):
    """The linearised outputs of a posterior at some inputs, its prior precisions multiplied by any factor.

    Args:
        posterior: The posterior.
        batches: Inputs and targets.
        log_factors: Logarithms of factors, from strong priors, which are easy to solve for, to weak ones.
        places: Event positions that are looked at, which targets and outputs have on one axis; ``None`` for all.
    """

    posterior: P
    batches: tuple[Batch, ...]
    log_factors: list[float]
    places: Int[Tensor, " p"] | None = None

    refinements: ClassVar[int]
    """Most factors that a search tries between those of its grid."""

    patience: ClassVar[int | None]
    """Factors, none better than the best before, after which a search over the grid gives up; ``None`` for never."""

    @property
    @abc.abstractmethod
    def grid(self) -> list[float]:
        """Logarithms of the factors to begin with."""

    @abc.abstractmethod
    def moments(self, log_factor: float) -> list[Moments | WideMoments]:
        """Outputs of each batch at a factor."""

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
    """

    refinements = 9  # three of each link
    patience = None

    @property
    def grid(self) -> list[float]:
        """Logarithms of the factors to begin with."""
        return self.log_factors[::THIRD]

    def moments(self, log_factor: float) -> list[Moments | WideMoments]:
        """Outputs of each batch at a factor."""
        weights = torch.from_numpy(weights_at(log_factor, np.array(self.log_factors)))
        found = list[Moments | WideMoments]()
        for first, spreads in self._contracted:
            between = torch.einsum("m,m...->...", weights.to(spreads), spreads)
            found.append(first.with_compact_covariance(between))
        return found

    @cached_property
    def _contracted(self) -> list[tuple[Moments | WideMoments, Float[Tensor, "m n *event"]]]:
        """Of each batch the moments at the first factor, and what spreads them at every one."""
        found: list[list[Moments | WideMoments]] = [[] for _ in self.batches]
        size = self._factors_at_once
        starts = range(0, len(self.log_factors), size)
        with Bar("outputs under every prior", len(starts) * len(self.batches), unit="batches") as bar:
            for start in starts:
                posteriors = [self.posterior_at(point) for point in self.log_factors[start : start + size]]
                for parts, batch in zip(found, self.batches, strict=True):
                    parts += self._each(batch.inputs, posteriors)
                    bar.update()
        return [(parts[0], stacked(parts)) for parts in found]

    @property
    def _factors_at_once(self) -> int:
        """Factors whose variances of the weights are made together: all where none are made."""
        posterior = self.posterior
        if posterior.wide and not isinstance(posterior.precision_operator, Diagonal):
            return len(self.log_factors)
        return max(1, VARIANCES // (8 * posterior.network.size))

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
    patience = 2

    latest: P = field(init=False)

    def __post_init__(self) -> None:
        self.latest = self.posterior

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


def held_out_outputs(posterior: P, batches: Sequence[Batch], bounds: tuple[float, float]) -> HeldOut[P]:
    """Held-out outputs of a posterior at ``POSITIONS`` positions, or so many that covariances fit ``BYTES``.

    Of examples with many labels each, some positions of more examples are looked at where the others then cost nothing.

    Args:
        posterior: The posterior.
        batches: The data.
        bounds: Least and largest factor of the prior precisions.
    """
    kind = Contracted if posterior.exact else Solved
    log_factors = grid_of(bounds, SPACING, THIRD) if posterior.exact else grid_of(bounds, STRIDE, 1)
    kept_at_once = len(log_factors) if posterior.exact else 1
    each = kept_at_once * posterior.moment_numbers * posterior.network.like.itemsize
    room = min(POSITIONS, max(LEAST, BYTES // each))
    positions = posterior.model.width // posterior.model.event[-1]  # of which an example may have several
    labelled = isinstance(posterior.likelihood, Categorical)
    if positions <= PLACES or not labelled or not posterior.separate_places:
        return kind(posterior, tuple(evenly(batches, max(1, room // positions))), log_factors)
    places = torch.randperm(positions, generator=torch.Generator().manual_seed(0))[:PLACES].sort().values
    some = list[Batch]()
    for batch in evenly(batches, max(1, room // PLACES)):
        targets = batch.targets.flatten(1)[:, places.to(batch.targets.device)]
        some.append(Batch(batch.inputs, targets))
    return kind(posterior, tuple(some), log_factors, places.to(posterior.network.like.device))


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
