"""Choosing the prior precision and the noise: by evidence (gradient, or MacKay's fixed point) or by validation."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, TypeAlias, TypeVar, final, get_args, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor
from tqdm.auto import tqdm

from lapwing.ascent import BOUNDS, climb
from lapwing.data import Batch, Data, Source
from lapwing.errors import ConfigError, DataError, NumericalError, UnsupportedError, check_kind, check_option
from lapwing.evidence import Evidence
from lapwing.likelihoods import Gaussian
from lapwing.posteriors import Posterior, Step, WeightPosterior
from lapwing.posteriors.base import first
from lapwing.predictive import Link, Moments, canonical_targets, log_predictive, predictive
from lapwing.types import Unpack

logger = logging.getLogger(__name__)

P = TypeVar("P", bound=Posterior)

At: TypeAlias = Literal["weights", "mode"]
"""Where the evidence is taken: at the trained weights, or at the mode of the linear model around them."""


@runtime_checkable
class Method(Protocol):
    """A way to choose hyper-parameters."""

    def tune(self, posterior: P, progress: bool) -> P:
        """The posterior with the prior and noise it chose."""
        ...


def tune(posterior: P, method: Method | None = None, *, progress: bool = False) -> P:
    """A posterior with a better prior precision, and for Gaussian likelihoods a better noise precision.

    Nothing is fitted again: the curvature and its one eigendecomposition are reused.

    Args:
        posterior: The posterior.
        method: ``EvidenceGradient()`` (the default), ``MacKay()`` or ``Validation(data)``.
        progress: Whether to show a progress bar.

    Returns:
        The posterior at the chosen values; its ``trace`` has grown by the steps taken.

    Raises:
        ConfigError: If the best values are not positive and finite.
        UnsupportedError: If the method needs what the posterior has not.

    Cost:
        That of the method; none reads the training data.

    Example:
        >>> import lapwing as lw
        >>> x = torch.randn(50, 2)
        >>> posterior = lw.Laplace(lw.Gaussian()).fit(torch.nn.Linear(2, 1), (x, x.sum(1, keepdim=True)))
        >>> tuned = lw.tune(posterior)
        >>> tuned.log_marginal() > posterior.log_marginal()
        True
    """
    check_kind("the posterior", posterior, (Posterior,), "tune(recipe.fit(model, data))")
    method = EvidenceGradient() if method is None else method
    check_kind("the method", method, (Method,), "EvidenceGradient(), MacKay() or Validation(data)")
    return method.tune(posterior, progress)


@final
@dataclass(frozen=True)
class EvidenceGradient:
    """Maximises the log evidence over log precisions, where it is concave (MacKay 1992; Immer et al. 2021, section 3).

    Args:
        noise: Whether to choose the noise of a Gaussian likelihood too: one factor for all outputs.
        at: ``"weights"`` takes the evidence at the trained weights; ``"mode"`` at the mode of the linear model, which
            moves with the hyper-parameters: exact for Gaussian likelihoods only.
        steps: Most steps.

    Cost:
        No data. An eigendecomposition once; then a handful of Newton steps, each a few passes over the eigenvalues.
        Several precisions with ``Full``, and ``at="mode"``: L-BFGS, a Cholesky factorisation or a solve an evaluation.

    Example:
        >>> import lapwing as lw
        >>> model, x, y = torch.nn.Linear(2, 3), torch.randn(9, 2), torch.arange(9) % 3
        >>> posterior = lw.Laplace(lw.Categorical()).fit(model, (x, y))
        >>> lw.tune(posterior, EvidenceGradient()).log_marginal() >= posterior.log_marginal()
        True
    """

    noise: bool = True
    at: At = "weights"
    steps: int = 200

    def tune(self, posterior: P, progress: bool) -> P:
        """The posterior of largest evidence."""
        evidence = evidence_at(posterior, self.at)
        noisy = self.noise and isinstance(posterior.likelihood, Gaussian)
        climbing = climb(evidence, posterior.prior_precisions, posterior.scale, noisy=noisy, steps=self.steps)
        points = list(tqdm(climbing, desc="evidence", disable=not progress, unit="step", leave=False))
        taken = [step_of(posterior, p.log_marginal, p.precisions, p.scale, p.effective_dimension) for p in points]
        return chosen(posterior, points[-1].precisions, points[-1].scale, tuple(taken))


@final
@dataclass(frozen=True)
class MacKay:
    """MacKay's fixed point: α_g ← γ_g / |θ_g|², ρ ← (N − γ) ρ / misfit (MacKay 1992, equations 4.9 and 4.10).

    Half of each step is taken, in logarithms: whole ones can go round in a circle. Where γ is more than half of the N
    observations that step in ρ overshoots, and turns negative beyond N; the step of expectation maximisation,
    1/ρ ← (misfit + γ) / (ρ N), takes its place: the fixed point is the same.

    Args:
        noise: Whether to choose the noise of a Gaussian likelihood too.
        at: As in ``EvidenceGradient``.
        steps: Most steps.
        tolerance: Stops when no precision changes by more, relatively.

    Cost:
        As ``EvidenceGradient``, without a line search.

    Example:
        >>> import lapwing as lw
        >>> model, x, y = torch.nn.Linear(2, 3), torch.randn(9, 2), torch.arange(9) % 3
        >>> posterior = lw.Laplace(lw.Categorical()).fit(model, (x, y))
        >>> len(lw.tune(posterior, MacKay(steps=3)).trace) <= 4
        True
    """

    noise: bool = True
    at: At = "weights"
    steps: int = 500
    tolerance: float = 1e-9

    def tune(self, posterior: P, progress: bool) -> P:
        """The posterior at the fixed point."""
        evidence = evidence_at(posterior, self.at)
        noisy = self.noise and isinstance(posterior.likelihood, Gaussian)
        precisions, scale = posterior.prior_precisions, posterior.scale
        taken = [step(posterior, evidence, precisions, scale)]
        for _ in tqdm(range(self.steps), desc="MacKay", disable=not progress, unit="step", leave=False):
            gamma = evidence.effective_dimensions(precisions, scale)
            misfit, norms = evidence.fit(precisions, scale)
            before = torch.cat([precisions, scale.view(1)])
            precisions = (precisions * gamma / norms).sqrt().clamp(*BOUNDS)
            if noisy:
                count, total = evidence.observations, gamma.sum()
                few = total > 0.5 * count
                target = count / (misfit + total / scale) if few else (count - total) / misfit
                scale = (scale * target).sqrt().clamp(*BOUNDS)
            taken.append(step(posterior, evidence, precisions, scale))
            if bool(((torch.cat([precisions, scale.view(1)]) / before).log().abs() < self.tolerance).all()):
                break
        return chosen(posterior, precisions, scale, tuple(taken))


@final
@dataclass(frozen=True, eq=False)
class Validation:
    """Minimises the negative log predictive density of held-out data over one factor for all prior precisions.

    For Gaussian likelihoods a factor for the noise precision is searched for too, after the first and before a second
    search for the prior's.

    Args:
        data: Held-out data, as for ``fit``.
        unpack: Splits one element of a loader.
        link: As in ``predict``; should be the one used later.
        noise: Whether to choose the noise of a Gaussian likelihood too.
        bounds: Factors tried, relative to the precisions now.
        coarse: Points of the first grid, evenly spaced in the logarithm.
        refine: Points of the second grid, between the best point's neighbours.

    Cost:
        Two passes of predictions over the held-out data, each for a whole grid; six with noise.

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
    link: Link = field(default="probit", kw_only=True)
    noise: bool = field(default=True, kw_only=True)
    bounds: tuple[float, float] = field(default=(1e-6, 1e6), kw_only=True)
    coarse: int = field(default=13, kw_only=True)
    refine: int = field(default=8, kw_only=True)

    def __post_init__(self) -> None:
        low, high = self.bounds
        if not (0 < low < high < math.inf and self.coarse >= 2 and self.refine >= 1):
            raise ConfigError(
                "bounds 0 < low < high, coarse >= 2 and refine >= 1",
                f"bounds={self.bounds}, coarse={self.coarse}, refine={self.refine}",
                "Validation(data)",
            )

    def tune(self, posterior: P, progress: bool) -> P:
        """The posterior of smallest validation NLL."""
        noisy = self.noise and isinstance(posterior.likelihood, Gaussian)
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
        start = posterior.evidence

        def values(log_factor: float) -> tuple[Tensor, Tensor]:
            factor = math.exp(log_factor)
            by_prior, by_noise = (factor, 1.0) if prior else (1.0, factor)
            return posterior.prior_precisions * by_prior, posterior.scale * by_noise

        def measure(log_factors: list[float]) -> list[float]:
            choices = [chosen(posterior, *values(point), ()) for point in log_factors]
            losses = self._losses(posterior, choices, batches, bar)
            for point, loss in zip(log_factors, losses, strict=True):
                taken.append(replace(step(posterior, start, *values(point)), validation_nll=loss))
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
                losses = self._loss(choice, outputs, batch)
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

    def _loss(self, choice: Posterior, outputs: Moments, batch: Batch) -> Float[Tensor, " m"]:
        """Loss at each position with the same draws for every choice; infinite where expected rates overflow."""
        generator = torch.Generator().manual_seed(0)
        try:
            prediction = predictive(choice.likelihood, outputs, self.link, generator=generator)
        except NumericalError:
            return torch.full((1,), math.inf)
        targets = canonical_targets(choice.likelihood, prediction, batch.targets)
        return -log_predictive(prediction, targets, generator=torch.Generator().manual_seed(0))


def evidence_at(posterior: Posterior, at: At) -> Evidence:
    """The evidence at the trained weights, or at the mode of the linear model around them.

    Raises:
        UnsupportedError: If the mode is not known in closed form.
    """
    check_option("at", at, get_args(At))
    if at == "weights":
        return posterior.evidence
    shift = posterior.shift if isinstance(posterior, WeightPosterior) else None
    if shift is None:
        raise UnsupportedError(
            "a Gaussian likelihood and a posterior over the weights for at='mode'",
            f"{type(posterior.likelihood).__name__} and {type(posterior).__name__}",
            "at='weights'",
        )
    return replace(posterior.evidence, shift=shift)


def step(posterior: Posterior, evidence: Evidence, precisions: Tensor, scale: Tensor) -> Step:
    """One step of a trace, evaluated from the evidence."""
    with torch.no_grad():
        log_marginal = float(evidence.log_marginal(precisions, scale))
    gamma = float(evidence.effective_dimensions(precisions, scale).sum())
    return step_of(posterior, log_marginal, precisions, scale, gamma)


def step_of(posterior: Posterior, log_marginal: float, precisions: Tensor, scale: Tensor, gamma: float) -> Step:
    """One step of a trace, its numbers at hand."""
    noise = None
    if isinstance(posterior.fitted, Gaussian):
        noise = first(posterior.fitted.precision) * float(scale)
    return Step(log_marginal, tuple(precisions.tolist()), noise, gamma)


def chosen(posterior: P, precisions: Float[Tensor, " g"], scale: Tensor, steps: tuple[Step, ...]) -> P:
    """The posterior with these values.

    Raises:
        ConfigError: If they are not positive and finite: the evidence has no maximum.
    """
    values = torch.cat([precisions.detach(), scale.detach().view(1)]).cpu()
    if not bool((torch.isfinite(values) & (values > 0)).all()):
        raise ConfigError(
            "hyper-parameters that are positive and finite", f"{values.tolist()}", "Validation(data), or another prior"
        )
    prior = posterior.prior.with_precisions(values[:-1])
    likelihood = posterior.likelihood
    if isinstance(posterior.fitted, Gaussian):
        fitted, factor = posterior.fitted.precision, float(values[-1])
        scaled = tuple(p * factor for p in fitted) if isinstance(fitted, tuple) else fitted * factor
        likelihood = posterior.fitted.with_precision(scaled)
    return posterior.with_choices(prior, likelihood, steps)
