"""Conformal sets cover as they promise."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lapwing.baselines import ConformalSets, PlainNetwork, Task
from lapwing.ground.errors import ConfigError, UnsupportedError
from lapwing.likelihoods import Categorical, Gaussian
from tests.checker import unchecked
from tests.posterior_cases import normal, refused

C = 5
NETWORK = PlainNetwork(nn.Identity())


def made(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Logits that are too sure of labels."""
    x = normal(n, C, seed=seed)
    y = (x + 1.5 * normal(n, C, seed=seed + 50_000)).argmax(1)
    return 2 * x, y


RULES = {
    "split": ConformalSets(score="split", level=0.9),
    "adaptive": ConformalSets(level=0.8),
    "regularised": ConformalSets(level=0.9, penalty=0.05, free=2),
}
every = pytest.mark.parametrize("name", RULES)


@every
def test_coverage_is_within_the_binomial_error_over_two_hundred_splits(name: str) -> None:
    rule = RULES[name]
    n, m, splits = 60, 100, 200
    shares = [
        rule.on(NETWORK, made(n, split), generator=split).coverage(made(m, 1000 + split)).share
        for split in range(splits)
    ]
    promised = math.ceil((n + 1) * rule.level) / (n + 1)
    spread = (promised * (1 - promised) * (1 / m + 1 / (n + 2))) ** 0.5
    assert abs(float(np.mean(shares)) - promised) < 3 * spread / splits**0.5
    assert float(np.std(shares)) == pytest.approx(spread, rel=0.25)


def test_without_randomisation_no_seed_plays_a_part() -> None:
    data, test = made(200, 0), made(300, 1)
    one, other = (ConformalSets(randomised=False).on(NETWORK, data, generator=seed) for seed in (0, 1))
    assert torch.equal(one.sets(test[0]), other.sets(test[0]))
    one, other = (ConformalSets().on(NETWORK, data, generator=seed) for seed in (0, 1))
    assert not torch.equal(one.sets(test[0]), other.sets(test[0]))
    assert torch.equal(one.sets(test[0]), one.sets(test[0]))


def test_adaptive_scores_are_sums_of_what_is_more_probable() -> None:
    probs = torch.tensor([[0.5, 0.2, 0.3]], dtype=torch.float64)
    whole = ConformalSets(randomised=False).scores(probs, torch.Generator())
    torch.testing.assert_close(whole, torch.tensor([[0.5, 1.0, 0.8]], dtype=torch.float64))
    charged = ConformalSets(randomised=False, penalty=0.1, free=1).scores(probs, torch.Generator())
    torch.testing.assert_close(charged, torch.tensor([[0.5, 1.2, 0.9]], dtype=torch.float64))


def test_classes_that_need_all_probability_are_in_or_out_whatever_its_sum_rounds_to() -> None:
    x = 3 * normal(400, 2, seed=7).float()
    y = x.argmin(1)
    fitted = ConformalSets(randomised=False).on(NETWORK, (x[:200], y[:200]))
    assert fitted.coverage((x[200:], y[200:])).size == 2


def test_tokens_and_ignored_labels_are_left_out() -> None:
    x, y = made(300, 4)
    x, y = x.view(100, 3, C), y.view(100, 3)
    y[:, 2] = -100
    fitted = ConformalSets().on(PlainNetwork(nn.Identity(), Categorical(event_dim=1)), (x, y), generator=0)
    assert fitted.sets(x).shape == (100, 3, C)
    assert fitted.coverage((x, y)).examples == 200


def test_a_task_calibrates_by_its_validation_data() -> None:
    data = made(100, 5)
    generator = torch.Generator().manual_seed(0)
    fitted = ConformalSets().fit(Task(nn.Identity(), made(10, 6), data, generator=generator))
    assert 0 < fitted.threshold <= 1
    assert torch.equal(fitted.predict(data[0]).probs, NETWORK.predict(data[0]).probs)
    with refused(ConfigError, "validation data for ConformalSets"):
        ConformalSets().fit(Task(nn.Identity(), data))
    with refused(UnsupportedError, "the Categorical likelihood for sets"):
        ConformalSets().on(PlainNetwork(nn.Identity(), Gaussian()), data)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"level": 1.0}, "level between 0 and 1"),
        ({"score": "lac"}, "score= to be one of 'adaptive', 'split'"),
        ({"penalty": -1.0}, "a penalty of at least 0"),
        ({"penalty": 0.1, "score": "split"}, "of adaptive scores"),
        ({"free": -1}, "free"),
    ],
)
def test_options_that_make_no_sense_are_told(options: dict[str, Any], message: str) -> None:
    with unchecked(), refused(ConfigError, message):
        ConformalSets(**options)
