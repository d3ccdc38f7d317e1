"""How ELLA is fitted, how every method predicts, and what the predictions are worth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import lapwing as lw
from benchmarks.cost import peak_gib, reset_peak, timed
from lapwing.posteriors import NystromPosterior, Posterior
from lapwing.predictive import Classification
from studies.ella.setting import Amount, Case
from studies.predictors import probabilities
from studies.report import Row
from studies.sampled.scoring import marginal
from studies.seeds import generator


@dataclass(frozen=True, eq=False)
class Drawn:
    """A posterior that predicts by Monte Carlo over the logits, with the same numbers every time.

    Args:
        posterior: The posterior.
        samples: Draws.
    """

    posterior: Posterior
    samples: int

    @property
    def likelihood(self) -> Any:
        """p(y | f)."""
        return self.posterior.likelihood

    def predict(self, x: Tensor) -> Classification:
        """Probabilities averaged over draws of the logits."""
        found = self.posterior.predict(x, "mc", samples=self.samples, generator=generator())
        assert isinstance(found, Classification)
        return found


def scores(predictor: Any, case: Case) -> Row:
    """Scores on the test images, a hundred at a time, the seconds that took and the memory."""
    reset_peak()
    probs, seconds = timed(lambda: probabilities(predictor, case.task.test[0]))
    return marginal(probs, case.task) | {"predict_seconds": seconds, "predict_gib": peak_gib()}


def ella(
    case: Case, amount: Amount, seed: int, *, images: int | None = None, stopping: lw.EarlyStopping | None = None,
    rank: int | None = None,
) -> tuple[NystromPosterior, Row]:  # fmt: skip
    """ELLA as published, under the paper's prior, without the residual; and what fitting it cost.

    Args:
        case: Network and images.
        amount: How much is done.
        seed: Of the landmarks.
        images: The first so many training images; all of them by default.
        stopping: When to stop.
        rank: Another rank.
    """
    structure = lw.Nystrom(
        rank or amount.rank, max(amount.landmarks, rank or 0), residual=False, stopping=stopping, seed=seed
    )
    reset_peak()
    posterior, seconds = timed(lambda: case.laplace(structure).fit(case.task.model, case.train(images)))
    assert isinstance(posterior, NystromPosterior)
    row: Row = {"rank": structure.rank, "landmarks": structure.samples, "fit_seconds": seconds, "fit_gib": peak_gib()}
    row |= {"stopped_at": float(posterior.totals.examples), "kernel_error": posterior.report.error.value}
    return posterior, row | {"trace": [list(point) for point in posterior.report.trace]}


def watched(data: tuple[Tensor, Tensor], amount: Amount, *, patience: int = 3) -> lw.EarlyStopping:
    """Early stopping by held-out images."""
    return lw.EarlyStopping(data, every=amount.every, patience=patience, link="mc", samples=amount.samples)


def at_precision(posterior: Posterior, precision: float) -> Posterior:
    """The same posterior under another prior precision."""
    prior = posterior.prior.with_precisions(torch.tensor([precision], dtype=torch.float64))
    return posterior.with_choices(prior, posterior.likelihood)
