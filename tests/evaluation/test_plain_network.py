"""The plain network, and one number that calibrates it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor, nn

from lapwing.evaluation.evaluate import evaluate
from lapwing.evaluation.plain_network import PlainNetwork, Temperature
from lapwing.ground.errors import ConfigError, ConvergenceWarning, DataError, ShapeError, UnsupportedError
from lapwing.likelihoods import Bernoulli, Categorical, Gaussian, Poisson
from lapwing.methods.laplace import Laplace
from lapwing.metrics import accuracy, ece, nll
from lapwing.predictive import Classification, Counts, MultiLabel, Regression
from tests.curvature.unchanged import unchanged
from tests.modules import Counting
from tests.posterior_cases import refused

X = torch.randn(6, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


@pytest.fixture
def model() -> nn.Module:
    parts = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 2))
    return parts.double()


def test_probabilities_are_the_softmax_of_the_outputs_without_variance(model: nn.Module) -> None:
    p = PlainNetwork(model).predict(X)
    assert isinstance(p, Classification)
    expected = model.eval()(X).detach()
    assert torch.equal(p.logits.mean, expected)
    torch.testing.assert_close(p.probs, expected.softmax(-1), rtol=1e-14, atol=0)
    assert not p.logits.variance.any()
    assert torch.equal(p.sample(3), p.probs.expand(3, 6, 2))


def test_every_likelihood_has_its_predictive(model: nn.Module) -> None:
    f = PlainNetwork(model).outputs(X)
    regression = PlainNetwork(model, Gaussian(precision=4.0)).predict(X)
    assert isinstance(regression, Regression)
    assert torch.equal(regression.mean, f)
    torch.testing.assert_close(regression.std, torch.full_like(f, 0.5))
    labels = PlainNetwork(model, Bernoulli()).predict(X)
    assert isinstance(labels, MultiLabel)
    torch.testing.assert_close(labels.probs, f.sigmoid())
    counts = PlainNetwork(model, Poisson()).predict(X)
    assert isinstance(counts, Counts)
    torch.testing.assert_close(counts.mean, f.exp())
    torch.testing.assert_close(counts.variance, f.exp())


def test_pixels_are_read_along_their_class_axis() -> None:
    model = nn.Conv2d(1, 4, 1)
    p = PlainNetwork(model, Categorical(event_dim=2, class_dim=1)).predict(torch.ones(2, 1, 5, 3))
    assert isinstance(p, Classification)
    assert p.probs.shape == (2, 5, 3, 4)


def test_the_module_is_left_as_it_was_found(model: nn.Module) -> None:
    model[2].eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    modes = [part.training for part in model.modules()]
    PlainNetwork(model).predict(X)
    with refused(DataError, "[6, 2], float64, for which it raises RuntimeError"):
        PlainNetwork(model).predict(X[:, :2])
    assert [part.training for part in model.modules()] == modes
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(value.grad is None for value in model.parameters())


def test_buffers_that_a_forward_pass_writes_are_left_as_they_were() -> None:
    """A posterior of the same network would refuse to predict otherwise."""
    model = Counting(3, 2)
    y = PlainNetwork(model).predict(X).labels
    y[0] = 1 - y[0]  # one is wrong, so that there is a best temperature
    posterior = Laplace(Categorical()).fit(model, (X, y))
    with unchanged(model):
        PlainNetwork(model).predict(X)
        PlainNetwork(model).calibrated((X, y)).predict(X)
        evaluate(PlainNetwork(model), (X, y))
    posterior.predict(X)


def test_a_network_without_tensors_of_its_own_is_refused() -> None:
    scripted = torch.jit.trace(nn.Linear(3, 2), X.float())
    with pytest.raises(UnsupportedError, match="TorchScript"):
        PlainNetwork(scripted).predict(X)


def test_inputs_take_the_dtype_of_the_network(model: nn.Module) -> None:
    assert PlainNetwork(model).predict(X.float()).probs.dtype == torch.float64


def test_a_frozen_network_is_fine(model: nn.Module) -> None:
    expected = PlainNetwork(model).predict(X).probs
    assert torch.equal(PlainNetwork(model.requires_grad_(False)).predict(X).probs, expected)


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
    torch.testing.assert_close(PlainNetwork(model).outputs(inputs), 2 * model.linear(X).detach())


def test_a_temperature_divides_the_outputs(model: nn.Module) -> None:
    plain, warm = PlainNetwork(model), PlainNetwork(model, temperature=Temperature(2.0))
    torch.testing.assert_close(warm.outputs(X), plain.outputs(X) / 2)
    torch.testing.assert_close(warm.predict(X).probs, Temperature(2.0).probs(plain.outputs(X)))


def test_calibration_fits_the_temperature_on_held_out_data(generator: torch.Generator) -> None:
    logits = 3 * torch.randn(400, 3, generator=generator, dtype=torch.float64)
    targets = torch.multinomial((logits / 2).softmax(-1), 1, generator=generator)[:, 0]
    model = nn.Linear(3, 3, bias=False).double()
    nn.init.eye_(model.weight)
    loader = [{"input": x, "labels": y} for x, y in zip(logits.split(150), targets.split(150), strict=True)]
    expected = Temperature.fit(logits, targets)
    calibrated = PlainNetwork(model).calibrated(loader)
    assert calibrated.temperature is not None
    assert calibrated.temperature.temperature == pytest.approx(expected.temperature, rel=1e-9)
    again = calibrated.calibrated((logits, targets))
    assert again.temperature is not None
    assert again.temperature.temperature == pytest.approx(expected.temperature, rel=1e-9)


def test_a_temperature_needs_classes(model: nn.Module) -> None:
    with pytest.raises(UnsupportedError, match="Categorical likelihood for a temperature"):
        PlainNetwork(model, Gaussian(), temperature=Temperature(2.0))
    with pytest.raises(UnsupportedError, match="of classes or with a noise"):
        PlainNetwork(model, Poisson()).calibrated((X, torch.ones(6, 2)))


def test_noise_is_that_of_the_residuals() -> None:
    x = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    network = PlainNetwork(nn.Identity(), Gaussian(7.0)).calibrated([(x[:1], x[:1] + 1), (x[1:], x[1:] + 3)])
    assert network.likelihood == Gaussian(1 / 5)  # mean of 1 and 9
    with pytest.raises(DataError, match="perfect fit"):
        network.calibrated((x, x))


def test_bad_networks_and_data_cost_a_sentence(model: nn.Module) -> None:
    with pytest.raises(DataError, match="at least one example"):
        PlainNetwork(model).calibrated([])
    with pytest.raises(ShapeError, match=r"outputs of shape \[n, e1, c\]"):
        PlainNetwork(model, Categorical(event_dim=1)).predict(X)
    with pytest.raises(ShapeError, match=r"x\[None\] for a single example"):
        PlainNetwork(nn.Linear(3, 2).double()).predict(X[0])
    with torch.no_grad():
        next(model.parameters()).fill_(math.nan)
    with pytest.raises(DataError, match=r"finite outputs. Got 12 NaN"):
        PlainNetwork(model).predict(X)


@pytest.fixture
def held_out(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Logits that are 2.5 times too confident."""
    honest = 2 * torch.randn(5000, 4, generator=generator, dtype=torch.float64)
    return 2.5 * honest, torch.multinomial(honest.softmax(-1), 1, generator=generator)[:, 0]


def derivative(logits: Tensor, targets: Tensor, log_t: float) -> float:
    """Of the mean NLL in log T, by automatic differentiation."""
    s = torch.tensor(log_t, dtype=torch.float64, requires_grad=True)
    torch.nn.functional.cross_entropy(logits * (-s).exp(), targets).backward()
    assert s.grad is not None
    return float(s.grad)


def test_the_fit_minimises_the_nll(held_out: tuple[Tensor, Tensor]) -> None:
    fitted = Temperature.fit(*held_out)
    logits, targets = (tensor.numpy() for tensor in held_out)

    def definition(log_t: float) -> float:
        z = logits / np.exp(log_t)
        return float(np.mean(np.log(np.exp(z).sum(1)) - z[np.arange(len(z)), targets]))

    best = minimize_scalar(definition, bracket=(0, 1), tol=1e-9)
    assert fitted.temperature == pytest.approx(math.exp(best.x), rel=1e-6)
    assert abs(derivative(*held_out, math.log(fitted.temperature))) < 1e-12


def test_the_fit_converges_to_ten_digits(held_out: tuple[Tensor, Tensor]) -> None:
    log_t = math.log(Temperature.fit(*held_out).temperature)
    assert derivative(*held_out, log_t - 1e-10) < 0 < derivative(*held_out, log_t + 1e-10)


def test_the_fit_finds_how_much_too_confident_the_logits_are(held_out: tuple[Tensor, Tensor]) -> None:
    logits, targets = held_out
    fitted = Temperature.fit(logits, targets)
    before, after = logits.softmax(-1), fitted.probs(logits)
    assert fitted.temperature == pytest.approx(2.5, rel=0.05)
    assert nll(after, targets) < nll(before, targets)
    assert ece(after, targets) < 0.2 * ece(before, targets)
    assert accuracy(after, targets) == accuracy(before, targets)


@pytest.mark.parametrize("scale", [1e-8, 1e8])
def test_the_temperature_scales_with_the_logits(scale: float, held_out: tuple[Tensor, Tensor]) -> None:
    """Without a penalty, or where it does not sharpen."""
    logits, targets = held_out
    unscaled = Temperature.fit(logits, targets).temperature
    scaled = Temperature.fit(scale * logits, targets, penalised=scale > 1)
    assert scaled.temperature == pytest.approx(scale * unscaled, rel=1e-10)


@pytest.mark.parametrize("examples", [20, 5000])
@pytest.mark.parametrize("scale", [0.3, 1e-3])
def test_sharpening_is_penalised_and_the_penalty_fades(
    scale: float, examples: int, held_out: tuple[Tensor, Tensor]
) -> None:
    """The least of a fine grid of the definition; logits are too timid, by 1 / (2.5 scale)."""
    logits, targets = held_out[0][:examples] * scale, held_out[1][:examples]
    fitted = Temperature.fit(logits, targets)
    grid = torch.linspace(-8.0, 1.0, 2000, dtype=torch.float64)
    total = torch.stack([nn.functional.cross_entropy(logits / u.exp(), targets, reduction="sum") for u in grid])
    objective = total + grid.clamp_max(0.0).square() / (2 * 0.5**2)
    assert math.log(fitted.temperature) == pytest.approx(float(grid[objective.argmin()]), abs=5e-3)
    free = Temperature.fit(logits, targets, penalised=False).temperature
    assert free < fitted.temperature < 1.0
    if examples == 5000 and scale == 0.3:
        assert fitted.temperature == pytest.approx(free, rel=1e-3)


@pytest.mark.parametrize("scale", [0.5, 1e-3, 50.0])
def test_labels_that_are_all_right_sharpen_as_the_penalty_allows(scale: float, recwarn: Any) -> None:
    logits = scale * torch.eye(3, dtype=torch.float64)
    fitted = Temperature.fit(logits, torch.arange(3))
    assert not recwarn
    assert 0.1 < fitted.temperature <= 1.0 and (fitted.temperature < 0.9) == (scale == 0.5)


def test_shifting_the_logits_of_an_example_changes_nothing(held_out: tuple[Tensor, Tensor]) -> None:
    logits, targets = held_out
    shifted = Temperature.fit(logits + torch.arange(5000.0)[:, None], targets)
    assert shifted.temperature == pytest.approx(Temperature.fit(logits, targets).temperature, rel=1e-9)


def test_ignored_labels_and_event_axes_do_not_count(held_out: tuple[Tensor, Tensor]) -> None:
    logits, targets = held_out
    tokens = targets.reshape(100, 50).clone()
    tokens[7] = -100
    kept = tokens.flatten() != -100
    by_token = Temperature.fit(logits.reshape(100, 50, 4), tokens)
    assert by_token.temperature == pytest.approx(Temperature.fit(logits[kept], targets[kept]).temperature)
    assert by_token != Temperature.fit(logits, targets)


def test_one_mistake_among_many_still_has_a_temperature() -> None:
    logits = torch.tensor([[30.0, 0.0]]).repeat(1000, 1)
    targets = torch.zeros(1000, dtype=torch.long)
    targets[0] = 1
    fitted = Temperature.fit(logits, targets)
    assert fitted.temperature == pytest.approx(30 / math.log(999), rel=1e-10)
    assert float(fitted.probs(logits.double())[0, 1]) == pytest.approx(1e-3, rel=1e-9)


@pytest.mark.parametrize(("scale", "sharpens"), [(0.5, True), (1e-3, True), (50.0, False)])
def test_labels_that_are_all_right_sharpen_no_further_than_they_attest(scale: float, sharpens: bool) -> None:
    """Three of three right: by the rule of succession one is right with a probability of 4/5."""
    logits = scale * torch.eye(3, dtype=torch.float64)
    with pytest.warns(ConvergenceWarning, match="classified rightly"):
        fitted = Temperature.fit(logits, torch.arange(3), penalised=False)
    sure = float(fitted.probs(logits).diagonal().mean())
    assert sure == pytest.approx(0.8, rel=1e-9) if sharpens else fitted.temperature == 1.0


def test_a_tie_for_the_first_place_is_not_sharpened() -> None:
    with pytest.warns(ConvergenceWarning, match="classified rightly"):
        tied = torch.tensor([[2.0, 2.0, 0.0]])
        assert Temperature.fit(tied, torch.tensor([1]), penalised=False).temperature == 1.0


def test_probabilities_keep_the_dtype_and_shape() -> None:
    probs = Temperature(2.0).probs(torch.ones(2, 3, 4, dtype=torch.float32))
    assert probs.dtype == torch.float32
    assert torch.equal(probs, torch.full((2, 3, 4), 0.25))


EYE, RIGHT = torch.eye(3), torch.arange(3)


@pytest.mark.parametrize(
    ("logits", "targets", "error", "message"),
    [
        (EYE, RIGHT.flip(0).roll(1), DataError, "better than chance.*the best T is infinite"),
        (0 * EYE, RIGHT, DataError, "better than chance"),
        (EYE * torch.nan, RIGHT, DataError, "finite outputs. Got 9 NaN"),
        (EYE, RIGHT + 1, DataError, "labels from 0 to 2"),
        (EYE, RIGHT.double(), DataError, "integer class labels"),
        (EYE, RIGHT - 100 - RIGHT, DataError, "3 labels, none to score"),
        (EYE, RIGHT[:2], ShapeError, r"shape \[3\]. Got shape \[2\]"),
        (EYE[0], RIGHT[0], ShapeError, r"shape \[n, c\]"),
    ],
)
def test_bad_input_costs_a_sentence(logits: Tensor, targets: Tensor, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        Temperature.fit(logits, targets)


@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan])
def test_a_temperature_is_positive_and_finite(value: float) -> None:
    with pytest.raises(ConfigError, match="a temperature > 0"):
        Temperature(value)


def test_the_noise_of_each_output_is_that_of_its_residuals() -> None:
    x = torch.tensor([[1.0, 3.0], [-1.0, -3.0]], dtype=torch.float64)
    data = (x, torch.zeros_like(x))
    assert PlainNetwork(nn.Identity(), Gaussian()).calibrated(data).likelihood == Gaussian((1.0, 1 / 9))
    shared = PlainNetwork(nn.Identity(), Gaussian(shared=True)).calibrated(data).likelihood
    assert shared == Gaussian(0.2, shared=True)
