"""Tuning within seconds: as many examples as they buy, spread over all; by a clock of the test's own."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import lapwing as lw
from lapwing.ground import progress
from lapwing.ground.data.inputs import count
from lapwing.ground.data.sources import Batch
from lapwing.ground.errors import ConfigError, ConvergenceWarning
from lapwing.posteriors import Posterior
from lapwing.tuning.held_out.budget import FITS, FLOOR, Budget
from lapwing.tuning.held_out.examples import joined, spread
from lapwing.tuning.held_out.outputs import FEWEST, Contracted, held_out_outputs
from tests.checker import unchecked
from tests.posterior_cases import labels, normal, problem, refused

pytestmark = pytest.mark.filterwarnings("ignore:(Mixup|Validation):lapwing.ConvergenceWarning")

EXAMPLES = 150


def posterior() -> Posterior:
    """A small classifier."""
    case = problem("categorical")
    return case.fit(lw.Laplace(case.likelihood, structure=lw.KFAC()))


def held_out() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Batches of two sizes, their labels in the order of the classes."""
    x = normal(EXAMPLES, 3, seed=5)
    y = labels(EXAMPLES, classes=3).sort().values
    return [(x[:100], y[:100]), (x[100:], y[100:])]


@pytest.fixture
def each_takes(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Makes an example take so many seconds under all priors, and nothing else any."""
    now = [100.0]
    monkeypatch.setattr(progress, "clock", lambda: now[0])
    look = Posterior.outputs_each

    def slowly(seconds: float) -> None:
        def outputs_each(self: Any, x: Any, choices: Any) -> Any:
            now[0] += seconds * count(x)
            return look(self, x, choices)

        monkeypatch.setattr(Posterior, "outputs_each", outputs_each)

    return slowly


def said(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    """What the search logged at a level."""
    return [one.getMessage() for one in caplog.records if one.levelno == level and "examples in" in one.getMessage()]


def test_where_all_are_soon_done_they_are_all_looked_at_as_without_a_budget(
    each_takes: Callable[[float], None], caplog: pytest.LogCaptureFixture
) -> None:
    each_takes(0.01)
    fitted = posterior()
    caplog.set_level(logging.INFO, "lapwing")
    tuned = lw.tune(fitted, held_out())
    whole = lw.tune(fitted, lw.Validation(held_out(), seconds=None))
    assert tuned.trace == whole.trace and tuned.trace[-1].validation_examples == EXAMPLES
    assert not said(caplog, logging.WARNING) and len(said(caplog, logging.INFO)) == 2


@pytest.mark.parametrize(("seconds", "looked_at"), [(60.0, 105), (1.0, FEWEST), (400.0, EXAMPLES), (None, EXAMPLES)])
def test_as_many_are_looked_at_as_the_seconds_buy(
    seconds: float | None,
    looked_at: int,
    each_takes: Callable[[float], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A tenth of them is left to the search. The choice is that of those examples, and says how sure it is."""
    each_takes(0.51)
    fitted = posterior()
    caplog.set_level(logging.INFO, "lapwing")
    tuned = lw.tune(fitted, lw.Validation(held_out(), seconds=seconds, link="probit"))
    last = tuned.trace[-1]
    assert last.validation_examples == looked_at and {s.validation_examples for s in tuned.trace} == {looked_at}
    some = spread(EXAMPLES)[:looked_at]
    x = torch.cat([x for x, _ in held_out()])[some]
    y = torch.cat([y for _, y in held_out()])[some]
    losses = -tuned.predict(x).log_prob(y)
    assert last.validation_nll == pytest.approx(float(losses.mean()), rel=1e-6)
    assert last.validation_error == pytest.approx(float(losses.std()) / math.sqrt(looked_at), rel=1e-4)
    whole = looked_at == EXAMPLES
    (line,) = said(caplog, logging.INFO if whole else logging.WARNING)
    assert f"Validation: {looked_at} of {EXAMPLES} examples in" in line
    assert f"± {last.validation_error:.2g} nats" in line
    assert whole or f"as seconds={seconds:.3g} allows; seconds=None looks at all of them" in line


def test_mixtures_are_as_many_as_the_seconds_buy_and_the_same_from_their_number(
    each_takes: Callable[[float], None],
) -> None:
    case = problem("categorical")
    fitted = lw.Laplace(case.likelihood, structure=lw.KFAC()).fit(case.model, held_out())
    each_takes(1.0)
    tuned = lw.tune(fitted, lw.Mixup(seconds=100.0))
    assert tuned.trace[-1].validation_examples == 90
    assert lw.tune(fitted, lw.Mixup(seconds=100.0)).trace == tuned.trace
    fewer = lw.Validation(held_out(), examples=70, seconds=None, link="probit")
    assert lw.tune(fitted, fewer).trace[-1].validation_examples == 70


def test_by_default_it_is_three_times_the_fit_and_some_seconds_at_least() -> None:
    fitted = posterior()
    assert 0.0 < fitted.fit_seconds < 60.0
    assert Budget.of("auto", fitted).seconds == max(FLOOR, FITS * fitted.fit_seconds)
    assert Budget.of("auto", fitted).reserved == fitted.fit_seconds and Budget(2.5).reserved == 0.0
    assert Budget(10.0, reserved=4.0).left < Budget(10.0).left - 3.9
    assert Budget.of(2.5, fitted).seconds == 2.5 and Budget.of(None, fitted).seconds == math.inf
    solved = lw.Laplace(lw.Categorical(), structure=lw.Sampled(4)).fit(*known())
    assert Budget.of("auto", solved).seconds == math.inf, "few solves, each of which counts"


def known() -> tuple[torch.nn.Module, tuple[torch.Tensor, torch.Tensor]]:
    """A network and its data."""
    case = problem("categorical")
    return case.model, (case.x, case.y)


def test_the_seconds_of_the_fit_are_in_its_file(tmp_path: Path) -> None:
    fitted = posterior()
    lw.save(fitted, tmp_path / "a.safetensors")
    model, _ = known()
    loaded: Any = lw.load(tmp_path / "a.safetensors", model)
    assert loaded.fit_seconds == fitted.fit_seconds
    assert lw.tune(fitted, held_out()).fit_seconds == fitted.fit_seconds


def test_what_was_looked_at_before_an_interruption_decides(
    each_takes: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    each_takes(1.0)
    fitted = posterior()
    look = Contracted.contracted
    calls = list[int]()

    def third(self: Any, batch: Batch) -> Any:
        calls.append(len(batch))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return look(self, batch)

    monkeypatch.setattr(Contracted, "contracted", third)
    with pytest.warns(ConvergenceWarning, match=f"interrupted after 16 of {EXAMPLES} examples"):
        tuned = lw.tune(fitted, lw.Validation(held_out(), seconds=None, link="probit"))
    assert tuned.trace[-1].validation_examples == 16


def test_solves_end_after_some_when_the_seconds_are_spent(each_takes: Callable[[float], None]) -> None:
    case = problem("categorical")
    fitted = case.fit(lw.Laplace(case.likelihood, structure=lw.Sampled(4, lw.solvers.CG())))
    each_takes(1.0)
    data = (normal(8, 3, seed=5), case.y[:8])
    tuned = lw.tune(fitted, lw.Validation(data, seconds=20.0))
    assert len(tuned.trace) == 3 + 1 < len(lw.tune(fitted, data).trace)


def test_pieces_say_what_batches_say() -> None:
    fitted = posterior()
    batches = [Batch(x, y) for x, y in held_out()]
    whole = held_out_outputs(fitted, batches, (1e-2, 1e2))
    pieces = held_out_outputs(fitted, batches, (1e-2, 1e2), Budget(1e-9))
    assert whole.examples == whole.given == pieces.given == EXAMPLES and pieces.examples == FEWEST
    some = spread(EXAMPLES)[: 8 + 8]
    found = torch.cat([part.variance for part in pieces.moments(0.3)])[:16]
    order = torch.cat([some[:8].sort().values, some[8:].sort().values])
    expected = torch.cat([part.variance for part in whole.moments(0.3)])[order]
    torch.testing.assert_close(found, expected)


def test_beginnings_are_spread_over_all_and_what_is_alike_is_put_together() -> None:
    order = spread(1000)
    assert order.sort().values.tolist() == list(range(1000))
    for length in (8, 64, 300):
        gaps = order[:length].sort().values.diff()
        assert int(gaps.max()) <= 3 * 1000 / length
    x = normal(5, 2)
    y = torch.arange(5)
    (together,) = joined([Batch({"a": x[:2]}, y[:2]), Batch({"a": x[2:]}, y[2:])])
    inputs: Any = together.inputs
    assert torch.equal(inputs["a"], x) and torch.equal(together.targets, y)
    apart = [Batch((x, torch.eye(3)), y), Batch((x, torch.ones(3, 3)), y)]
    assert joined(apart) == apart, "a matrix that goes with a whole batch is not that of another"


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.inf, math.nan, "soon"])
def test_refuses_what_is_no_budget(seconds: Any) -> None:
    for make in (lambda: lw.Mixup(seconds=seconds), lambda: lw.Validation(held_out(), seconds=seconds)):
        with unchecked(), refused(ConfigError, "seconds"):
            make()
