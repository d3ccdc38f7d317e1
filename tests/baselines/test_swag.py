"""SWAG against the algorithm written out in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lapwing.baselines import SWAG, SWAGPosterior, Task
from lapwing.ground import probes
from lapwing.ground.errors import ConfigError, NumericalError, TooLargeError
from lapwing.likelihoods import Gaussian
from tests.checker import unchecked
from tests.curvature.unchanged import unchanged
from tests.posterior_cases import labels, mlp, normal, refused, seeded

X, Y = normal(40, 3), labels(40, classes=2)


def flat(module: nn.Module) -> np.ndarray:
    return torch.cat([value.detach().flatten() for value in module.parameters()]).numpy().copy()


def walked(rank: int, epochs: int = 6, samples: int = 4) -> tuple[SWAGPosterior, list[np.ndarray]]:
    """The posterior of a path of one's own, and the weights along it."""
    model = mlp()
    path = [flat(model)]
    source = torch.Generator().manual_seed(5)

    def step(module: nn.Module) -> None:
        with torch.no_grad():
            for value in module.parameters():
                value.add_(0.1 * torch.randn(value.shape, generator=source, dtype=value.dtype))
        path.append(flat(module))

    generator = torch.Generator().manual_seed(1)
    recipe = SWAG(step, epochs=epochs, rank=rank, samples=samples, scale=0.5)
    return recipe.fit(Task(model, (X, Y), generator=generator)), path


@pytest.mark.parametrize("rank", [3, 20, 0])
def test_moments_and_draws_are_those_of_the_algorithm(rank: int) -> None:
    posterior, path = walked(rank)
    mean, second = path[0].copy(), path[0] ** 2
    deviations: list[np.ndarray] = []
    for n, theta in enumerate(path[1:], start=1):
        mean = (n * mean + theta) / (n + 1)
        second = (n * second + theta**2) / (n + 1)
        if rank:
            if len(deviations) == rank:
                deviations.pop(0)
            deviations.append(theta - mean)
    variance = second - mean**2
    np.testing.assert_allclose(posterior.mean.numpy(), mean, rtol=1e-12)
    np.testing.assert_allclose(posterior.variance.numpy(), variance, rtol=1e-9)
    assert posterior.deviations.shape == (len(mean), len(deviations))
    for draw, weights in enumerate(noises(posterior)):
        z = weights[: len(mean)]
        moved = np.sqrt(variance) * z
        if rank:
            columns = np.stack(deviations, 1)
            k = columns.shape[1]
            np.testing.assert_allclose(posterior.deviations.numpy(), columns, rtol=1e-9, atol=1e-15)
            moved = np.sqrt(variance / 2) * z + columns @ weights[len(mean) :] / np.sqrt(2 * (k - 1))
        np.testing.assert_allclose(posterior.draws[draw].numpy(), mean + np.sqrt(0.5) * moved, rtol=1e-9)


def noises(posterior: SWAGPosterior) -> list[np.ndarray]:
    """The standard normal numbers behind each draw: those of the diagonal, then those of the columns."""
    source = torch.Generator().manual_seed(probes.seed_from(torch.Generator().manual_seed(1)))
    like = posterior.mean
    found: list[np.ndarray] = []
    for _ in posterior.draws:
        sizes = [size for size in posterior.deviations.shape if size]
        parts = [probes.gaussian([size], like=like, generator=source) for size in sizes]
        found.append(torch.cat(parts).numpy())
    return found


def test_it_predicts_by_the_mean_over_networks_with_the_drawn_weights() -> None:
    posterior, _ = walked(3)
    model = mlp().eval()
    each: list[Tensor] = []
    for weights in posterior.draws:
        torch.nn.utils.vector_to_parameters(weights, model.parameters())
        each.append(model(X).detach().softmax(-1))
    torch.testing.assert_close(posterior.predict(X).probs, torch.stack(each).mean(0), rtol=1e-12, atol=0)


def test_every_draw_has_statistics_of_batches_of_its_own() -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Tanh(), nn.Linear(4, 2))

    model = seeded(build)
    posterior = SWAG(epochs=3, rank=2, samples=3, batch=40).fit(Task(model, (X, Y)))
    for draw, weights in enumerate(posterior.draws):
        copy = seeded(build)
        torch.nn.utils.vector_to_parameters(weights, copy.parameters())
        hidden = copy[0](X).detach()
        torch.testing.assert_close(posterior.buffers["1.running_mean"][draw], hidden.mean(0), rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(posterior.buffers["1.running_var"][draw], hidden.var(0), rtol=1e-10, atol=0)


def test_the_default_descends_on_the_likelihood_from_the_trained_weights() -> None:
    model = seeded(lambda: nn.Linear(3, 1))
    target = X @ torch.tensor([[1.0], [-2.0], [0.5]], dtype=torch.float64)
    with unchanged(model):
        posterior = SWAG(epochs=60, rank=5, rate=0.05).fit(Task(model, (X, target), likelihood=Gaussian()))
    before = (model(X).detach() - target).square().mean()
    after = (posterior.predict(X).mean - target).square().mean()
    assert float(after) < 0.05 * float(before)


def test_frozen_parameters_stay_what_they_are() -> None:
    model = mlp()
    model[0].requires_grad_(False)
    posterior = SWAG(epochs=2, rank=2, samples=2).fit(Task(model, (X, Y)))
    assert posterior.layout.names == ("3.weight", "3.bias")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rank": 1}, "at least two columns"),
        ({"epochs": 1}, "epochs of at least 2"),
        ({"samples": 0}, "samples"),
        ({"rate": 0.0}, "a positive rate"),
        ({"step": nn.Linear(2, 1)}, "a function that trains the module"),
        ({"optimiser": "adam"}, "optimiser="),
    ],
)
def test_options_that_make_no_sense_are_told(options: dict[str, Any], message: str) -> None:
    with unchecked(), refused(ConfigError, message):
        SWAG(**options)


def test_a_descent_that_runs_away_and_draws_too_many_are_told() -> None:
    target = normal(40, 2)
    with refused(NumericalError, "finite weights in SWAG"):
        SWAG(lambda module: module[0].weight.data.fill_(torch.inf), epochs=2).fit(Task(mlp(), (X, Y)))
    with refused(TooLargeError, "30 draws and 20 deviations of 26 weights"):
        SWAG(max_bytes=100).fit(Task(mlp(), (X, target), likelihood=Gaussian()))
    with refused(ConfigError, "a frozen network"):
        SWAG().fit(Task(mlp().requires_grad_(False), (X, Y)))
