from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from lapwing.evaluation.baselines import Temperature
from lapwing.evaluation.metrics import accuracy, ece, nll
from lapwing.ground.errors import ConfigError, ConvergenceWarning, DataError, ShapeError


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
    logits, targets = held_out
    unscaled = Temperature.fit(logits, targets).temperature
    assert Temperature.fit(scale * logits, targets).temperature == pytest.approx(scale * unscaled, rel=1e-10)


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
    with pytest.warns(ConvergenceWarning, match=r"all 3 .* classified rightly.*Try more held-out examples"):
        fitted = Temperature.fit(logits, torch.arange(3))
    sure = float(fitted.probs(logits).diagonal().mean())
    assert sure == pytest.approx(0.8, rel=1e-9) if sharpens else fitted.temperature == 1.0


def test_a_tie_for_the_first_place_is_not_sharpened() -> None:
    with pytest.warns(ConvergenceWarning, match="classified rightly"):
        assert Temperature.fit(torch.tensor([[2.0, 2.0, 0.0]]), torch.tensor([1])).temperature == 1.0


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
        (EYE, RIGHT - 100 - RIGHT, DataError, "3 labels, none to fit"),
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
