"""A noise precision for each output: what the training data say of every output, and the rounds that follow it.

With the curvature at hand one factor for all outputs is tuned. Their ratios change the curvature, so that each round
computes it again:

    ρ_k ← (N_k - γ_k) / Σ_n (y_nk - h_nk)²,     γ_k = ρ_k Σ_n [J_n Λ⁻¹ J_nᵀ]_kk

MacKay's step for output k, where the evidence is stationary in ρ_k (MacKay 1992, equation 4.10). The γ_k add up to the
effective dimension.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, cast, final, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.data.inputs import Inputs, chunks, concatenated
from lapwing.ground.data.sources import Batch, Data
from lapwing.ground.errors import ConvergenceWarning, UnsupportedError, warn
from lapwing.linear.tangent import Tangent, Target
from lapwing.posteriors import Posterior
from lapwing.tuning.choices import BOUNDS, P, at_end, distance

ROUNDS = 30
"""Most times the curvature is computed again."""

TOLERANCE = 1e-3
"""The rounds end where no noise precision is further from where it stays, relatively; see ``choices.distance``."""

TOGETHER = 1024
"""Examples predicted together, at least: a kernel between training outputs reads them all for every prediction."""

COVARIANCES = 2**27
"""Bytes that covariances of outputs may take together (128 MiB)."""


@runtime_checkable
class ByOutput(Protocol):
    """A way to tune that can say which noise it would choose for each output."""

    @property
    def noisy(self) -> bool:
        """Whether it chooses the noise."""
        ...

    def own_noises(self, posterior: Posterior) -> Float[Tensor, " c"]:
        """Noise precision of each output that the method asks for at the prior and the noise of a posterior."""
        ...

    def tune(self, posterior: P, progress: bool | None) -> P:
        """The posterior with the prior that it chose, and a factor for the noise of all outputs."""
        ...

    def for_prior(self) -> ByOutput:
        """The same method for the prior alone, for a posterior that has its data."""
        ...


def tuned_by_output(posterior: P, method: ByOutput, progress: bool | None) -> P:
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
    tuned = method.tune(posterior, progress)
    start = own_noises(posterior)
    if start is None or not method.noisy:
        return tuned
    check_data(tuned)
    moves, before = torch.zeros_like(start), None
    for _ in range(ROUNDS):
        now = cast(Tensor, own_noises(tuned))
        wanted = start * (method.own_noises(tuned).to(start) / start).clamp(*BOUNDS)
        moves = (wanted / now).log()
        if bool((distance(moves, before) < TOLERANCE).all()):
            warn_of_ends(now / start)
            return tuned
        before = moves
        tuned = method.for_prior().tune(tuned.refitted(tuned.likelihood.with_own_noises(wanted)), progress)
    warn(
        f"after {ROUNDS} rounds the noise precision of an output still moved by {float(moves.abs().max()):.1e}, "
        'relatively. Try EvidenceGradient(noise="residuals"), or one noise for all outputs, Gaussian(shared=True)',
        ConvergenceWarning,
    )
    return tuned


def own_noises(posterior: Posterior) -> Float[Tensor, " c"] | None:
    """Noise precision of each of several outputs, where each is chosen by itself; else ``None``."""
    return posterior.likelihood.own_noises(posterior.model.event[-1])


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
class OutputSums:
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


def output_sums(
    posterior: Posterior,
    *,
    weights: Float[Tensor, " d"] | None = None,
    target: Target = "affine",
    draws: Float[Tensor, "d k"] | None = None,
    variances: bool = True,
) -> OutputSums:
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
    model, likelihood = posterior.model, posterior.likelihood
    c = model.event[-1]
    size = max(1, COVARIANCES // (model.width * c * model.network.like.itemsize))
    squares = torch.zeros(c, dtype=torch.float64, device=model.network.like.device)
    spread, counted = squares.clone(), 0.0
    for batch in gathered(model.data, TOGETHER):
        for place, inputs in chunks(batch.inputs, size):
            f = model.outputs(inputs)
            y = likelihood.canonical_targets(f, batch.targets[place])
            h = f if weights is None else Tangent(posterior.training, target).outputs(inputs, weights)
            squares += likelihood.weight * (y.double() - h.double()).square().flatten(0, -2).sum(0)
            counted += likelihood.count(y) / c
            if variances:
                found = _variances(posterior, inputs, draws)
                spread += likelihood.weight * found.double().flatten(0, -2).sum(0)
    total = model.data.added(torch.cat([squares, spread, squares.new_tensor([counted])]))
    return OutputSums(float(total[-1]), total[:c], total[c : 2 * c])


def _variances(posterior: Posterior, inputs: Inputs, draws: Tensor | None) -> Float[Tensor, "n *event c"]:
    """Variance of each output, by predictions or by draws of the weights."""
    if draws is None:
        return posterior.outputs_each(inputs, [posterior])[0].variance
    return posterior.pushed(inputs, draws)[1].double().square().mean(-1)


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
    inputs = one.inputs, other.inputs
    if not all(isinstance(each, Tensor) for each in inputs):
        return False
    first, second = (cast(Tensor, each).shape[1:] for each in inputs)
    return first == second and one.targets.shape[1:] == other.targets.shape[1:]


def _joined(batches: list[Batch]) -> Batch:
    if len(batches) == 1:
        return batches[0]
    return Batch(concatenated([batch.inputs for batch in batches]), torch.cat([batch.targets for batch in batches]))
