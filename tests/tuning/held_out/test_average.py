"""The member of a family that is nearest to the average of all."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

import lapwing as lw
from lapwing.ground.data.sources import Batch
from lapwing.moments.outputs import Moments
from lapwing.tuning.held_out.average import nearest_to_average, weights_of
from lapwing.tuning.held_out.outputs import HeldOut
from lapwing.tuning.held_out.trial import Trial
from tests.posterior_cases import labels, normal
from tests.tuning.cases import fit

LOGITS = 2 * normal(30, 3)
TARGETS = labels(30, classes=3, seed=4)
STRETCH = {2.0: 0.02, 1.0: 0.1, 0.0: 0.2, -1.0: 0.3}
"""What the logits of a member are multiplied by, by its log factor."""


def predicted(trial: Trial, temperature: float) -> list[Any]:
    """Of two batches."""
    logits = STRETCH[trial.log_factor] * LOGITS
    return [lw.Categorical().predictive(Moments.certain(part / temperature)) for part in logits.split(20)]


def losses(log_factor: float, temperature: float = 1.0) -> Tensor:
    probs = (STRETCH[log_factor] * LOGITS / temperature).softmax(-1)
    return -probs.gather(1, TARGETS[:, None])[:, 0].log()


def members() -> list[Trial]:
    return [Trial(point, float(losses(point).mean()), "probit", losses=losses(point)) for point in STRETCH]


@dataclass(eq=False)
class Given(HeldOut[Any]):
    """Held-out data of which only the targets and the grid are asked."""

    @property
    def grid(self) -> list[float]:
        return self.log_factors

    def moments(self, log_factor: float) -> list[Any]:
        raise NotImplementedError


def held_out(*parts: Tensor) -> Given:
    _, posterior = fit("categorical")
    batches = tuple(Batch(torch.zeros(len(part), 1), part) for part in parts or TARGETS.split(20))
    return Given(posterior, batches, list(STRETCH))


class TestNearest:
    def test_is_the_member_and_temperature_of_least_divergence_from_the_average(self) -> None:
        """The average and its weights from their definition; all logits are multiples, so one T is the answer."""
        nats = torch.stack([losses(point).sum() for point in STRETCH])
        weights = torch.tensor([0.5, 1.0, 1.0, 0.5], dtype=torch.float64) * torch.exp(nats.min() - nats)
        probs = torch.stack([(stretch * LOGITS).softmax(-1) for stretch in STRETCH.values()])
        average = torch.einsum("k,knc->nc", weights / weights.sum(), probs)
        scales = torch.linspace(0.002, 0.4, 4000)
        divergence = [float(-(average * (scale * LOGITS).log_softmax(-1)).sum()) for scale in scales]
        found = nearest_to_average(held_out(), members(), predicted)
        best = scales[divergence.index(min(divergence))]
        assert STRETCH[found.log_factor] / found.temperature == pytest.approx(float(best), rel=0.01)
        apart = {
            point: float(-(average * (stretch * LOGITS).log_softmax(-1)).sum()) for point, stretch in STRETCH.items()
        }
        assert found.log_factor == min(apart, key=lambda point: apart[point])

    def test_positions_without_a_label_say_nothing(self) -> None:
        """They change neither the weights, which are of losses, nor where a member is near."""
        some = TARGETS.clone()
        some[::2] = -100
        kept = slice(1, None, 2)
        ignoring = nearest_to_average(
            held_out(*some.split(20)),
            [Trial(p, float(losses(p)[kept].mean()), "probit", losses=losses(p)[kept]) for p in STRETCH],
            predicted,
        )
        without = nearest_to_average(
            held_out(TARGETS[kept]),
            [Trial(p, float(losses(p)[kept].mean()), "probit", losses=losses(p)[kept]) for p in STRETCH],
            lambda trial, temperature: [
                lw.Categorical().predictive(Moments.certain(STRETCH[trial.log_factor] * LOGITS[kept] / temperature))
            ],
        )
        assert (ignoring.log_factor, ignoring.temperature) == (without.log_factor, without.temperature)

    def test_many_labels_leave_nothing_to_hedge(self) -> None:
        """Of one member that is better by far the temperature stays its own."""
        sure = [Trial(point, 0.0 if point == 0.0 else 50.0, "probit", losses=losses(point)) for point in STRETCH]
        found = nearest_to_average(held_out(), sure, predicted)
        assert found.log_factor == 0.0 and found.temperature == pytest.approx(1.0, abs=0.01)

    def test_where_the_network_alone_has_a_finite_loss_it_is_taken(self) -> None:
        network = Trial(9.0, 1.0, "probit", 2.0, losses=losses(0.0))
        assert nearest_to_average(held_out(), [network], predicted) is network


class TestWeights:
    def test_are_likelihoods_times_widths(self) -> None:
        trials = [Trial(3.0, 1.0, "probit"), Trial(1.0, 1.1, "probit"), Trial(0.0, 1.3, "probit")]
        raw = [1.0, 1.5 * math.exp(-10 * 0.1), 0.5 * math.exp(-10 * 0.3)]
        assert weights_of(trials, 10.0) == pytest.approx([weight / sum(raw) for weight in raw])

    def test_the_best_link_stands_for_its_precision(self) -> None:
        trials = [Trial(1.0, 1.0, "probit"), Trial(1.0, 0.9, "qmc"), Trial(0.0, 1.0, "probit")]
        weights = weights_of(trials, 10.0)
        assert weights[0] == 0.0 and weights[1] == pytest.approx(weights[2] * math.e)

    def test_one_precision_is_all(self) -> None:
        assert weights_of([Trial(1.0, 1.0, "probit"), Trial(1.0, 0.9, "qmc")], 10.0) == [0.0, 1.0]
