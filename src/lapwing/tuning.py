"""Choosing the prior precision and the noise by evidence: its gradient, or MacKay's fixed point."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, Protocol, TypeAlias, TypeVar, final, get_args, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor
from tqdm.auto import tqdm

from lapwing.ascent import BOUNDS, climb
from lapwing.errors import ConfigError, UnsupportedError, check_kind, check_option
from lapwing.evidence import Evidence
from lapwing.likelihoods import Gaussian
from lapwing.posteriors import Posterior, Step, WeightPosterior
from lapwing.posteriors.base import first
from lapwing.posteriors.exact import with_evidence

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


def evidence_at(posterior: Posterior, at: At) -> Evidence:
    """The evidence at the trained weights, or at the mode of the linear model around them.

    Raises:
        UnsupportedError: If the mode is not known in closed form.
    """
    check_option("at", at, get_args(At))
    exact = with_evidence(posterior)
    if at == "weights":
        return exact.evidence
    shift = posterior.shift if isinstance(posterior, WeightPosterior) else None
    if shift is None:
        raise UnsupportedError(
            "a Gaussian likelihood and a posterior over the weights for at='mode'",
            f"{type(posterior.likelihood).__name__} and {type(posterior).__name__}",
            "at='weights'",
        )
    return replace(exact.evidence, shift=shift)


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
