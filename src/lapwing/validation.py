"""Choosing the prior precision and the noise by the likelihood of held-out data."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, final

import torch
from torch import Tensor
from tqdm.auto import tqdm

from lapwing.data import Batch, Data, Source
from lapwing.errors import ConfigError, DataError, NumericalError, check_count
from lapwing.likelihoods import Gaussian
from lapwing.posteriors import ExactPosterior, Posterior, Step
from lapwing.posteriors.base import first
from lapwing.predictive import Link, held_out_losses
from lapwing.results import Estimate
from lapwing.tuning import chosen, step, step_of, tunes_noise
from lapwing.types import Unpack

logger = logging.getLogger(__name__)

P = TypeVar("P", bound=Posterior)


@final
@dataclass(frozen=True, eq=False)
class Validation:
    """Minimises the negative log predictive density of held-out data over one factor for all prior precisions.

    For Gaussian likelihoods a factor for the noise precision is searched for too, after the first and before a second
    search for the prior's.

    Args:
        data: Held-out data, as for ``fit``.
        unpack: Splits one element of a loader.
        link: As in ``predict``, which then uses it; ``None`` for the posterior's own.
        noise: Whether to choose the noise of a Gaussian likelihood too.
        bounds: Factors tried, relative to the precisions now.
        coarse: Points of the first grid, evenly spaced in the logarithm.
        refine: Points of the second grid, between the best point's neighbours.

    Cost:
        Two passes of predictions over the held-out data, each for a whole grid; six with noise. A posterior made of
        draws solves for them at every point: narrow the bounds, for weak priors are hard to solve with.

    Raises:
        ConfigError: If the bounds or the numbers of points make no grid.

    Example:
        >>> import lapwing as lw
        >>> model, x, y = torch.nn.Linear(2, 3), torch.randn(9, 2), torch.arange(9) % 3
        >>> posterior = lw.Laplace(lw.Categorical()).fit(model, (x, y))
        >>> lw.tune(posterior, Validation((x, y))).trace[-1].validation_nll < 2.0
        True
    """

    data: Source
    unpack: Unpack | None = field(default=None, kw_only=True)
    link: Link | None = field(default=None, kw_only=True)
    noise: bool = field(default=True, kw_only=True)
    bounds: tuple[float, float] = field(default=(1e-6, 1e6), kw_only=True)
    coarse: int = field(default=13, kw_only=True)
    refine: int = field(default=8, kw_only=True)

    def __post_init__(self) -> None:
        low, high = self.bounds
        if not 0 < low < high < math.inf:
            raise ConfigError("bounds 0 < low < high", f"bounds={self.bounds}", "Validation(data)")
        check_count("coarse", self.coarse, least=2)
        check_count("refine", self.refine)

    def tune(self, posterior: P, progress: bool) -> P:
        """The posterior of smallest validation NLL."""
        noisy = tunes_noise(posterior, self.noise)
        posterior = posterior.with_link(self.link or posterior.link, posterior.temperature)
        batches = list(Data(self.data, like=posterior.network.like, unpack=self.unpack))
        rounds = (True, False, True) if noisy else (True,)
        total = 2 * len(rounds) * len(batches)
        with tqdm(total=total, desc="validation", disable=not progress, unit="batch", leave=False) as bar:
            known = len(posterior.trace)
            for prior in rounds:
                posterior = self._search(posterior, batches, prior, bar, known)
        return posterior

    def _search(self, posterior: P, batches: list[Batch], prior: bool, bar: Any, known: int) -> P:
        """The best factor for the prior precisions, or for the noise precision; others took ``known`` steps before."""
        taken: list[Step] = []

        def values(log_factor: float) -> tuple[Tensor, Tensor]:
            factor = math.exp(log_factor)
            by_prior, by_noise = (factor, 1.0) if prior else (1.0, factor)
            return posterior.prior_precisions * by_prior, posterior.scale * by_noise

        def measure(log_factors: list[float]) -> list[float]:
            choices = [chosen(posterior, *values(point), ()) for point in log_factors]
            losses = self._losses(posterior, choices, batches, bar)
            for point, choice, loss in zip(log_factors, choices, losses, strict=True):
                taken.append(replace(measured(posterior, choice, *values(point)), validation_nll=loss))
            return losses

        low, high = (math.log(bound) for bound in self.bounds)
        grid = torch.linspace(low, high, self.coarse, dtype=torch.float64).tolist()
        losses = measure(grid)
        best = min(range(len(grid)), key=losses.__getitem__)
        near = (grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)])
        measure(torch.linspace(*near, self.refine + 2, dtype=torch.float64)[1:-1].tolist())
        seen = [*posterior.trace[known:], *taken]
        winner = min(seen, key=lambda one: math.inf if one.validation_nll is None else one.validation_nll)
        if winner.validation_nll in (losses[0], losses[-1]):
            logger.warning("the best of %d choices lies at an end of the range tried, %s", len(grid), self.bounds)
        taken.append(winner)
        precisions = torch.tensor(winner.prior_precision, dtype=torch.float64).to(posterior.prior_precisions)
        scale = posterior.scale
        if winner.noise_precision is not None and isinstance(posterior.fitted, Gaussian):
            scale = scale.new_tensor(winner.noise_precision / first(posterior.fitted.precision))
        return chosen(posterior, precisions, scale, tuple(taken))

    def _losses(self, posterior: P, choices: list[P], batches: list[Batch], bar: Any) -> list[float]:
        """Mean validation loss of each choice."""
        totals, counts = torch.zeros(2, len(choices), dtype=torch.float64)
        for batch in batches:
            for i, (choice, outputs) in enumerate(
                zip(choices, posterior.outputs_each(batch.inputs, choices), strict=True)
            ):
                temperature = choice.temperature
                losses = held_out_losses(
                    choice.likelihood, outputs, batch.targets, choice.link, temperature=temperature
                )
                totals[i] += float(losses.double().sum())
                counts[i] += losses.numel()
            bar.update()
        if not bool(counts.all()):
            raise DataError(
                "held-out data with a target", "ignored labels alone", "other data, or labels that are not -100"
            )
        if not bool(torch.isfinite(totals).any()):
            raise NumericalError(
                "a finite validation loss", "none at any point of the grid", "other bounds, or float64"
            )
        return (totals / counts).tolist()


def measured(posterior: Posterior, choice: Posterior, precisions: Tensor, scale: Tensor) -> Step:
    """A step of a trace at a choice; where there is no exact evidence, with its effective dimension alone."""
    if isinstance(posterior, ExactPosterior):
        return step(posterior, posterior.evidence, precisions, scale)
    gamma = choice.effective_dimension()
    error = gamma.stderr if isinstance(gamma, Estimate) else None
    found = step_of(posterior, None, precisions, scale, float(gamma))
    return replace(found, effective_dimension_error=error)
