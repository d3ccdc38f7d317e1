"""What the loss is made of, batch by batch and epoch by epoch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import final


@final
@dataclass(frozen=True)
class Terms:
    """The parts of the negative log marginal likelihood, nats, all constants included (Brack 2023, equation 3.10).

    Args:
        nll: Negative log likelihood of all N examples.
        log_prior: Log prior density of the weights.
        half_log_det: ``½ log det Λ``.
        weights: Uncertain weights d.
    """

    nll: float
    log_prior: float
    half_log_det: float
    weights: int

    @property
    def total(self) -> float:
        """``-log p(y) = nll - log p(θ) + ½ log det Λ - d/2 log 2π``."""
        return self.nll - self.log_prior + self.half_log_det - 0.5 * self.weights * math.log(2 * math.pi)


@final
@dataclass(frozen=True)
class Epoch:
    """One epoch of training: the mean of its batches' terms, and the hyper-parameters after it.

    Args:
        nll: As in ``Terms``.
        log_prior: As in ``Terms``; NaN during the warm-up.
        half_log_det: As in ``Terms``; NaN during the warm-up, and without a ``log_det``.
        total: As in ``Terms``; NaN where one of its terms is.
        prior_precision: α, precision of each group of weights.
        noise_precision: ρ, noise precision of a Gaussian likelihood (of its first output); ``None`` for others.
        warm_up: Whether it belonged to the warm-up.
    """

    nll: float
    log_prior: float
    half_log_det: float
    total: float
    prior_precision: tuple[float, ...]
    noise_precision: float | None
    warm_up: bool


def epoch_of(terms: Sequence[Terms], precisions: tuple[float, ...], noise: float | None, *, warm_up: bool) -> Epoch:
    """The record of an epoch's batches."""
    return Epoch(
        nll=fmean(part.nll for part in terms),
        log_prior=fmean(part.log_prior for part in terms),
        half_log_det=fmean(part.half_log_det for part in terms),
        total=fmean(part.total for part in terms),
        prior_precision=precisions,
        noise_precision=noise,
        warm_up=warm_up,
    )
