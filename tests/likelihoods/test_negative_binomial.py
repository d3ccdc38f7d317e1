"""Counts more spread out than Poisson's, against scipy; as dispersion goes to 0 they are Poisson's."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor

import lapwing as lw
from lapwing.evaluation.plain_network import PlainNetwork
from lapwing.ground.errors import ConfigError, DataError
from lapwing.likelihoods import NegativeBinomial, Poisson
from tests.checker import unchecked
from tests.posterior_cases import mlp, normal

DISPERSIONS = (0.05, 0.7, 3.0)


def negative_binomial(means: Tensor, dispersion: float) -> Any:
    """That of scipy, whose p is r / (r + μ)."""
    r = 1 / dispersion
    return stats.nbinom(r, r / (r + means.numpy()))


@pytest.mark.parametrize("dispersion", DISPERSIONS)
def test_nll_is_that_of_scipy(dispersion: float, generator: torch.Generator) -> None:
    f = torch.randn(5, 2, generator=generator, dtype=torch.float64)
    y = torch.randint(0, 40, (5, 2), generator=generator).double()
    expected = -torch.from_numpy(negative_binomial(f.exp(), dispersion).logpmf(y.numpy())).sum(-1)
    torch.testing.assert_close(NegativeBinomial(dispersion).nll(f, y), expected, rtol=1e-10, atol=0.0)


def test_without_dispersion_it_is_poissons(generator: torch.Generator) -> None:
    f = torch.randn(5, 2, generator=generator, dtype=torch.float64)
    y = torch.randint(0, 5, (5, 2), generator=generator).double()
    nearly = NegativeBinomial(1e-7)
    torch.testing.assert_close(nearly.nll(f, y), Poisson().nll(f, y), rtol=1e-5, atol=0.0)
    torch.testing.assert_close(nearly.score(f, y), Poisson().score(f, y), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(nearly.hessian(f), Poisson().hessian(f), rtol=1e-5, atol=0.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("dispersion", [1e-3, 1e-5, 1e-9, 1e-15, 1e-300])
def test_a_small_dispersion_keeps_its_digits(dispersion: float, dtype: torch.dtype) -> None:
    """Poisson's loss less ``α ((y - μ)² - y) / 2``, to first order in α; terms of y log α cancel in it, in float64."""
    f = torch.tensor([[0.0], [1.0], [4.0]], dtype=torch.float64)
    y = torch.tensor([[0.0], [3.0], [50.0]], dtype=torch.float64)
    first = 0.5 * dispersion * ((y - f.exp()).square() - y)[:, 0]
    found = NegativeBinomial(dispersion).nll(f.to(dtype), y.to(dtype)).double()
    second = 1e3 * dispersion**2 * float(y.max())
    cancelled = 4 * torch.finfo(torch.float64).eps * float(y.max()) * abs(math.log(dispersion))
    rounding = 4 * torch.finfo(dtype).eps
    torch.testing.assert_close(found, Poisson().nll(f, y) - first, rtol=rounding, atol=second + cancelled)


def test_extreme_outputs_stay_finite() -> None:
    likelihood = NegativeBinomial(0.5)
    f = torch.tensor([[1e4, -1e4, 80.0]])
    y = torch.tensor([[0.0, 3.0, 7.0]])
    for value in (likelihood.nll(f, y), likelihood.score(f, y), likelihood.hessian(f), likelihood.root(f)):
        assert bool(value.isfinite().all())
    torch.testing.assert_close(likelihood.hessian(f)[0].diagonal(), torch.tensor([2.0, 0.0, 2.0]))


@pytest.mark.parametrize("dispersion", DISPERSIONS)
def test_draws_have_its_mean_and_variance(dispersion: float, generator: torch.Generator) -> None:
    mean, k = 3.0, 40_000
    y = NegativeBinomial(dispersion).draw(torch.full((k, 1), math.log(mean)).double(), generator=generator)
    variance = mean + dispersion * mean**2
    assert abs(float(y.mean()) - mean) < 5 * (variance / k) ** 0.5
    assert abs(float((y - mean).square().mean()) - variance) < 5 * float((y - mean).square().std()) / k**0.5
    share = negative_binomial(torch.tensor(mean), dispersion).cdf(2)
    assert abs(float((y <= 2).double().mean()) - share) < 5 * (share * (1 - share) / k) ** 0.5


@pytest.mark.parametrize("dispersion", [0.0, -1.0, math.nan, math.inf])
def test_dispersion_is_positive(dispersion: float) -> None:
    with pytest.raises(ConfigError, match="dispersion"):
        NegativeBinomial(dispersion)
    with unchecked(), pytest.raises(ConfigError, match="dispersion"):
        bad: Any = "much"
        NegativeBinomial(bad)


def test_what_is_not_a_count_is_refused() -> None:
    with pytest.raises(DataError, match=r"counts 0, 1, 2, \.\.\. for NegativeBinomial.*the first -1"):
        NegativeBinomial().check(torch.zeros(1, 3), torch.tensor([[1.0, -1.0, 0.5]]))
    with pytest.raises(DataError, match=r"log rates below 89"):
        NegativeBinomial().check(torch.full((1, 1), 1e3), torch.ones(1, 1))


class TestCalibrated:
    def test_finds_the_dispersion_behind_the_counts(self, generator: torch.Generator) -> None:
        """Its error is known from the curvature of the likelihood; here by a bound on it."""
        f = 1.0 + 0.5 * torch.randn(4000, 2, generator=generator, dtype=torch.float64)
        for dispersion in DISPERSIONS:
            y = NegativeBinomial(dispersion).draw(f, generator=generator)
            found = NegativeBinomial().calibrated(f, y)
            assert found.dispersion == pytest.approx(dispersion, rel=0.25)
            loss = float(found.total_nll(f, y))
            for other in (0.98, 1.02):
                assert float(NegativeBinomial(other * found.dispersion).total_nll(f, y)) > loss

    def test_refuses_counts_no_more_spread_out_than_poissons(self) -> None:
        f = torch.zeros(4, 1, dtype=torch.float64)
        with pytest.raises(DataError, match=r"more spread out than Poisson's.*Try Poisson\(\)"):
            NegativeBinomial().calibrated(f, torch.ones(4, 1).double())

    def test_a_plain_network_takes_it(self, generator: torch.Generator) -> None:
        x = normal(300, 3)
        model = mlp(1)
        y = NegativeBinomial(2.0).draw(model.eval()(x).detach(), generator=generator)
        network = PlainNetwork(model, NegativeBinomial()).calibrated((x, y))
        assert network.likelihood == NegativeBinomial().calibrated(network.outputs(x), y)


def test_a_posterior_of_it_covers_what_poissons_does_not(generator: torch.Generator) -> None:
    """Counts whose rates vary by themselves: 95 % intervals hold 95 % of them, Poisson's two thirds."""
    x = normal(600, 3)
    model = mlp(1)
    y = NegativeBinomial(1.0).draw(model.eval()(x).detach() + 2.0, generator=generator)
    with torch.no_grad():
        model[-1].bias += 2.0
    data, held_out = (x[:300], y[:300]), (x[300:], y[300:])
    spread = lw.evaluate(lw.Laplace(NegativeBinomial(1.0), prior=lw.Isotropic(10.0)).fit(model, data), held_out)
    poisson = lw.evaluate(lw.Laplace(Poisson(), prior=lw.Isotropic(10.0)).fit(model, data), held_out)
    assert spread["picp"] == pytest.approx(0.95, abs=0.03) and poisson["picp"] < 0.75
    assert spread["nll"] < poisson["nll"] - 1.0
