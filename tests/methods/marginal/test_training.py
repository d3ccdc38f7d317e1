"""The loop: what it returns, what it leaves behind, and what it does when it is interrupted."""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lapwing as lw
from lapwing.ground.errors import ConfigError, ConvergenceWarning, DataError
from lapwing.methods.marginal import Bound, ByEvidence, ByGradient, MarginalTraining, StochasticLanczos, train_marginal
from tests.checker import unchecked
from tests.methods.marginal.setting import case
from tests.posterior_cases import normal, refused, seeded


def run(name: str = "gaussian", **options: Any) -> tuple[nn.Module, MarginalTraining, Tensor, Tensor]:
    model, likelihood, x, y = case(name)
    data = options.pop("data", [(x[:3], y[:3]), (x[3:], y[3:])])
    return model, train_marginal(model, data, likelihood, **({"epochs": 6, "warm_up": 2} | options)), x, y


Trained = tuple[nn.Module, MarginalTraining, Tensor, Tensor, str]


@pytest.fixture(scope="module")
def trained() -> Trained:
    """One run of six epochs, and what it showed."""
    shown = io.StringIO()
    with contextlib.redirect_stderr(shown):
        found = run(progress=True)
    return *found, shown.getvalue()


def test_the_result_goes_straight_into_a_recipe(trained: Trained) -> None:
    model, result, x, y, _ = trained
    posterior = lw.Laplace(result.likelihood, prior=result.prior).fit(model, (x, y))
    tuned = lw.tune(posterior, lw.EvidenceGradient())
    assert tuned.prior.precision == pytest.approx(result.prior.precision, rel=1e-4)
    assert posterior.predict(x).mean.shape == (6, 2)
    assert not result.interrupted


def test_history_has_every_epoch_and_its_last_record_the_result(trained: Trained) -> None:
    result = trained[1]
    assert [record.warm_up for record in result.history] == [True, True, False, False, False, False]
    assert [record.half_log_det == record.half_log_det for record in result.history] == [False] * 4 + [True] * 2
    assert result.history[-1].prior_precision == pytest.approx((result.prior.precision,))
    assert result.history[-1].noise_precision == pytest.approx(result.likelihood.precision)


@pytest.mark.parametrize("log_det", [Bound(), Bound(samples=3), StochasticLanczos(samples=2)], ids=str)
def test_every_log_determinant_trains_a_classifier_with_a_prior_a_layer(log_det: Any) -> None:
    options = {"log_det": log_det, "prior": lw.Layerwise(), "updates": ByGradient(), "lr": 1e-2, "hyper_lr": 0.1}
    model, result, x, y = run("categorical", generator=torch.Generator().manual_seed(0), **options)
    assert result.history[-1].nll < result.history[0].nll
    assert result.history[-1].noise_precision is None
    assert len(result.prior.precision) == 2
    assert result.prior.precision != pytest.approx(result.history[1].prior_precision)
    assert lw.Laplace(result.likelihood, prior=result.prior).fit(model, (x, y)).log_marginal() < 0


def test_modes_are_restored_and_gradients_are_the_users() -> None:
    model, likelihood, x, y = case("gaussian")
    model.train()
    model[2].eval()
    train_marginal(model, (x, y), likelihood, epochs=3, warm_up=1)
    assert [part.training for part in model] == [True, True, False, True]


def test_an_optimiser_of_ones_own() -> None:
    before = [p.detach().clone() for p in case("gaussian")[0].parameters()]
    model, _, _, _ = run(optimiser=lambda params: torch.optim.SGD(params, lr=0.0), epochs=3)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


class Interrupted(list[Any]):
    """A loader that is interrupted in its fourth epoch."""

    passes = 0

    def __iter__(self) -> Iterator[Any]:
        self.passes += 1
        for number, batch in enumerate(super().__iter__()):
            if self.passes == self.stop and number:
                raise KeyboardInterrupt
            yield batch

    stop = 5


def test_an_interrupt_keeps_what_was_learned(caplog: pytest.LogCaptureFixture) -> None:
    _, _, x, y = case("gaussian")
    data = Interrupted([(x[:3], y[:3]), (x[3:], y[3:])])
    with caplog.at_level(logging.WARNING, "lapwing"):
        _, result, _, _ = run(data=data, updates=ByGradient(start=None), epochs=6)
    assert result.interrupted
    assert len(result.history) == 3
    assert "interrupted after 3 of 6 epochs" in caplog.text


@pytest.mark.no_cover
def test_its_defaults_train_a_small_sine() -> None:
    """The two-line use, in a fifth of its steps and a tenth of its updates: one batch of 80 examples, noise 0.2."""
    generator = torch.Generator().manual_seed(0)
    x = 6 * torch.rand(80, 1, generator=generator) - 3
    y = torch.sin(2 * x) + 0.2 * torch.randn(80, 1, generator=generator)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))
    result = train_marginal(model, (x, y), lw.Gaussian(), epochs=400, lr=3e-2, updates=ByEvidence(every=20))
    assert result.likelihood.precision**-0.5 == pytest.approx(0.2, rel=0.15)
    assert (model(x) - torch.sin(2 * x)).square().mean().sqrt() < 0.11
    assert len(repr(result)) < 200


def test_a_fit_that_was_still_improving_gets_a_sentence() -> None:
    x = torch.linspace(-3, 3, 30)[:, None]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))
    with pytest.warns(ConvergenceWarning, match=r"still falling.*try epochs=120") as caught:
        train_marginal(model, (x, torch.sin(2 * x)), lw.Gaussian(), epochs=60, updates=ByEvidence(every=5))
    assert len(caught) == 1


def test_the_progress_bar_shows_what_there_is(trained: Trained) -> None:
    shown = trained[-1]
    assert "nll " in shown
    assert "total " in shown
    assert "nan" not in shown


def test_what_it_refuses() -> None:
    model, likelihood, x, y = case("gaussian")
    with refused(ConfigError, "after the warm-up"):
        train_marginal(model, (x, y), likelihood, epochs=10, warm_up=10)
    with refused(ConfigError, "beyond warm_up and settle"):
        train_marginal(model, (x, y), likelihood, epochs=20, settle=100)
    for optimiser in ("adam", torch.optim.Adam(model.parameters())):
        with (
            refused(ConfigError, "callable that takes parameters"),
            unchecked(),
        ):
            train_marginal(model, (x, y), likelihood, optimiser=optimiser)
    with refused(DataError, "one example"):
        train_marginal(model, [], likelihood)


class TwoHeads(nn.Module):
    """Returns two tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(3, 4).double(), nn.Linear(3, 2).double()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.left(x), self.right(x)


@pytest.mark.parametrize("likelihood", [lw.Gaussian(), lw.Gaussian(shared=True)], ids=["own", "shared"])
def test_one_of_several_outputs_is_trained(likelihood: lw.Gaussian) -> None:
    result = train_marginal(
        seeded(TwoHeads), (normal(8, 3), normal(8, 2)), likelihood, output=1, epochs=6, warm_up=2, settle=0
    )
    assert isinstance(result.likelihood, lw.Gaussian)
    assert isinstance(result.likelihood.precision, float) == likelihood.shared


@pytest.mark.parametrize("updates", [ByEvidence(every=20), ByGradient()], ids=["evidence", "gradient"])
def test_each_output_has_a_noise_of_its_own(updates: Any) -> None:
    x = normal(60, 3)
    noises = torch.tensor([0.1, 1.0], dtype=torch.float64)
    y = x @ normal(3, 2, seed=1) + noises * normal(60, 2, seed=2)
    model = seeded(lambda: nn.Linear(3, 2))
    options = {"epochs": 60, "lr": 0.1, "hyper_lr": 0.1}
    result = train_marginal(model, (x, y), lw.Gaussian(), updates=updates, **options)
    assert isinstance(result.likelihood, lw.Gaussian)
    assert result.likelihood.noise_std == pytest.approx(noises.tolist(), rel=0.25)


class WithFeatures(nn.Module):
    """A network that returns its features beside its outputs."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, self.network(x)


def test_the_output_that_is_picked_has_the_noises() -> None:
    model, _, x, y = case("gaussian")
    result = train_marginal(WithFeatures(model), (x, y), lw.Gaussian(), output=1, epochs=3, warm_up=1)
    assert isinstance(result.likelihood.noise_precision, tuple)
    assert len(result.likelihood.noise_precision) == y.shape[1]
