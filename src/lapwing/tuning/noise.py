"""A noise precision for each output: what the training data say of every output, and the rounds that follow it.

With the curvature at hand one factor for all outputs is tuned. Their ratios change the curvature, so that each round
computes it again:

    ρ_k ← (N_k - γ_k) / Σ_n (y_nk - h_nk)²,     γ_k = ρ_k Σ_n [J_n Λ⁻¹ J_nᵀ]_kk

MacKay's step for output k, where the evidence is stationary in ρ_k (MacKay 1992, equation 4.10). The γ_k add up to the
effective dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast, final, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.data.inputs import Inputs, chunks, concatenated
from lapwing.ground.data.sources import Batch, Data
from lapwing.ground.errors import ConvergenceWarning, UnsupportedError, warn
from lapwing.ground.precision import wide, wide_like
from lapwing.likelihoods import Likelihood
from lapwing.linear.evidence import LogEvidence
from lapwing.linear.tangent import Tangent, Target
from lapwing.posteriors import Posterior
from lapwing.tuning.fixed_point import distance
from lapwing.tuning.hyperparameters import BOUNDS, at_end
from lapwing.tuning.method import Method, P

ROUNDS = 30
"""Most times the curvature is computed again."""

TOLERANCE = 1e-3
"""How near noise precisions are found by the training data, relatively; see ``fixed_point.distance``."""

TOGETHER = 1024
"""Examples predicted together, at least: a kernel between training outputs reads them all for every prediction."""

COVARIANCES = 2**27
"""Bytes that covariances of outputs may take together (128 MiB)."""


@final
@dataclass(frozen=True, eq=False)
class NoiseRule:
    """How a method chooses the noise of each output.

    Args:
        noises: The noise precision of each output that it asks for at the prior and the noise of a posterior.
        for_prior: The same method for the prior alone, for a posterior that has its data.
        no_worse: The posterior at which the rounds end, or one that is better by what the method minimises: the rounds
            are no descent. ``None`` where the method knows of none.
        first: Noise precisions to begin with, in place of a common factor for those of the posterior: for a method that
            judges a prior by how it predicts, which no prior does well under noises in a wrong ratio.
        anew: Whether every round looks for the prior from that of the start, and not from that of the round before.
        tolerance: The rounds end where no noise precision is further from where it stays, relatively.
    """

    noises: Callable[[Posterior], Float[Tensor, " c"]]
    for_prior: Method
    no_worse: Callable[[Posterior], Posterior] | None = None
    first: Callable[[Posterior], Float[Tensor, " c"]] | None = None
    anew: bool = False
    tolerance: float = TOLERANCE

    def ended(self, posterior: P) -> P:
        """The posterior at which the rounds end, or a better one."""
        return posterior if self.no_worse is None else cast(P, self.no_worse(posterior))


@runtime_checkable
class TunesNoise(Protocol):
    """A method that can say which noise it would choose for each output."""

    def tune(self, posterior: P, progress: bool | None) -> P:
        """The posterior with the prior that it chose, and a factor for the noise of all outputs."""
        ...

    def noise_rule(self) -> NoiseRule | None:
        """How it chooses the noise of each output; ``None`` where it leaves the noise as it is."""
        ...


def noise_rule_of(method: Method, noises: Callable[[Posterior], Float[Tensor, " c"]]) -> NoiseRule | None:
    """The rule of a method whose option ``noise`` says whether it chooses the noise; ``None`` where it does not.

    Args:
        method: The method, a dataclass.
        noises: See ``NoiseRule``.
    """
    options: Any = method
    if not options.noise:
        return None
    return NoiseRule(noises, replace(options, noise=False))


def tuned_by_output(posterior: P, method: TunesNoise, progress: bool | None) -> P:
    """The posterior at the prior and the noise of each output at which a method stays.

    Args:
        posterior: The posterior before.
        method: Chooses.
        progress: Whether to show progress bars; ``None`` for after two seconds, in a terminal or notebook.

    Raises:
        UnsupportedError: If its curvature cannot be computed again.

    Warns:
        ConvergenceWarning: If a noise was still moving after ``ROUNDS`` rounds, or is at an end of its range.

    Cost:
        A round: a fit, a prediction of the training data, and what the method takes. Two to five rounds where the data
        determined few directions beside the observations.
    """
    rule = method.noise_rule()
    start = output_noises(posterior)
    if rule is None or start is None:
        return method.tune(posterior, progress)
    check_data(posterior)
    if rule.first is None:
        tuned = method.tune(posterior, progress)
    else:
        noises = start * (rule.first(posterior).to(start) / start).clamp(*BOUNDS)
        tuned = rule.for_prior.tune(refitted_in_proportion(posterior, noises), progress)
    moves = torch.zeros_like(start)
    before: Tensor | None = None
    for _ in range(ROUNDS):
        now = noises_now(tuned)
        factors = (rule.noises(tuned).to(start) / start).clamp(*BOUNDS)
        wanted = start * factors
        moves = (wanted / now).log()
        if bool((distance(moves, before) < rule.tolerance).all()):
            warn_of_ends(now / start)
            return rule.ended(tuned)
        before = moves
        if rule.anew:
            refitted = refitted_in_proportion(posterior, wanted)
        else:
            refitted = tuned.refitted(tuned.likelihood.with_own_noises(wanted))
        tuned = rule.for_prior.tune(replace(refitted, trace=tuned.trace), progress)
    warn(
        f"after {ROUNDS} rounds the noise precision of an output still moved by {float(moves.abs().max()):.1e}, "
        'relatively. Try EvidenceGradient(noise="residuals"), or one noise for all outputs, Gaussian(shared=True)',
        ConvergenceWarning,
    )
    return rule.ended(tuned)


def output_noises(posterior: Posterior) -> Float[Tensor, " c"] | None:
    """Noise precision of each of several outputs, where each is chosen by itself; else ``None``."""
    return posterior.likelihood.own_noises(posterior.model.event[-1])


def noises_now(posterior: Posterior) -> Float[Tensor, " c"]:
    """``output_noises`` of a posterior whose outputs have a noise each."""
    noises = output_noises(posterior)
    assert noises is not None
    return noises


def noise_level(likelihood: Likelihood) -> float:
    """The noise precision, of several outputs their geometric mean; 1 where there is none."""
    precision = likelihood.noise_precision
    if precision is None:
        return 1.0
    return float(torch.as_tensor(precision, dtype=torch.float64, device="cpu").log().mean().exp())


def refitted_in_proportion(posterior: P, noises: Float[Tensor, " c"]) -> P:
    """The posterior fitted again with other noise precisions, a last layer's prior over them as it was."""
    likelihood = posterior.likelihood.with_own_noises(noises)
    if not posterior.survey.head:
        return posterior.refitted(likelihood)
    factor = noise_level(likelihood) / noise_level(posterior.likelihood)
    prior = posterior.prior.with_precisions(factor * posterior.prior_precisions.cpu())
    return posterior.refitted(likelihood, prior)


def noises_by_evidence(posterior: Posterior, evidence: LogEvidence) -> Float[Tensor, " c"]:
    """MacKay's step for the noise precision of each output.

    Args:
        posterior: The posterior.
        evidence: Its evidence, at the weights or at the mode.
    """
    precisions = posterior.prior_precisions
    scale = posterior.scale
    mode: Tensor | None = None
    if evidence.shift is not None:
        mode = evidence.shift.weights + evidence.shift.step(precisions, scale)
    gamma = float(evidence.effective_dimensions(precisions, scale).sum())
    return output_residuals(posterior, weights=mode).noises(noises_now(posterior), gamma)


def check_data(posterior: Posterior) -> None:
    """Refuse a posterior whose curvature cannot be computed again.

    Raises:
        UnsupportedError: If it has no training data.
    """
    if posterior.data is None:
        raise UnsupportedError(
            "a posterior that has its training data, to choose a noise for each output",
            "one from a file, which holds none",
            "load(path, model, data) with the training data, tuning before saving, or one noise for all outputs, "
            "Gaussian(shared=True)",
        )


def warn_of_ends(factors: Float[Tensor, " c"]) -> None:
    """Warn where the noise of some output is no answer.

    Args:
        factors: Noise precisions over those before tuning.
    """
    ends = [place for place, factor in enumerate(factors.tolist()) if at_end(factor)]
    if ends and len(ends) < len(factors):
        warn(
            f"tuning took the noise precision of outputs {ends[:9]} to an end of its range: what it judged by fits "
            "them exactly, or not at all. Try leaving out outputs whose targets are constant, or training to "
            "convergence",
            ConvergenceWarning,
        )


@final
@dataclass(frozen=True, eq=False)
class OutputResiduals:
    """What the training data say of each output.

    Args:
        observations: Observations N_k, the same of every output.
        squares: ``Σ_n (y_nk - h_nk)²``.
        variances: ``Σ_n [J_n Λ⁻¹ J_nᵀ]_kk``.
    """

    observations: float
    squares: Float[Tensor, " c"]
    variances: Float[Tensor, " c"]

    def noises(self, now: Float[Tensor, " c"], gamma: float | None) -> Float[Tensor, " c"]:
        """MacKay's step, ``(N_k - γ_k) / Σ (y - h)²``.

        Where γ_k is more than half of N_k that of expectation maximisation takes its place, as in ``fixed_point``.

        Args:
            now: Noise precisions ρ_k under which Λ is.
            gamma: The effective dimension, of which each output has its share; ``None`` counts no directions.
        """
        squares = self.squares.clamp_min(torch.finfo(torch.float64).tiny)
        if gamma is None:
            return self.observations / squares
        shares = now.to(self.variances) * self.variances
        gammas = gamma * shares / shares.sum().clamp_min(torch.finfo(torch.float64).tiny)
        whole = self.observations / (self.squares + gammas / now.to(gammas))
        return torch.where(gammas > 0.5 * self.observations, whole, (self.observations - gammas) / squares)


def output_residuals(
    posterior: Posterior,
    *,
    weights: Float[Tensor, " d"] | None = None,
    target: Target = "affine",
    draws: Float[Tensor, "d k"] | None = None,
    variances: bool = True,
) -> OutputResiduals:
    """Sums over the training data, output by output.

    Args:
        posterior: The posterior, with its data.
        weights: w, at whose outputs h the residuals are; ``None`` for the network's own.
        target: Tangent model that h is of.
        draws: Draws ζ ~ N(0, Λ⁻¹), which the variances are taken from; ``None`` for those of predictions.
        variances: Whether they are wanted; else they are 0.

    Raises:
        UnsupportedError: If the posterior has no training data.

    Cost:
        A prediction of the training data; without variances a forward pass.
    """
    model = posterior.model
    likelihood = posterior.likelihood
    c = model.event[-1]
    size = max(1, COVARIANCES // (model.width * c * model.network.like.itemsize))
    squares = torch.zeros(c, **wide_like(model.network.like))
    total_variances = squares.clone()
    counted = 0.0
    for batch in gathered(model.data, TOGETHER):
        for place, inputs in chunks(batch.inputs, size):
            f = model.outputs(inputs)
            y = likelihood.canonical_targets(f, batch.targets[place])
            h = f if weights is None else Tangent(posterior.training, target).outputs(inputs, weights)
            squares += likelihood.weight * (wide(y) - wide(h)).square().flatten(0, -2).sum(0)
            counted += likelihood.count(y) / c
            if variances:
                found = _variances(posterior, inputs, draws)
                total_variances += likelihood.weight * wide(found).flatten(0, -2).sum(0)
    total = model.data.added(torch.cat([squares, total_variances, squares.new_tensor([counted])]))
    return OutputResiduals(float(total[-1]), total[:c], total[c : 2 * c])


def _variances(posterior: Posterior, inputs: Inputs, draws: Tensor | None) -> Float[Tensor, "n *event c"]:
    """Variance of each output, by predictions or by draws of the weights."""
    if draws is None:
        return posterior.outputs_each(inputs, [posterior])[0].variance
    return wide(posterior.pushed(inputs, draws)[1]).square().mean(-1)


def gathered(data: Data, examples: int) -> Iterator[Batch]:
    """The batches of the data, tensors of one shape put together to make at least so many examples.

    Args:
        data: The data.
        examples: Fewest examples of a batch of tensors, but for the last of its shape.
    """
    waiting = list[Batch]()
    for batch in data:
        if waiting and not _alike(waiting[0], batch):
            yield _joined(waiting)
            waiting = []
        waiting.append(batch)
        if sum(map(len, waiting)) >= examples:
            yield _joined(waiting)
            waiting = []
    if waiting:
        yield _joined(waiting)


def _alike(one: Batch, other: Batch) -> bool:
    """Whether two batches can be put together: what goes with a whole batch, such as a graph, cannot."""
    first = one.inputs
    second = other.inputs
    if not (isinstance(first, Tensor) and isinstance(second, Tensor)):
        return False
    return first.shape[1:] == second.shape[1:] and one.targets.shape[1:] == other.targets.shape[1:]


def _joined(batches: list[Batch]) -> Batch:
    """One batch of all of them."""
    if len(batches) == 1:
        return batches[0]
    inputs = concatenated([batch.inputs for batch in batches])
    targets = torch.cat([batch.targets for batch in batches])
    return Batch(inputs, targets)
