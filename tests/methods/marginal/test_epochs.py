"""How long training is where nobody says, and what is said of how it ended."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace

import pytest

from lapwing.ground.errors import ConfigError, ConvergenceWarning
from lapwing.methods.marginal import Epoch
from lapwing.methods.marginal.epochs import epochs_of_phases, warn_of
from tests.posterior_cases import refused

RECORD = Epoch(5.0, -3.0, math.nan, math.nan, (1.0, 2.0), 4.0, warm_up=False)
SETTLED = [RECORD] * 40


def test_steps_decide_where_nobody_does_and_epochs_where_somebody_does() -> None:
    assert epochs_of_phases(None, None, None, steps=7) == (286, 14, 136)
    assert epochs_of_phases(None, 10, 0, steps=1000) == (50, 10, 0)
    assert epochs_of_phases(200, None, None, steps=3) == (200, 10, 95)
    assert epochs_of_phases(1, None, None, steps=3) == (1, 0, 0)
    assert epochs_of_phases(20, 5, 15, steps=3, log_det=False) == (20, 5, 15)
    with refused(ConfigError, "log-determinant"):
        epochs_of_phases(20, 5, 15, steps=3)


def test_a_likelihood_that_falls_while_settling_gets_a_sentence_and_one_that_does_not_gets_none() -> None:
    falling = [replace(RECORD, nll=100.0 - epoch) for epoch in range(40)]
    with pytest.warns(ConvergenceWarning, match=r"over 10 epochs.*try epochs=80"):
        warn_of(falling, 100)
    scattered = [replace(record, nll=record.nll + 20.0 * (-1) ** i) for i, record in enumerate(falling)]
    for history, examples in (
        (scattered, 100),
        (falling, 1000),
        (falling[:19], 10),
        (falling[::-1], 10),
        (SETTLED, 10),
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warn_of(history, examples)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"prior_precision": (1.0, 1e12)}, r"^prior precision 1e\+12 ended"),
        ({"noise_precision": 1e-10}, r"^noise precision 1e-10 ended"),
        ({"prior_precision": (1e-11, 2.0), "noise_precision": 1e13}, "prior precision 1e-11 and noise precision 1e"),
    ],
    ids=["prior", "noise", "both"],
)
def test_a_precision_at_its_bound_gets_a_sentence(change: dict[str, object], named: str) -> None:
    with pytest.warns(ConvergenceWarning, match=named):
        warn_of([*SETTLED, replace(RECORD, **change)], 10)
