"""Early stopping keeps the posterior that predicts held-out data best, and reads no more data than it must."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

import lapwing as lw
from lapwing.curvature.tangent_features import TangentFeatures
from lapwing.ground.data.inputs import Inputs
from lapwing.ground.errors import ConfigError, DataError, NumericalError, ShapeError, UnsupportedError
from lapwing.predictive import Classification, Link
from lapwing.structures.nystrom.stopping import ValidationMonitor
from tests.posterior_cases import Problem, labels, mlp, normal, portrait, problem, refused

X, HELD = normal(60, 3), normal(25, 3, seed=9)
MODEL = mlp(3)


def wrong() -> tuple[Tensor, Tensor]:
    """Held-out data on which the network is often sure, and wrong: less and less variance is worse and worse."""
    return 3 * HELD, labels(25, classes=3, seed=5)


def likely(x: Tensor) -> Tensor:
    """The labels the network takes for the likeliest."""
    with torch.no_grad():
        return copy.deepcopy(MODEL).eval()(x).argmax(1)


def case() -> Problem:
    return Problem(MODEL, lw.Categorical(), X, likely(X), HELD)


class Loader:
    """A loader that counts the batches it gave in each pass."""

    def __init__(self, batches: list[tuple[Tensor, Tensor]]) -> None:
        self.batches, self.given = batches, []

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        self.given.append(0)
        for batch in self.batches:
            self.given[-1] += 1
            yield batch


def fit(
    stopping: lw.structures.NystromStopping | None, data: Any = None, **options: Any
) -> lw.posteriors.NystromPosterior:
    recipe = lw.Laplace(
        lw.Categorical(),
        prior=lw.Isotropic(0.1),
        structure=lw.Nystrom(rank=6, samples=20, stopping=stopping, **options),
    )
    posterior = recipe.fit(MODEL, case().batches(5) if data is None else data)
    assert isinstance(posterior, lw.posteriors.NystromPosterior)
    return posterior


def nll(
    posterior: lw.posteriors.NystromPosterior, data: tuple[Tensor, Tensor], link: Link = "qmc", samples: int = 512
) -> float:
    """Of held-out data, with the draws that early stopping takes."""
    draws = torch.Generator().manual_seed(0)
    found = posterior.predict(data[0], link, samples=samples, generator=draws)
    assert isinstance(found, Classification)
    return -float(found.probs.gather(1, data[1][:, None]).log().mean())


@pytest.mark.parametrize("residual", [True, False])
def test_each_point_of_the_trace_is_the_loss_of_a_posterior_of_those_data(residual: bool) -> None:
    data = wrong()
    stopped = fit(lw.structures.NystromStopping(data, every=20, patience=100), residual=residual)
    assert [examples for examples, _ in stopped.report.trace] == [0, 20, 40, 60]
    for examples, loss in stopped.report.trace[1:]:
        some = case().batches(5)[: examples // 5]
        sums = fit(None, some).totals
        whole = replace(stopped, report=replace(stopped.report, partial=False))
        alone = replace(whole, compressed=compressed(stopped, some), totals=sums)
        assert nll(alone, data) == pytest.approx(loss, rel=1e-9)
    prior = replace(stopped, compressed=torch.zeros_like(stopped.compressed))
    assert nll(prior, data) == pytest.approx(stopped.report.trace[0][1], rel=1e-9)


def compressed(posterior: lw.posteriors.NystromPosterior, data: list[tuple[Tensor, Tensor]]) -> Tensor:
    """``Wᵀ G W`` of some data."""
    full = lw.Laplace(lw.Categorical(), structure=lw.Full(view="weights")).fit(MODEL, data)
    return posterior.changes.mT @ (full.curvature.operator @ posterior.changes)  # pyright: ignore[reportAttributeAccessIssue]


def test_keeps_the_best_and_reads_no_further_than_its_patience() -> None:
    loader = Loader(case().batches(5))
    stopped = fit(lw.structures.NystromStopping(wrong(), every=5, patience=2, link="qmc"), loader)
    trace = stopped.report.trace[1:]
    best = min(trace, key=lambda point: point[1])
    assert stopped.totals.examples == best[0] < 60 and stopped.report.partial
    rises = [examples for examples, _ in trace if examples > best[0]]
    assert rises == [best[0] + 5, best[0] + 10]
    passes = [given for given in loader.given if given > 1]  # the others look at the first batch
    assert passes == [12, rises[-1] // 5]
    expected = compressed(stopped, loader.batches[: best[0] // 5])
    torch.testing.assert_close(stopped.compressed, expected)
    assert nll(stopped, wrong(), "qmc") == pytest.approx(best[1], rel=1e-9)


def test_a_loader_that_shuffles_may_stop_early_in_silence() -> None:
    data = DataLoader(TensorDataset(X, likely(X)), batch_size=5, shuffle=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert fit(lw.structures.NystromStopping(wrong(), every=5, patience=1), data).partial


def test_all_data_are_kept_where_they_help_and_the_posterior_is_then_the_usual_one() -> None:
    helped, usual = fit(lw.structures.NystromStopping((HELD, likely(HELD)), every=20)), fit(None)
    losses = [loss for _, loss in helped.report.trace]
    assert losses == sorted(losses, reverse=True)
    assert not helped.report.partial and helped.training.data.examples == 60
    assert torch.equal(helped.compressed, usual.compressed) and usual.report.trace == ()
    assert helped.log_marginal() == usual.log_marginal()


def test_a_stopped_posterior_has_its_own_evidence_and_refuses_the_rest_of_the_data() -> None:
    stopped = fit(lw.structures.NystromStopping(wrong(), every=5, patience=2, link="qmc"))
    again = fit(None, case().batches(5)[: stopped.totals.examples // 5])
    assert stopped.totals.nll == pytest.approx(again.totals.nll)
    alone = replace(again, changes=stopped.changes, compressed=stopped.compressed)
    assert stopped.log_marginal() == pytest.approx(alone.log_marginal())
    assert lw.tune(stopped, lw.MacKay()).prior != stopped.prior
    with refused(UnsupportedError, "all its training data"):
        stopped.training  # noqa: B018


def test_augmented_training_examples_stand_in_for_held_out_data() -> None:
    seen: list[Inputs] = []

    def augment(inputs: Inputs, generator: torch.Generator) -> Inputs:
        assert isinstance(inputs, Tensor)
        seen.append(inputs)
        return inputs + 3 * torch.randn(inputs.shape, generator=generator, dtype=inputs.dtype)

    options = {"every": 10, "patience": 100, "size": 30}
    first, again = (fit(lw.structures.NystromStopping(augment=augment, **options)) for _ in range(2))
    assert first.report.trace == again.report.trace and len(first.report.trace) == 7
    other = fit(lw.structures.NystromStopping(augment=augment, **options), seed=1)
    assert other.report.trace != first.report.trace
    assert isinstance(seen[0], Tensor)
    assert seen[0].shape == (30, 3) and all(bool((row == X).all(1).any()) for row in seen[0])


@pytest.mark.parametrize("name", ["gaussian", "bernoulli", "poisson", "heteroscedastic", "tokens", "pixels"])
def test_watches_every_likelihood(name: str) -> None:
    some = problem(name)
    stopping = lw.structures.NystromStopping((some.x, some.y), every=3, samples=8)
    structure = lw.Nystrom(rank=3, samples=6, stopping=stopping)
    model = some.model
    before = portrait(model)
    posterior = lw.Laplace(some.likelihood, structure=structure).fit(model, some.batches(3))
    assert portrait(model) == before
    assert isinstance(posterior, lw.posteriors.NystromPosterior)
    assert len(posterior.report.trace) >= 2
    assert all(torch.isfinite(torch.tensor(loss)) for _, loss in posterior.report.trace)


def test_bad_choices_get_a_sentence() -> None:
    with refused(ConfigError, "held-out data, or an augmentation"):
        lw.structures.NystromStopping()
    with refused(ConfigError, "held-out data, or an augmentation"):
        lw.structures.NystromStopping(wrong(), augment=lambda inputs, generator: inputs)
    with refused(ConfigError, "every of at least 1"):
        lw.structures.NystromStopping(wrong(), every=0)
    ignored = (HELD, torch.full((25,), -100))
    with refused(DataError, "with a target"):
        fit(lw.structures.NystromStopping(ignored))
    with refused(DataError, "finite inputs"):
        fit(lw.structures.NystromStopping((torch.full_like(HELD, torch.nan), wrong()[1])))
    with refused(ShapeError, "as many augmented inputs as were given (60)"):
        fit(lw.structures.NystromStopping(augment=lambda inputs, generator: inputs[1:]))  # pyright: ignore[reportArgumentType]


def test_the_last_of_the_data_are_measured_and_batches_are_cut_where_it_is_time() -> None:
    data = [case().batches(60)[0]]
    for every, expected in ((20, [0, 20, 40, 60]), (25, [0, 40, 60]), (100, [0, 60])):
        stopped = fit(lw.structures.NystromStopping((HELD, likely(HELD)), every=every), data)
        assert [examples for examples, _ in stopped.report.trace] == expected
        assert stopped.totals.examples == min(stopped.report.trace[1:], key=lambda point: point[1])[0]


def test_a_loss_that_is_infinite_at_first_is_waited_for_and_one_that_stays_so_is_refused() -> None:
    losses = iter([math.inf, math.inf, math.inf, math.inf, 2.0, 1.0, 3.0])
    watch = watching(lambda: next(losses), patience=2)
    sums = fit(None).totals
    for step in range(6):
        watch.measure(step * torch.eye(6, dtype=torch.float64), sums)
        assert not watch.over
    assert watch.best[0][0, 0] == 4.0
    never = watching(lambda: math.inf, patience=2)
    never.measure(torch.eye(6, dtype=torch.float64), sums)
    with refused(NumericalError, "finite validation loss"):
        never.best  # noqa: B018


def watching(loss: Callable[[], float], patience: int) -> ValidationMonitor:
    """A watch whose losses are given."""
    posterior = fit(None)
    stopping, examples = lw.structures.NystromStopping(wrong(), patience=patience), (X, likely(X))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ValidationMonitor, "_nll", lambda self, curvature: loss())
        watch = ValidationMonitor(
            stopping,
            TangentFeatures(posterior.model, posterior.changes),
            torch.eye(6, dtype=torch.float64),
            examples,
            0,
        )
    watch._nll = lambda curvature: loss()
    return watch
