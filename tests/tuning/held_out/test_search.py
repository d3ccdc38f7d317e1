"""Which of the precisions and links tried is taken, and where to look next."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from lapwing.ground.data.sources import Batch
from lapwing.ground.errors import ConvergenceWarning
from lapwing.tuning.held_out.outputs import held_out_outputs
from lapwing.tuning.held_out.search import HeldOutSearch
from lapwing.tuning.held_out.trial import Curve, Found, Mean, Trial, difference, least, mean_of
from lapwing.tuning.parabola import vertex
from tests.posterior_cases import normal
from tests.tuning.cases import fit


def test_of_losses_that_rounding_alone_tells_apart_the_first_is_taken() -> None:
    first, second, third = Trial(2.0, 0.5, "probit"), Trial(1.0, 0.5 - 1e-8, "qmc"), Trial(0.0, 0.6, "qmc")
    assert least([third, first, second]) is first and least([second, first]) is second
    better = Trial(0.0, 0.499, "pairwise")
    assert least([first, second, better, third]) is better
    assert least([Trial(0.0, math.inf, "qmc"), third]) is third
    negative = Trial(1.0, -2.0, "probit"), Trial(0.0, -2.0 - 1e-8, "probit"), Trial(0.0, -2.1, "probit")
    assert least(negative[:2]) is negative[0] and least(negative) is negative[2]


@pytest.mark.parametrize("top", [-1.3, 0.0, 2.4])
def test_the_vertex_of_a_parabola_is_found_from_any_three_points(top: float) -> None:
    points = [(x, 3.0 + 0.7 * (x - top) ** 2) for x in (4.0, -3.0, top + 0.2, -6.0)]
    assert vertex(points) == (pytest.approx(top, abs=1e-12), pytest.approx(3.0))
    assert vertex([(x, -y) for x, y in points]) is None
    assert vertex(points[:2]) is None


def test_beside_values_that_are_not_finite_the_vertex_is_halfway() -> None:
    assert vertex([(0.0, math.inf), (1.0, 5.0), (3.0, 7.0)]) == (2.0, 5.0)
    assert vertex([(0.0, 6.0), (1.0, 5.0), (3.0, math.inf)]) == (0.5, 5.0)
    assert vertex([(0.0, math.inf), (1.0, 5.0), (3.0, math.inf)]) == (2.0, 5.0)


class TestWeakestNotRejected:
    """Losses of 100 targets are given: at each precision those of the best, and more by so much on every other one."""

    @staticmethod
    def search() -> tuple[HeldOutSearch[Any], Found]:
        _, posterior = fit("categorical", "kfac")
        data = held_out_outputs(posterior, [Batch(normal(8, 3, seed=5), torch.arange(8) % 3)], (1e-3, 1e3))
        search = HeldOutSearch("Validation", data, ("probit",), temperature=True)
        return search, Found([Curve("probit"), Curve("probit", scaled=True)])

    @staticmethod
    def trial(log_factor: float, mean: float, spread: float) -> Trial:
        losses = torch.full((100,), 1.0 + mean)
        losses[::2] += spread
        losses[1::2] -= spread
        return Trial(log_factor, 1.0 + mean, "probit", losses=losses)

    def test_is_the_last_before_one_that_is_worse_by_its_own_standard_error(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Of a difference that is 1 or -1 on 100 targets the standard error is a tenth."""
        search, found = self.search()
        monkeypatch.setattr(type(search.data), "halvings", 0)
        path = [(6.0, 0.3, 0.0), (4.0, 0.0, 0.0), (2.0, 0.099, 1.0), (0.0, 0.102, 1.0), (-2.0, 0.0, 0.0)]
        found.curves[1].trials += [self.trial(*point) for point in path]
        assert search.weakest_not_rejected(found).log_factor == 2.0
        assert search.weakest_not_rejected(found, errors=1.1).log_factor == -2.0
        assert search.weakest_not_rejected(found, errors=0.5).log_factor == 4.0

    def test_is_found_between_the_precisions_of_the_grid_by_losses_at_temperatures_of_their_own(self) -> None:
        search, _ = self.search()
        found = search.found(None)
        weakest = search.weakest_not_rejected(found)
        best = min(found.curves[0].trials, key=lambda one: one.objective)
        assert weakest.log_factor <= best.log_factor

        def apart(log_factor: float) -> Mean:
            (trial,) = search.trials_at(found, log_factor, search.data.moments(log_factor), found.curves)
            return difference(search.data, trial, best)

        here = apart(weakest.log_factor)
        assert here.value <= here.error
        if weakest.log_factor > search.data.grid[-1]:
            beyond = apart(weakest.log_factor - 0.5)
            assert beyond.value > beyond.error


def test_where_the_nearest_to_the_average_is_the_network_and_the_best_is_not_that_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Losses are given."""
    search, _ = TestWeakestNotRejected.search()
    search = replace(search, network=True, average=True)
    network, best = Trial(2 * search.data.grid[0], 1.1, "probit", 1.3), Trial(0.0, 1.0, "probit", 0.9)
    found = Found([Curve("probit", scaled=True, trials=[best], network=network)], [best], plain=1.2)
    monkeypatch.setattr("lapwing.tuning.held_out.search.nearest_to_average", lambda *_: network)
    with pytest.warns(ConvergenceWarning, match=r"is the nearest to the average of all.*logits divided by 1\.3\."):
        search.chosen(found)


def test_a_difference_is_paired_and_infinite_where_one_overflowed() -> None:
    search, _ = TestWeakestNotRejected.search()
    noisy = torch.randn(100, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    one, other = (Trial(0.0, 0.0, "probit", losses=noisy + shift) for shift in (0.5, 0.0))
    apart = difference(search.data, one, other)
    assert apart.value == pytest.approx(0.5) and apart.error == pytest.approx(0.0, abs=1e-12) and apart.targets == 100
    overflowed = Trial(0.0, math.inf, "probit", losses=torch.tensor([math.inf]))
    assert difference(search.data, overflowed, other).value == math.inf
    assert mean_of(search.data, noisy).error == pytest.approx(float(noisy.std()) / 10)
