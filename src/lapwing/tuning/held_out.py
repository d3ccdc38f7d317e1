"""Outputs at inputs the network has not fitted, under every common factor of the prior precisions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Generic, cast, final

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from lapwing.ground.data.inputs import Inputs, take
from lapwing.ground.data.sources import Batch
from lapwing.ground.progress import Bar
from lapwing.likelihoods import Categorical, Likelihood
from lapwing.linalg import Diagonal
from lapwing.posteriors import ExactPosterior, WeightPosterior
from lapwing.predictive import Moments, WideMoments, spread, with_spread
from lapwing.tuning.choices import P, chosen

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

NEAREST = 12
"""Factors of the grid between which a covariance is interpolated."""

PLACES = 16
"""Positions of an example that are looked at, the same of all examples: more examples say more than more pixels."""

LEAST = 16
"""Positions that are looked at, however many outputs there are."""


@final
@dataclass(eq=False)
class HeldOut(Generic[P]):
    """The linearised outputs of a posterior at some inputs, its prior precisions multiplied by any factor.

    Where its evidence is exact, all factors share one set of Jacobians: covariances are contracted on a grid of them,
    and found between by ``weights_at``. Elsewhere every factor is a solve, which starts from the one before.

    Args:
        posterior: The posterior.
        batches: Inputs and targets.
        nodes: Logarithms of the factors of the grid, from strong priors, which are easy to solve for, to weak ones.
        places: Event positions that are looked at, which targets and outputs have on one axis; ``None`` for all.
    """

    posterior: P
    batches: tuple[Batch, ...]
    nodes: list[float]
    places: Int[Tensor, " p"] | None = None
    _near: P = field(init=False)

    def __post_init__(self) -> None:
        self._near = self.posterior

    @property
    def exact(self) -> bool:
        """Whether all factors of the grid are at hand at once."""
        return isinstance(self.posterior, ExactPosterior)

    @property
    def grid(self) -> list[float]:
        """Logarithms of the factors to begin with."""
        return self.nodes[::THIRD] if self.exact else self.nodes

    @property
    def likelihood(self) -> Likelihood:
        """p(y | f) at the positions that are looked at."""
        known = self.posterior.likelihood
        return known if self.places is None else replace(known, event_dim=1, class_dim=-1)

    def added(self, *sums: float) -> list[float]:
        """Sums over the held-out data of all processes, from those over what this one has."""
        whole, training = torch.tensor(sums, dtype=torch.float64), self.posterior.data
        return (whole if training is None else training.added(whole)).tolist()

    def choice(self, log_factor: float) -> P:
        """The posterior at a factor."""
        return chosen(self._near, self.posterior.prior_precisions * math.exp(log_factor), self.posterior.scale, ())

    def moments(self, log_factor: float) -> list[Moments | WideMoments]:
        """Outputs of each batch at a factor."""
        if not self.exact:
            self._near = choice = self.choice(log_factor)
            return [choice.outputs_each(batch.inputs, [choice])[0] for batch in self.batches]
        weights = torch.from_numpy(weights_at(log_factor, np.array(self.nodes)))
        return [
            with_spread(first, torch.einsum("m,m...->...", weights.to(whole), whole))
            for first, whole in self._contracted
        ]

    @cached_property
    def _contracted(self) -> list[tuple[Moments | WideMoments, Float[Tensor, "m n *event"]]]:
        """Moments at the first factor of the grid, and what spreads them at every one."""
        posterior = self.posterior
        free = posterior.wide and not isinstance(posterior.precision_operator, Diagonal)
        together = len(self.nodes) if free else max(1, VARIANCES // (8 * posterior.network.size))
        found: list[list[Moments | WideMoments]] = [[] for _ in self.batches]
        starts = range(0, len(self.nodes), together)
        with Bar("outputs under every prior", len(starts) * len(self.batches), unit="batches") as bar:
            for start in starts:
                choices = [self.choice(point) for point in self.nodes[start : start + together]]
                for parts, batch in zip(found, self.batches, strict=True):
                    parts += self._each(batch.inputs, choices)
                    bar.update()
        return [(parts[0], stacked(parts)) for parts in found]

    def _each(self, inputs: Inputs, choices: Sequence[P]) -> Sequence[Moments | WideMoments]:
        if self.places is None or not isinstance(self.posterior, WeightPosterior):
            return self.posterior.outputs_each(inputs, choices)
        return self.posterior.outputs_at(inputs, self.places, cast(Any, choices))


def stacked(parts: list[Moments | WideMoments]) -> Float[Tensor, "m n *event"]:
    """What spreads each of several moments, of which all but the first are let go of as they are put together."""
    first = spread(parts[0])
    whole = first.new_empty(len(parts), *first.shape)
    for place in reversed(range(len(parts))):
        whole[place] = spread(parts[place])
        del parts[max(1, place) :]
    return whole


def held_out(posterior: P, batches: Sequence[Batch], bounds: tuple[float, float]) -> HeldOut[P]:
    """Held-out outputs of a posterior at ``POSITIONS`` positions, or so many that covariances fit ``BYTES``.

    Args:
        posterior: The posterior.
        batches: The data.
        bounds: Least and largest factor of the prior precisions.
    """
    exact = isinstance(posterior, ExactPosterior)
    spacing, multiple = (SPACING, THIRD) if exact else (STRIDE, 1)
    low, high = (math.log(bound) for bound in bounds)
    gaps = max(1, math.ceil((high - low) / (spacing * math.log(10)) - 1e-9))
    nodes: list[float] = np.linspace(high, low, 1 + gaps + -gaps % multiple).tolist()
    c = posterior.model.event[-1]  # outputs of a position, of which an example may have several
    each = (len(nodes) if exact else 1) * posterior.moment_numbers * posterior.network.like.itemsize
    room, there = min(POSITIONS, max(LEAST, BYTES // each)), posterior.model.width // c
    if (
        there <= PLACES
        or not isinstance(posterior, WeightPosterior)
        or not isinstance(posterior.likelihood, Categorical)
    ):
        return HeldOut(posterior, tuple(evenly(batches, max(1, room // there))), nodes)
    some = torch.randperm(there, generator=torch.Generator().manual_seed(0))[:PLACES].sort().values
    chosen = [
        Batch(batch.inputs, batch.targets.flatten(1)[:, some.to(batch.targets.device)])
        for batch in evenly(batches, max(1, room // PLACES))
    ]
    return HeldOut(posterior, tuple(chosen), nodes, some.to(posterior.network.like.device))


def evenly(batches: Sequence[Batch], examples: int) -> Iterator[Batch]:
    """At most so many examples, evenly over all batches."""
    total = sum(len(batch) for batch in batches)
    if total <= examples:
        yield from batches
        return
    yield from chosen_of(batches, torch.linspace(0, total - 1, examples, dtype=torch.float64).round().long())


def chosen_of(batches: Iterable[Batch], index: Int[Tensor, " m"]) -> Iterator[Batch]:
    """The examples of these numbers, in their order, batch by batch.

    Args:
        batches: The data, of which examples are counted from 0.
        index: Increasing numbers; those of no example here are passed over.
    """
    start = 0
    for batch in batches:
        own = (index[(index >= start) & (index < start + len(batch))] - start).to(batch.targets.device)
        start += len(batch)
        if len(own):
            yield Batch(take(batch.inputs, own), batch.targets[own])


def weights_at(point: float, grid: Float[np.ndarray, " m"]) -> Float[np.ndarray, " m"]:
    """Weights w with ``Σ_j w_j K(t_j) ≈ K(t)`` for ``K(t) = Σ_i r_i r_iᵀ / (λ_i + t)``, whatever the eigenvalues λ.

    A sum of terms of one form is interpolated as well as each of them. The w, of the ``NEAREST`` points, are those of
    least squared relative error over eigenvalues from 0 to far beyond the grid. At points of the grid they are exact;
    between, on a grid of two fifths of a decade, off by less than 3e-4 relatively for the worst of all eigenvalues,
    3e-3 in the three intervals at either end.

    Args:
        point: log t.
        grid: log t_j.

    Example:
        >>> weights_at(0.0, np.array([-1.0, 0.0, 1.0])).tolist()
        [0.0, 1.0, 0.0]
    """
    near = np.abs(grid - point).argsort(kind="stable")[:NEAREST]
    found = np.zeros(len(grid))
    if abs(grid[near[0]] - point) < 1e-9:
        found[near[0]] = 1.0
        return found
    beside = grid[near] - point
    reach = np.linspace(beside.min() - 20.0, beside.max() + 20.0, 400)
    spectrum = np.concatenate([[0.0], np.exp(reach)])[:, None]
    scales = np.exp(beside)
    terms = scales * (spectrum + 1.0) / (spectrum + scales)
    found[near] = scales * np.linalg.lstsq(terms, np.ones(len(spectrum)), rcond=None)[0]
    return found
