"""When more data make the predictions worse: the validation loss of the posterior while data come in."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias, final, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.curvature.fold import Totals
from lapwing.curvature.tangent_features import TangentFeatures
from lapwing.ground.data.inputs import Inputs, check_inputs, count, place
from lapwing.ground.data.sources import Data, Source, Unpack
from lapwing.ground.errors import ConfigError, DataError, NumericalError, ShapeError, check_count, check_option
from lapwing.ground.precision import wide
from lapwing.likelihoods.density import held_out_losses
from lapwing.posteriors.nystrom import Compression
from lapwing.predictive import Link

logger = logging.getLogger(__name__)

Augment: TypeAlias = Callable[[Inputs, torch.Generator], Inputs]
"""Inputs changed strongly at random, their targets still true."""

Sums: TypeAlias = tuple[Float[Tensor, "k k"], Totals]
"""Over some of the data: ``S = Σ φᵀ B φ = Wᵀ G W``, float64, and the sums of the likelihood."""


@final
@dataclass(frozen=True, eq=False)
class NystromStopping:
    """Adds data to a posterior only as long as they help it predict held-out data (Deng et al. 2022, section 5.2).

    The more data, the smaller the variance; where the network is wrong about the world, too small. The negative log
    predictive density of held-out data is measured as data come in; the posterior is the one where it was smallest.

    Args:
        data: Held-out data, as for ``fit``. ``None`` takes training examples, drawn at random and augmented: the
            network fits the training examples themselves, which therefore say nothing.
        unpack: Splits one element of a loader.
        augment: ``augment(inputs, generator)`` for training examples, strong enough that the network errs on some.
        size: Training examples that are augmented.
        every: Training examples between two measurements, at least; batches are cut for it, into equal parts.
        patience: Measurements in a row above the smallest before it stops to read data.
        link: As in ``predict``; should be the one used later.
        samples: Draws for ``link="mc"``, the same for every measurement.

    Raises:
        ConfigError: If there are neither data nor an augmentation, or both, or a number is not positive.

    Cost:
        Features of the held-out data once, a prediction from them for every measurement; their features are kept.

    Example:
        >>> import lapwing as lw
        >>> model, x, y = torch.nn.Linear(2, 3), torch.randn(40, 2), torch.arange(40) % 3
        >>> stopping = lw.structures.NystromStopping((x[:10], y[:10]), every=10)
        >>> posterior = lw.Laplace(lw.Categorical(), structure=lw.Nystrom(4, stopping=stopping)).fit(model, (x, y))
        >>> [examples for examples, _ in posterior.report.trace][:2]
        [0, 10]
    """

    data: Source | None = None
    unpack: Unpack | None = field(default=None, kw_only=True)
    augment: Augment | None = field(default=None, kw_only=True)
    size: int = field(default=300, kw_only=True)
    every: int = field(default=100, kw_only=True)
    patience: int = field(default=3, kw_only=True)
    link: Link = field(default="qmc", kw_only=True)
    samples: int = field(default=512, kw_only=True)

    def __post_init__(self) -> None:
        if (self.data is None) == (self.augment is None):
            raise ConfigError(
                "held-out data, or an augmentation of training inputs",
                "neither" if self.data is None else "both",
                "NystromStopping((x, y)), or NystromStopping(augment=lambda inputs, generator: ...)",
            )
        check_option("link", self.link, get_args(Link))
        for name in ("size", "every", "patience", "samples"):
            check_count(name, getattr(self, name), least=2 if name == "samples" else 1)

    def batches(self, like: Tensor, examples: tuple[Inputs, Tensor], seed: int) -> Iterator[tuple[Inputs, Tensor]]:
        """Inputs and targets of the held-out data.

        Args:
            like: Tensor whose device and dtype they take.
            examples: Training examples, for an augmentation.
            seed: Of the augmentation.

        Raises:
            DataError: If they are empty or not finite.
            ShapeError: If the augmentation changes how many there are.
        """
        if self.augment is not None:
            changed = place(self.augment(examples[0], torch.Generator().manual_seed(seed)), like)
            check_inputs(changed)
            if count(changed) != len(examples[1]):
                raise ShapeError(
                    f"as many augmented inputs as were given ({len(examples[1])})",
                    f"{count(changed)}",
                    "an augmentation that keeps each example, in its place",
                )
            yield changed, examples[1]
            return
        assert self.data is not None
        for batch in Data(self.data, like=like, unpack=self.unpack):
            check_inputs(batch.inputs)
            yield batch.inputs, batch.targets


@final
class ValidationMonitor:
    """Follows the validation loss, and remembers where it was smallest.

    Args:
        stopping: What to measure, and how often.
        features: Says how features are computed, with the prior's variance where the posterior has it.
        metric_root: Triangular R with ``Rᵀ R = Wᵀ A W``.
        examples: Training examples, for an augmentation.
        seed: Of the augmentation.
    """

    def __init__(
        self,
        stopping: NystromStopping,
        features: TangentFeatures,
        metric_root: Float[Tensor, "k k"],
        examples: tuple[Inputs, Tensor],
        seed: int,
    ) -> None:
        self._stopping = stopping
        self._likelihood = features.model.likelihood
        self._metric_root = metric_root
        batches = stopping.batches(features.model.network.like, examples, seed)
        self._held_out = [(features.of(inputs), targets) for inputs, targets in batches]
        self.trace: list[tuple[int, float]] = [(0, self._nll(torch.zeros_like(metric_root)))]
        self._best: Sums | None = None
        self._least = math.inf
        self._rises = 0
        self.every = stopping.every

    @property
    def best(self) -> Sums:
        """The sums of the smallest loss, that of no data left aside.

        Raises:
            NumericalError: If no loss was finite.
        """
        if self._best is None:
            raise NumericalError(
                "a finite validation loss after some of the data",
                f"{self.trace[-1][1]} each time",
                "held-out targets that the network gives some chance, or a larger prior precision",
            )
        return self._best

    @property
    def over(self) -> bool:
        """Whether the loss has been above its smallest for long enough."""
        return self._rises >= self._stopping.patience

    def due(self, examples: int) -> bool:
        """Whether it is time to measure."""
        return examples - self.trace[-1][0] >= self.every

    def measure(self, curvature: Float[Tensor, "k k"], totals: Totals) -> None:
        """Take in the posterior as it is."""
        nll = self._nll(curvature)
        examples = totals.examples
        self.trace.append((examples, nll))
        logger.info("%d examples: validation NLL %.5g nats", examples, nll)
        if nll < self._least:
            self._best = (curvature, totals)
            self._least = nll
            self._rises = 0
        elif self._best is not None:
            self._rises += 1

    def _nll(self, curvature: Float[Tensor, "k k"]) -> float:
        within = Compression(self._metric_root, curvature)
        losses = list[Tensor]()
        for features, targets in self._held_out:
            prior_covariance = next(iter(features.covariances), None)
            outputs = within.moments(features, prior_covariance)
            nll = held_out_losses(
                self._likelihood, outputs, targets, self._stopping.link, samples=self._stopping.samples
            )
            losses.append(wide(nll))
        together = torch.cat(losses)
        if not len(together):
            raise DataError(
                "held-out data with a target", "ignored labels alone", "other data, or labels that are not -100"
            )
        return float(together.mean())
