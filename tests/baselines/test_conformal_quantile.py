"""The quantile of conformal prediction, and coverage."""

from __future__ import annotations

import pytest
import torch

from lapwing.baselines import Coverage, MonteCarloDropout, PlainNetwork, Task, conformal_quantile
from lapwing.baselines.conformal_quantile import predictor_of
from lapwing.ground.errors import ConfigError, DataError
from tests.checker import unchecked
from tests.posterior_cases import labels, mlp, normal, refused

X, Y = normal(40, 3), labels(40, classes=2)


@pytest.mark.parametrize(
    ("n", "level", "rank"), [(9, 0.9, 9), (19, 0.95, 19), (99, 0.9, 90), (100, 0.9, 91), (1, 0.5, 1)]
)
def test_it_is_a_rank_among_one_more(n: int, level: float, rank: int) -> None:
    scores = torch.randperm(n).double() + 1
    assert float(conformal_quantile(scores, level)) == rank
    several = torch.stack([scores, -scores], 1)
    assert conformal_quantile(several, level).tolist() == [rank, rank - n - 1]


def test_too_few_examples_are_told_with_how_many_it_takes() -> None:
    with refused(DataError, "at least 9 held-out examples for a level of 0.9. Got 8"):
        conformal_quantile(torch.ones(8), 0.9)


def test_coverage_has_the_binomial_error() -> None:
    inside = torch.tensor([1.0, 1.0, 1.0, 0.0])
    found = Coverage.of(inside, torch.tensor([1.0, 2.0, 2.0, 3.0]))
    assert found == Coverage(0.75, (0.75 * 0.25 / 4) ** 0.5, 2.0, 4)


def test_entries_are_fitted_without_the_validation_data() -> None:
    seen: list[Task] = []

    class Looks:
        def fit(self, task: Task) -> PlainNetwork:
            seen.append(task)
            return task.network

    task = Task(mlp(), (X, Y), validation=(X, Y))
    assert isinstance(predictor_of(Looks(), task, "ConformalSets"), PlainNetwork)
    assert seen[0].validation is None and seen[0].train is task.train
    ready = MonteCarloDropout(2).fit(task)
    assert predictor_of(ready, task, "ConformalSets") is ready
    with unchecked(), refused(ConfigError, "ConformalSets on a predictor"):
        predictor_of(3, task, "ConformalSets")
