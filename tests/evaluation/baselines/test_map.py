from __future__ import annotations

import math
from collections.abc import Mapping
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from lapwing.evaluation.baselines import Map, Temperature
from lapwing.evaluation.scores import evaluate
from lapwing.ground.errors import DataError, ShapeError, UnsupportedError
from lapwing.likelihoods import Bernoulli, Categorical, Gaussian, Poisson
from lapwing.methods.laplace import Laplace
from lapwing.predictive import Classification, Counts, MultiLabel, Regression
from tests.curvature.unchanged import unchanged
from tests.modules import Counting

X = torch.randn(6, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


@pytest.fixture
def model() -> nn.Module:
    parts = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 2))
    return parts.double()


def test_probabilities_are_the_softmax_of_the_outputs_without_variance(model: nn.Module) -> None:
    p = Map(model).predict(X)
    assert isinstance(p, Classification)
    expected = model.eval()(X).detach()
    assert torch.equal(p.logits.mean, expected)
    torch.testing.assert_close(p.probs, expected.softmax(-1), rtol=1e-14, atol=0)
    assert not p.logits.variance.any()
    assert torch.equal(p.sample(3), p.probs.expand(3, 6, 2))


def test_every_likelihood_has_its_predictive(model: nn.Module) -> None:
    f = Map(model).outputs(X)
    regression = Map(model, Gaussian(precision=4.0)).predict(X)
    assert isinstance(regression, Regression)
    assert torch.equal(regression.mean, f)
    torch.testing.assert_close(regression.std, torch.full_like(f, 0.5))
    labels = Map(model, Bernoulli()).predict(X)
    assert isinstance(labels, MultiLabel)
    torch.testing.assert_close(labels.probs, f.sigmoid())
    counts = Map(model, Poisson()).predict(X)
    assert isinstance(counts, Counts)
    torch.testing.assert_close(counts.mean, f.exp())
    torch.testing.assert_close(counts.variance, f.exp())


def test_pixels_are_read_along_their_class_axis() -> None:
    model = nn.Conv2d(1, 4, 1)
    p = Map(model, Categorical(event_dim=2, class_dim=1)).predict(torch.ones(2, 1, 5, 3))
    assert isinstance(p, Classification)
    assert p.probs.shape == (2, 5, 3, 4)


def test_the_module_is_left_as_it_was_found(model: nn.Module) -> None:
    model[2].eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    modes = [part.training for part in model.modules()]
    Map(model).predict(X)
    with pytest.raises(RuntimeError) as info:
        Map(model).predict(X[:, :2])
    assert "a tensor of shape [6, 2]: the first axis counts examples" in info.value.__notes__[0]
    assert [part.training for part in model.modules()] == modes
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(value.grad is None for value in model.parameters())


def test_buffers_that_a_forward_pass_writes_are_left_as_they_were() -> None:
    """A posterior of the same network would refuse to predict otherwise."""
    model = Counting(3, 2)
    y = torch.arange(6) % 2
    posterior = Laplace(Categorical()).fit(model, (X, y))
    with unchanged(model):
        Map(model).predict(X)
        Map(model).calibrated((X, y)).predict(X)
        evaluate(Map(model), (X, y))
    posterior.predict(X)


def test_a_network_without_tensors_of_its_own_is_refused() -> None:
    scripted = torch.jit.trace(nn.Linear(3, 2), X.float())
    with pytest.raises(UnsupportedError, match="TorchScript"):
        Map(scripted).predict(X)


def test_inputs_take_the_dtype_of_the_network(model: nn.Module) -> None:
    assert Map(model).predict(X.float()).probs.dtype == torch.float64


def test_a_frozen_network_is_fine(model: nn.Module) -> None:
    expected = Map(model).predict(X).probs
    assert torch.equal(Map(model.requires_grad_(False)).predict(X).probs, expected)


class Wordy(nn.Module):
    """Called by keyword or with two arguments; answers with an object that has logits."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2).double()

    def forward(self, values: Tensor, scale: Tensor) -> SimpleNamespace:
        return SimpleNamespace(logits=scale * self.linear(values))


@pytest.mark.parametrize("inputs", [{"values": X, "scale": 2 * torch.ones(6, 1)}, (X, 2 * torch.ones(6, 1))])
def test_mappings_and_tuples_of_inputs(inputs: Mapping[str, Tensor] | tuple[Tensor, ...]) -> None:
    model = Wordy()
    torch.testing.assert_close(Map(model).outputs(inputs), 2 * model.linear(X).detach())


def test_a_temperature_divides_the_outputs(model: nn.Module) -> None:
    plain, warm = Map(model), Map(model, temperature=Temperature(2.0))
    torch.testing.assert_close(warm.outputs(X), plain.outputs(X) / 2)
    torch.testing.assert_close(warm.predict(X).probs, Temperature(2.0).probs(plain.outputs(X)))


def test_calibration_fits_the_temperature_on_held_out_data(generator: torch.Generator) -> None:
    logits = 3 * torch.randn(400, 3, generator=generator, dtype=torch.float64)
    targets = torch.multinomial((logits / 2).softmax(-1), 1, generator=generator)[:, 0]
    model = nn.Linear(3, 3, bias=False).double()
    nn.init.eye_(model.weight)
    loader = [{"input": x, "labels": y} for x, y in zip(logits.split(150), targets.split(150), strict=True)]
    expected = Temperature.fit(logits, targets)
    calibrated = Map(model).calibrated(loader)
    assert calibrated.temperature is not None
    assert calibrated.temperature.temperature == pytest.approx(expected.temperature, rel=1e-9)
    again = calibrated.calibrated((logits, targets))
    assert again.temperature is not None
    assert again.temperature.temperature == pytest.approx(expected.temperature, rel=1e-9)


def test_a_temperature_needs_classes(model: nn.Module) -> None:
    with pytest.raises(UnsupportedError, match=r"Categorical likelihood for a temperature. Got Gaussian"):
        Map(model, Gaussian(), temperature=Temperature(2.0))
    with pytest.raises(UnsupportedError, match="Got Gaussian"):
        Map(model, Gaussian()).calibrated((X, X))


def test_bad_networks_and_data_cost_a_sentence(model: nn.Module) -> None:
    with pytest.raises(DataError, match="at least one example"):
        Map(model).calibrated([])
    with pytest.raises(ShapeError, match=r"outputs of shape \[n, e1, c\].*Got shape \[6, 2\]"):
        Map(model, Categorical(event_dim=1)).predict(X)
    with pytest.raises(ShapeError, match=r"Got shape \[2\]. Try x\[None\] for a single example"):
        Map(nn.Linear(3, 2).double()).predict(X[0])
    with torch.no_grad():
        next(model.parameters()).fill_(math.nan)
    with pytest.raises(DataError, match=r"finite outputs. Got 12 NaN"):
        Map(model).predict(X)
