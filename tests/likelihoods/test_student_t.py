"""Noise with heavy tails, against scipy; with many degrees of freedom it is Gaussian."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from scipy import stats

import lapwing as lw
from lapwing.evaluation.plain_network import PlainNetwork
from lapwing.ground.errors import ConfigError, DataError
from lapwing.likelihoods import Gaussian, StudentT
from tests.checker import unchecked
from tests.posterior_cases import mlp, normal, refused

DEGREES = (0.5, 3.0, 40.0, 500.0)


@pytest.mark.parametrize("df", DEGREES)
def test_nll_is_that_of_scipy(df: float) -> None:
    f, y = normal(5, 2), torch.cat([normal(4, 2, seed=1), torch.tensor([[1e3, -1e20]]).double()])
    expected = -torch.from_numpy(stats.t(df, scale=0.7).logpdf((y - f).numpy())).sum(-1)
    torch.testing.assert_close(StudentT(df, 0.7).nll(f, y), expected, rtol=1e-12, atol=0.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("df", [1e6, 1e9])
def test_of_many_degrees_of_freedom_it_is_gaussian(df: float, dtype: torch.dtype) -> None:
    f, y = normal(5, 2).to(dtype), normal(5, 2, seed=1).to(dtype)
    nearly, gaussian = StudentT(df, 0.7), Gaussian(0.7**-2)
    for name in ("nll", "score", "hessian"):
        found, expected = getattr(nearly, name)(f, y), getattr(gaussian, name)(f, y)
        torch.testing.assert_close(found, expected, rtol=5e-5, atol=1e-6)
    torch.testing.assert_close(nearly.second_derivative(f, y), torch.full_like(f, 0.7**-2), rtol=5e-5, atol=0.0)


@pytest.mark.parametrize("scale", [1e-12, 1e12])
def test_far_targets_stay_finite_in_single_precision(scale: float) -> None:
    likelihood = StudentT(4.0, scale)
    f, y = torch.zeros(1, 3), torch.tensor([[1e20, -1e20, 0.0]])
    expected = -stats.t(4.0, scale=scale).logpdf(y.double().numpy()).sum()
    assert float(likelihood.nll(f, y)) == pytest.approx(expected, rel=1e-6)
    score = likelihood.score(f, y)[0].tolist()
    assert score == pytest.approx([5 * r / (4 * scale**2 + r * r) for r in (1e20, -1e20, 0.0)], rel=1e-6)
    live = f.clone().requires_grad_()
    likelihood.nll(live, y).sum().backward()
    assert live.grad is not None
    torch.testing.assert_close(live.grad, -likelihood.score(f, y), rtol=1e-5, atol=0.0)


@pytest.mark.parametrize("weight", [1.0, 2.5])
def test_derivatives_for_processes_are_those_of_the_loss(weight: float) -> None:
    """In the outputs and in the logarithm of the scale, by automatic differentiation of the density in float64."""
    f, y = normal(6, 1).requires_grad_(), 3 * normal(6, 1, seed=1)
    log_scale = torch.tensor(math.log(0.7), dtype=torch.float64, requires_grad=True)
    df = 3.0
    loss = -weight * torch.distributions.StudentT(df, f, log_scale.exp()).log_prob(y)
    (score,) = torch.autograd.grad(-loss.sum(), f, create_graph=True)
    (second,) = torch.autograd.grad(-score.sum(), f, create_graph=True)

    def in_scale(values: torch.Tensor) -> torch.Tensor:
        return torch.stack([torch.autograd.grad(value, log_scale, retain_graph=True)[0] for value in values[:, 0]])

    likelihood = StudentT(df, 0.7, weight=weight)
    torch.testing.assert_close(likelihood.second_derivative(f.detach(), y), second.detach())
    assert bool((second < 0).any()) and bool((second > 0).any())
    for found, expected in zip(likelihood.scale_derivatives(f.detach(), y), (loss, score, second), strict=True):
        torch.testing.assert_close(found[:, 0], in_scale(expected))
    precisions = likelihood.noise_precisions(f.detach(), y)
    torch.testing.assert_close(precisions * (y - f.detach()), likelihood.score(f.detach(), y))


@pytest.mark.parametrize("df", [0.5, 3.0, 1e6])
def test_draws_have_its_distribution(df: float, generator: torch.Generator) -> None:
    f = torch.full((4000, 1), 2.0, dtype=torch.float64)
    y = StudentT(df, 0.3).draw(f, generator=generator)[:, 0]
    found: Any = stats.kstest((y.numpy() - 2.0) / 0.3, stats.t(df).cdf)
    assert found.pvalue > 1e-3


def test_what_is_no_scale_and_no_number_of_degrees_is_refused() -> None:
    for bad in (0.0, -1.0, math.nan, math.inf):
        with refused(ConfigError, "scale"):
            StudentT(scale=bad)
        with refused(ConfigError, "df"):
            StudentT(df=bad)
    for bad in (0.05, 2e9):
        with refused(ConfigError, "df from 0.1 to 1e+09"):
            StudentT(df=bad)
    for bad in (1e-101, 1e101):
        with refused(ConfigError, "a scale from 1e-100 to 1e+100"):
            StudentT(scale=bad)
    with unchecked(), refused(ConfigError, "scale"):
        wrong: Any = "wide"
        StudentT(scale=wrong)


def test_whole_numbers_are_refused() -> None:
    with refused(DataError, "real targets for StudentT"):
        StudentT().canonical_targets(torch.zeros(3, 1), torch.tensor([1, 2, 3]))


class TestCalibrated:
    @pytest.mark.parametrize("df", [1.0, 4.0, 1e6])
    @pytest.mark.parametrize("scale", [1e-9, 0.3, 1e9])
    def test_finds_the_scale_of_largest_likelihood(self, df: float, scale: float) -> None:
        f = torch.zeros(300, 2, dtype=torch.float64)
        y = StudentT(df, scale).draw(f, generator=torch.Generator().manual_seed(0))
        found = StudentT(df).calibrated(f, y)
        assert found.df == df and found.scale == pytest.approx(scale, rel=0.15)
        loss = float(found.total_nll(f, y))
        for other in (0.999, 1.001):
            assert float(StudentT(df, other * found.scale).total_nll(f, y)) > loss

    def test_it_is_that_of_equal_residuals(self) -> None:
        f = torch.zeros(4, 1)
        assert StudentT(3.0).calibrated(f, torch.tensor([[2.0], [-2.0], [2.0], [2.0]])).scale == pytest.approx(2.0)

    def test_one_far_target_in_single_precision_hardly_moves_it(self) -> None:
        f, y = torch.zeros(201, 1), torch.cat([normal(200, 1).float(), torch.tensor([[1e20]])])
        assert StudentT(4.0).calibrated(f, y).scale == pytest.approx(
            StudentT(4.0).calibrated(f[1:], y[:-1]).scale, 0.03
        )

    @pytest.mark.parametrize("nonzero", [0, 1])
    def test_refuses_residuals_most_of_which_are_zero(self, nonzero: int) -> None:
        y = torch.zeros(5, 1)
        y[:nonzero] = 1.0
        with refused(DataError, f"{100 - 20 * nonzero}% of them zero"):
            StudentT(4.0).calibrated(torch.zeros(5, 1), y)
        y[:2] = 1.0
        assert StudentT(4.0).calibrated(torch.zeros(5, 1), y).scale > 0

    def test_a_plain_network_takes_it(self, generator: torch.Generator) -> None:
        x, model = normal(300, 3), mlp(1)
        y = StudentT(4.0, 0.2).draw(model.eval()(x).detach(), generator=generator)
        network = PlainNetwork(model, StudentT()).calibrated((x, y))
        assert network.likelihood == StudentT().calibrated(network.outputs(x), y)


def test_tuning_leaves_its_scale_and_says_so() -> None:
    """As it does for the dispersion of counts; not where somebody chose."""
    x, y = normal(12, 3), normal(12, 2, seed=1)
    counts = y.abs().round()
    for likelihood, targets in ((lw.StudentT(3.0), y), (lw.NegativeBinomial(), counts)):
        posterior = lw.Laplace(likelihood).fit(mlp(), (x, targets))
        with pytest.warns(lw.DataWarning, match=r"default.*lw\.baselines\.PlainNetwork\(model, likelihood\)"):
            assert lw.tune(posterior, lw.EvidenceGradient()).likelihood == likelihood
    lw.tune(lw.Laplace(lw.StudentT(3.0, 0.9)).fit(mlp(), (x, y)), lw.EvidenceGradient())  # a warning would be an error


def test_a_posterior_of_it_covers_what_is_far_off_and_is_likelier_than_a_gaussian_of_its_variance() -> None:
    """A t number of 3 degrees of freedom has 0.19 nats less under its own density than under that Gaussian."""
    x, model = normal(1500, 3), mlp(1).eval()
    y = StudentT(3.0, 0.5).draw(model(x).detach(), generator=torch.Generator().manual_seed(0))
    data, held_out = (x[:300], y[:300]), (x[300:], y[300:])
    heavy = lw.evaluate(lw.Laplace(StudentT(3.0, 0.5)).fit(model, data), held_out)
    gaussian = lw.evaluate(lw.Laplace(Gaussian(1 / (3 * 0.25))).fit(model, data), held_out)
    assert heavy["picp"] == pytest.approx(0.95, abs=0.02)
    assert heavy["nll"] < gaussian["nll"] - 0.1
