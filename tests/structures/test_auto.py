"""What is chosen where nobody chooses rests on counts: the same on every machine, whatever its clock says."""

from __future__ import annotations

import itertools

import pytest
from torch import nn

import lapwing as lw
from lapwing.jacobian import model as jacobian_model
from tests.posterior_cases import Problem, labels, normal, seeded


def test_a_slow_clock_changes_no_choice(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    seconds = itertools.count(step=1000)
    monkeypatch.setattr(jacobian_model, "perf_counter", lambda: float(next(seconds)), raising=False)
    model = seeded(lambda: nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 11)))
    case = Problem(model, lw.Categorical(), normal(9, 3), labels(9, classes=11), normal(2, 3, seed=1))
    auto = lw.Auto(max_flops=1e-9)
    exact, chosen = (case.fit(lw.Laplace(case.likelihood, structure=structure)) for structure in (lw.KFAC(), auto))
    assert chosen.log_marginal() == exact.log_marginal() and "exact GGN would take" not in caplog.text
