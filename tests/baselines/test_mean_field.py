"""Mean-field inference: to the exact Gaussian where that factorises, by perturbations each example has for itself."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lapwing.baselines import MeanField, MeanFieldPosterior, Task
from lapwing.baselines.mean_field import Flipout, called_layers
from lapwing.ground.errors import ConfigError, NumericalError, TooLargeError, UnsupportedError
from lapwing.likelihoods import Gaussian
from tests.curvature.unchanged import unchanged
from tests.modules import Tied
from tests.posterior_cases import labels, mlp, normal, refused, seeded

NOISE, PRIOR = 4.0, 2.0
SIGNS = torch.tensor([[1.0, 1.0, 1.0, 1.0], [1.0, -1.0, 1.0, -1.0], [1.0, 1.0, -1.0, -1.0]], dtype=torch.float64).mT
MIX = torch.tensor([[1.0, 0.6, 0.0], [0.0, 1.0, -0.5], [0.0, 0.0, 1.0]], dtype=torch.float64)
DESIGNS = {"orthogonal": SIGNS.repeat(16, 1), "correlated": SIGNS.repeat(16, 1) @ MIX}
TRUTH = torch.tensor([[1.0], [-0.5], [0.25]], dtype=torch.float64)


@pytest.mark.parametrize("name", DESIGNS)
def test_the_bound_rises_to_that_of_the_exact_gaussian(name: str) -> None:
    """Of a linear model the best factorising Gaussian is N(Λ⁻¹ρXᵀy, 1/Λ_ii), and exact where Λ is diagonal."""
    x = DESIGNS[name]
    y = x @ TRUTH + 0.5 * normal(64, 1, seed=2)
    model = seeded(lambda: nn.Linear(3, 1, bias=False))
    recipe = MeanField(400, prior_precision=PRIOR, rate=0.03, std_rate=0.01, initial_std=0.03)
    posterior = recipe.fit(Task(model, (x, y), likelihood=Gaussian(NOISE), generator=torch.Generator().manual_seed(0)))

    precision = NOISE * x.mT @ x + PRIOR * torch.eye(3)
    mean = torch.linalg.solve(precision, NOISE * x.mT @ y)[:, 0]
    std = precision.diagonal().rsqrt()
    assert float(((posterior.mean - mean) / std).abs().max()) < 0.1
    torch.testing.assert_close(posterior.std, std, rtol=0.12, atol=0)

    marginal = torch.distributions.MultivariateNormal(torch.zeros(64), x @ x.mT / PRIOR + torch.eye(64) / NOISE)
    evidence = float(marginal.log_prob(y[:, 0]))
    gap = 0.5 * float(precision.diagonal().log().sum() - torch.logdet(precision))
    best = evidence - gap
    assert name != "orthogonal" or abs(gap) < 1e-9
    reached = bound(x, y, posterior.mean, posterior.std)
    assert best - 0.05 < reached <= best + 1e-9
    forties = torch.tensor(posterior.bounds).view(10, 40).mean(1)
    assert bool((forties[1:4] > forties[:3]).all())
    assert float(forties[-1]) == pytest.approx(best, abs=0.3)


def bound(x: Tensor, y: Tensor, mean: Tensor, std: Tensor) -> float:
    """``E_q log p(y | θ) - KL(q ‖ p)`` in closed form."""
    squares = (y[:, 0] - x @ mean).square().sum() + (std.square() * x.square().sum(0)).sum()
    fit = -0.5 * NOISE * squares + 0.5 * len(y) * math.log(NOISE / (2 * math.pi))
    each = PRIOR * (mean.square() + std.square()) - 1 - math.log(PRIOR) - 2 * std.log()
    return float(fit - 0.5 * each.sum())


LAYERS = {
    "linear": (lambda: nn.Linear(3, 4), (5, 3)),
    "tokens": (lambda: nn.Linear(3, 4), (5, 2, 3)),
    "convolution": (lambda: nn.Conv2d(2, 4, 3, stride=2, padding=1, groups=2), (5, 2, 6, 6)),
    "reflected": (lambda: nn.Conv1d(2, 3, 3, padding=1, padding_mode="reflect", bias=False), (5, 2, 6)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_each_example_has_weights_of_its_own(name: str) -> None:
    build, shape = LAYERS[name]
    layer = seeded(build)
    x = normal(*shape)
    flipout = Flipout.of(layer, x[:1], None, 0.3, torch.Generator().manual_seed(0))
    flipout.draw()
    with flipout.hooked(layer):
        found = layer(x)
    s, r = flipout.signs[""]
    shared = {key: 0.3 * value for key, value in flipout.noise.items()}
    grouped = getattr(layer, "groups", 1)
    for n in range(5):
        columns = s[n].flatten().view(grouped, -1).repeat_interleave(len(layer.weight) // grouped, 0)
        own = seeded(build)
        with torch.no_grad():
            rows = r[n].flatten()
            positions = [1] * (layer.weight.ndim - 2)
            own.weight += shared["weight"] * rows.view(-1, 1, *positions) * columns.view(*columns.shape, *positions)
            if own.bias is not None:
                own.bias += shared["bias"] * rows
        torch.testing.assert_close(found[n : n + 1], own(x[n : n + 1]), rtol=1e-10, atol=1e-12)
    assert not layer._forward_hooks


def test_a_mini_batch_has_one_perturbation_of_a_layer_called_twice() -> None:
    layer = seeded(lambda: nn.Linear(3, 3))
    flipout = Flipout.of(layer, normal(1, 3), None, 0.1, torch.Generator().manual_seed(0))
    flipout.draw()
    x = normal(5, 3)
    with flipout.hooked(layer):
        assert torch.equal(layer(x), layer(x))
        before = layer(x)
        flipout.draw()
        assert not torch.equal(layer(x), before)


def test_random_are_layers_that_are_called_and_share_nothing() -> None:
    encoder = seeded(lambda: nn.TransformerEncoderLayer(4, 2, 5, batch_first=True))
    assert called_layers(encoder, normal(2, 3, 4), None) == ["linear1", "linear2"]
    tied = seeded(Tied)
    flipout = Flipout.of(tied, labels(1, 3, classes=5), None, 0.1, torch.Generator())
    assert flipout.layers == ("mix",)
    frozen = mlp()
    frozen[0].requires_grad_(False)
    assert Flipout.of(frozen, normal(1, 3), None, 0.1, torch.Generator()).layers == ("3",)


def test_draws_have_the_means_and_deviations_and_the_network_stays() -> None:
    model = mlp()
    task = Task(model, (normal(40, 3), labels(40, classes=2)))
    with unchanged(model):
        posterior = MeanField(3, samples=4000, std_rate=0.1).fit(task)
    assert isinstance(posterior, MeanFieldPosterior)
    scaled = (posterior.draws - posterior.mean) / posterior.std
    assert float(scaled.mean(0).abs().max()) < 5 / 4000**0.5
    torch.testing.assert_close(scaled.std(0), torch.ones_like(posterior.std), rtol=0.06, atol=0)
    assert repr(posterior) == "MeanFieldPosterior(4000 draws of 26 weights)"


@pytest.mark.parametrize("option", ["prior_precision", "temperature", "rate", "std_rate", "initial_std"])
def test_numbers_are_positive(option: str) -> None:
    options: dict[str, Any] = {option: 0.0}
    with refused(ConfigError, f"a positive {option}"):
        MeanField(**options)


def test_what_cannot_be_fitted_is_told() -> None:
    data = (normal(40, 3), labels(40, classes=2))
    with refused(UnsupportedError, "a network with linear or convolutional layers"):
        MeanField().fit(Task(nn.Sequential(nn.PReLU()), (normal(40, 3).abs(), labels(40, classes=3))))
    with refused(TooLargeError, "20 of 26 weights"):
        MeanField(max_bytes=100).fit(Task(mlp(), data))
    with refused(NumericalError, "finite weights in MeanField"):
        MeanField(1, std_rate=1e4).fit(Task(mlp(), data))
