"""Which member of a family predicts most like all of them together, each as likely as the held-out data say."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.predictive.distributions.probabilities import ProbabilitiesOfLogits
from lapwing.tuning.held_out.outputs import HeldOut
from lapwing.tuning.held_out.temperature import least_temperature
from lapwing.tuning.held_out.trial import Trial, least, mean_of

NEGLIGIBLE = 1e-3
"""Likelihood over that of the best, or weight in the average, below which a member is left out."""

Predictions: TypeAlias = Callable[[Trial, float], Sequence[ProbabilitiesOfLogits]]
"""What a member predicts of each batch at a temperature of its logits."""


def nearest_to_average(data: HeldOut[Any], trials: Sequence[Trial], predictions: Predictions) -> Trial:
    """The member whose predictions are nearest to the average of all, with the temperature that brings it nearest.

        p̄(y | x) = Σ_k w_k p_k(y | x),    w_k ∝ exp(-n L_k) Δ_k,    the largest E_p̄ log p_k over the held-out inputs

    n L_k are the nats that n held-out targets cost, with the penalty of the temperature; Δ_k is the width of log λ for
    which a precision stands, by the trapezoid rule. So w_k is the posterior of log λ, uniform before the data. A few
    hundred targets hardly tell one precision from another ten times as strong, and the best by a hair may be far from
    what all of them say: their average predicts better than the best does. One member in its place keeps most of that
    and costs one prediction.

    Args:
        data: The held-out data.
        trials: The members, each at its best temperature; of those at one precision the best is in the average.
        predictions: What they predict. Labels that are -100 say nothing of where a member is near.

    Returns:
        The member as it was tried, but for its temperature; the best where no member but the network has a finite loss.

    Cost:
        Two predictions of each member that is not negligible, from outputs that are there already.
    """
    targets = mean_of(data, trials[0].losses).targets
    best = min(trial.objective for trial in trials)
    members = [trial for trial in trials if targets * (trial.objective - best) < -math.log(NEGLIGIBLE)]
    on_grid = [trial for trial in trials if trial.log_factor <= data.grid[0]]  # the network is its strongest prior
    if not on_grid:
        return least(trials)
    average = _average(on_grid, weights_of(on_grid, targets), predictions)

    def divergence(trial: Trial, temperature: float) -> float:
        """Cross entropy of the average and a member, nats a target."""
        parts = [
            part.cross_entropy(probs, batch.targets)
            for part, probs, batch in zip(predictions(trial, temperature), average, data.batches, strict=True)
        ]
        return mean_of(data, torch.cat(parts).cpu()).value

    apart = [replace(trial, loss=divergence(trial, trial.temperature), penalty=0.0) for trial in members]
    nearest = members[apart.index(least(apart))]
    known = {nearest.temperature: least(apart).loss}
    temperature = least_temperature(lambda other: divergence(nearest, other), known, nearest.temperature)
    return replace(nearest, temperature=temperature)


def weights_of(trials: Sequence[Trial], targets: float) -> list[float]:
    """The weight of each member in the average; zero where another is better at its precision.

    Args:
        trials: The members.
        targets: How many held-out targets there are.

    Example:
        >>> def trial(log_factor, loss):
        ...     return Trial(log_factor, loss, "probit")
        >>> [round(weight, 2) for weight in weights_of([trial(2.0, 1.0), trial(1.0, 1.0), trial(0.0, 1.0)], 100.0)]
        [0.25, 0.5, 0.25]
    """
    at_each = dict[float, Trial]()
    for trial in trials:
        known = at_each.get(trial.log_factor)
        if known is None or trial.objective < known.objective:
            at_each[trial.log_factor] = trial
    path = [at_each[log_factor] for log_factor in sorted(at_each)]
    if len(path) == 1:
        return [float(trial is path[0]) for trial in trials]
    places = torch.tensor([trial.log_factor for trial in path], dtype=torch.float64)
    gaps = places.diff() / 2
    widths = torch.nn.functional.pad(gaps, (1, 0)) + torch.nn.functional.pad(gaps, (0, 1))
    nats = targets * torch.tensor([trial.objective for trial in path], dtype=torch.float64)
    shares = (widths.log() - nats).softmax(0).tolist()
    of_path = dict(zip(map(id, path), shares, strict=True))
    return [of_path.get(id(trial), 0.0) for trial in trials]


def _average(
    trials: Sequence[Trial], weights: Sequence[float], predictions: Predictions
) -> list[Float[Tensor, "*batch c"]]:
    """Probabilities of each batch, averaged over the members."""
    average = list[Tensor]()
    kept = sum(weight for weight in weights if weight >= NEGLIGIBLE)
    for trial, weight in zip(trials, weights, strict=True):
        if weight < NEGLIGIBLE:
            continue
        parts = [weight / kept * part.probs for part in predictions(trial, trial.temperature)]
        average = [one + other for one, other in zip(average, parts, strict=True)] if average else parts
    return average
