"""Networks and processes as BoTorch's models: the same moments, gradients in the points, and its own optimiser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import lapwing as lw
from lapwing.ground.errors import ConfigError, ShapeError, UnsupportedError
from tests.checker import unchecked
from tests.integrations.pages import run_page
from tests.posterior_cases import normal, refused

pytest.importorskip("botorch", reason="BoTorch is not installed")

from botorch.acquisition import qLogExpectedImprovement
from botorch.acquisition.objective import ScalarizedPosteriorTransform
from botorch.optim import optimize_acqf
from botorch.sampling import SobolQMCNormalSampler

from lapwing.integrations.botorch import GPModel, LaplaceModel

X = normal(20, 2)
Y = torch.stack([torch.sin(X[:, 0]), 2.0 + X[:, 1]], 1)
POINTS = normal(4, 3, 2, seed=1)
NETWORK = nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 2)).double()


@pytest.fixture(scope="module")
def models() -> dict[str, Any]:
    likelihood = lw.Gaussian((16.0, 4.0))
    process = lw.GP(lw.gp.Matern((1.0, 1.0)), likelihood).fit((X, Y))
    return {
        "network": LaplaceModel(lw.Laplace(likelihood).fit(NETWORK, (X, Y))),
        "process": GPModel(process),
        "kernels": GPModel(lw.GP((lw.gp.Matern(1.0), lw.gp.RBF(2.0)), likelihood).fit((X, Y))),
    }


every_model = pytest.mark.parametrize("name", ["network", "process", "kernels"])


@every_model
def test_batches_of_points_have_their_joint_moments(name: str, models: dict[str, Any]) -> None:
    model = models[name]
    found = model.posterior(POINTS)
    assert model.num_outputs == 2 and model.batch_shape == torch.Size()
    assert found.mean.shape == (4, 3, 2)
    for points, mean, variance, matrix in zip(
        POINTS, found.mean, found.variance, found.distribution.covariance_matrix, strict=True
    ):
        outputs = model.predictor.outputs(points, joint=True)
        torch.testing.assert_close(mean, outputs.mean)
        torch.testing.assert_close(variance, outputs.variance)
        torch.testing.assert_close(matrix.reshape(3, 2, 3, 2), outputs.covariance, rtol=1e-6, atol=1e-9)


@every_model
def test_noise_outputs_and_transforms_are_as_botorch_asks_for_them(name: str, models: dict[str, Any]) -> None:
    model = models[name]
    plain = model.posterior(POINTS)
    noisy = model.posterior(POINTS, observation_noise=True)
    noise = torch.tensor([1 / 16, 1 / 4], dtype=torch.float64)
    torch.testing.assert_close(noisy.variance, plain.variance + noise)
    given = model.posterior(POINTS, observation_noise=noise.expand(3, 2))
    torch.testing.assert_close(given.variance, noisy.variance)
    second = model.posterior(POINTS, output_indices=[1])
    torch.testing.assert_close(second.mean, plain.mean[..., 1:])
    torch.testing.assert_close(second.variance, plain.variance[..., 1:])
    weights = torch.tensor([1.0, -1.0], dtype=torch.float64)
    difference = model.posterior(POINTS, posterior_transform=ScalarizedPosteriorTransform(weights))
    torch.testing.assert_close(difference.mean[..., 0], plain.mean @ weights)
    single = model.posterior(POINTS[0, :1])
    torch.testing.assert_close(single.mean, plain.mean[0, :1])
    torch.testing.assert_close(single.variance, plain.variance[0, :1])


@every_model
def test_noise_that_is_given_is_that_of_all_outputs_whichever_are_wanted(name: str, models: dict[str, Any]) -> None:
    model = models[name]
    noise = normal(4, 3, 2, seed=9).square()
    plain = model.posterior(POINTS).variance
    for wanted in ([0], [1], [1, 0], [-1]):
        found = model.posterior(POINTS, output_indices=wanted, observation_noise=noise)
        torch.testing.assert_close(found.variance, (plain + noise)[..., wanted])
    with unchecked():
        said = model.posterior(POINTS, observation_noise=np.True_).variance
    torch.testing.assert_close(said, model.posterior(POINTS, observation_noise=True).variance)


def test_noise_and_outputs_that_are_none_of_the_models_are_refused(models: dict[str, Any]) -> None:
    model = models["process"]
    with unchecked(), refused(ShapeError, "variances of noise [4, 3, 2], of all outputs"):
        model.posterior(POINTS, output_indices=[0], observation_noise=torch.ones(5))
    with refused(ConfigError, "among those of 2 outputs"):
        model.posterior(POINTS, output_indices=[2])


@every_model
def test_the_gradient_in_the_points_is_that_of_finite_differences(name: str, models: dict[str, Any]) -> None:
    def value(points: Tensor) -> Tensor:
        found = models[name].posterior(points)
        return found.mean.sin().sum() + found.distribution.covariance_matrix.square().sum()

    points = POINTS[:1].clone().requires_grad_()
    (gradient,) = torch.autograd.grad(value(points), points)
    step = 1e-5
    for place in range(POINTS[:1].numel()):
        change = torch.zeros(POINTS[:1].numel(), dtype=torch.float64)
        change[place] = step
        with torch.no_grad():
            up, down = (value(POINTS[:1] + sign * change.view(1, 3, 2)) for sign in (1, -1))
        assert float((up - down) / (2 * step)) == pytest.approx(float(gradient.flatten()[place]), rel=1e-5, abs=1e-7)


def test_points_that_coincide_are_drawn(models: dict[str, Any]) -> None:
    found = models["process"].posterior(POINTS[:1, [0, 0]])
    first, second = found.rsample(torch.Size([5]))[:, 0].unbind(1)
    torch.testing.assert_close(first, second, rtol=0.0, atol=0.02)  # the root of the jitter


def test_many_points_are_the_same_a_part_at_a_time(models: dict[str, Any]) -> None:
    points = normal(90, 3, 2, seed=3)
    with torch.no_grad():
        found = models["network"].posterior(points)
        part = models["network"].posterior(points[80:])
    torch.testing.assert_close(found.mean[80:], part.mean)
    torch.testing.assert_close(found.variance[80:], part.variance)


def test_more_data_update_a_process_and_no_network(models: dict[str, Any]) -> None:
    more = models["process"].condition_on_observations(POINTS[0], Y[:3])
    expected = lw.GP(lw.gp.Matern((1.0, 1.0)), lw.Gaussian((16.0, 4.0))).fit(
        (torch.cat([X, POINTS[0]]), torch.cat([Y, Y[:3]]))
    )
    torch.testing.assert_close(more.posterior(POINTS[1]).variance, expected.outputs(POINTS[1], joint=True).variance)
    with refused(UnsupportedError, "training it on all data"):
        models["network"].condition_on_observations(POINTS[0], Y[:3])
    with refused(ShapeError, "a model for each batch"), unchecked():
        models["process"].condition_on_observations(POINTS, Y[:3])
    with refused(ConfigError, "noise"):
        models["process"].condition_on_observations(POINTS[0], Y[:3], noise=Y[:3])


def test_what_is_no_model_of_real_targets_is_refused(models: dict[str, Any]) -> None:
    with refused(UnsupportedError, "one with Categorical"):
        LaplaceModel(lw.Laplace(lw.Categorical()).fit(NETWORK, (X, (X[:, 0] > 0).long())))
    with refused(ConfigError, "the process"), unchecked():
        GPModel(models["network"].predictor)
    with refused(ConfigError, "the posterior"), unchecked():
        LaplaceModel(models["process"].predictor)
    drawn = lw.GP(lw.gp.Matern((1.0, 1.0)), lw.Gaussian(16.0), solver=lw.solvers.CG()).fit((X, Y[:, :1]))
    with refused(UnsupportedError, "known by draws"):
        GPModel(drawn).posterior(POINTS)
    with refused(ShapeError, "[..., q, d]"), unchecked():
        models["process"].posterior(X[0])


def test_means_of_heteroscedastic_targets_are_its_outputs() -> None:
    posterior = lw.Laplace(lw.HeteroscedasticGaussian()).fit(NETWORK, (X, Y[:, :1]))
    model = LaplaceModel(posterior)
    found = model.posterior(POINTS)
    assert model.num_outputs == 1 and found.mean.shape == (4, 3, 1)
    torch.testing.assert_close(found.mean[0], posterior.outputs(POINTS[0], joint=True).mean[:, :1])


@pytest.mark.parametrize("name", ["network", "process"])
def test_expected_improvement_is_optimised(name: str) -> None:
    """Of what is known without noise to rise with the first input, the best of two points is at its end."""
    y = X[:, :1]
    if name == "process":
        model: Any = GPModel(lw.GP(lw.gp.RBF((3.0, 3.0)), lw.Gaussian(1e4)).fit((X, y)))
    else:
        model = LaplaceModel(lw.Laplace(lw.Gaussian(1e4)).fit(linear(), (X, y)))
    sampler = SobolQMCNormalSampler(torch.Size([32]), seed=0)
    acquisition = qLogExpectedImprovement(model, best_f=float(y.max()), sampler=sampler)
    bounds = torch.tensor([[-3.0, -1.0], [3.0, 1.0]], dtype=torch.float64)
    torch.manual_seed(0)
    candidates, value = optimize_acqf(acquisition, bounds, q=2, num_restarts=2, raw_samples=16)
    assert candidates.shape == (2, 2) and bool(value.isfinite())
    assert float(candidates[:, 0].max()) > 2.5


def linear() -> nn.Module:
    """A network that is the first of its inputs."""
    network = nn.Linear(2, 1).double()
    with torch.no_grad():
        network.weight.copy_(torch.tensor([[1.0, 0.0]]))
        network.bias.zero_()
    return network


def test_the_page_runs(tmp_path: Path) -> None:
    assert run_page("botorch", tmp_path)["candidates"].shape == (2, 2)
