"""Precisions by their logarithms."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import lapwing as lw
from lapwing.ground.errors import NumericalError
from lapwing.ground.tree import Layout
from lapwing.likelihoods import Likelihood
from lapwing.methods.marginal.hyper import Hyperparameters
from lapwing.priors import Prior
from tests.posterior_cases import normal, refused

LAYOUT = Layout(("fc.weight", "fc.bias", "out.weight"), ((2, 2), (1,), (2,)))
LIKE = torch.zeros((), dtype=torch.float64)


def hyper(prior: Prior, likelihood: Likelihood, **options: bool) -> Hyperparameters:
    return Hyperparameters(prior, likelihood, LAYOUT, LIKE, **options)


def test_what_goes_in_comes_out() -> None:
    made = hyper(lw.Layerwise((0.5, 2.0)), lw.Gaussian((3.0, 4.0)))
    assert made.prior.precisions(LAYOUT).tolist() == pytest.approx([0.5, 2.0])
    assert made.likelihood.precision == pytest.approx((3.0, 4.0))
    assert hyper(lw.Isotropic(), lw.Categorical()).likelihood == lw.Categorical()


def test_densities_are_those_of_prior_and_likelihood() -> None:
    made, theta = hyper(lw.Layerwise((0.5, 2.0)), lw.Gaussian((3.0, 4.0))), normal(7)
    with torch.no_grad():
        made.log_precisions += torch.tensor([0.3, -0.7])
        made.log_noise += 0.9
    f, y = normal(5, 2), normal(5, 2, seed=1)
    torch.testing.assert_close(made.nll(f, y), made.likelihood.nll(f, y).sum())
    assert made.likelihood.precision == pytest.approx((3 * math.exp(0.9), 4 * math.exp(0.9)))
    log_prior = 0.5 * (made.log_det_prior() - made.square_norm(theta) - 7 * math.log(2 * math.pi))
    torch.testing.assert_close(log_prior, made.prior.log_density(theta, LAYOUT))
    torch.testing.assert_close(made.deviations(theta), made.prior.diagonal(LAYOUT, theta).rsqrt())


def test_the_noise_is_learned_only_where_there_is_one_to_learn() -> None:
    assert hyper(lw.Isotropic(), lw.Gaussian()).log_noise.requires_grad
    assert not hyper(lw.Isotropic(), lw.Gaussian(), noise=False).log_noise.requires_grad
    assert not hyper(lw.Isotropic(), lw.Categorical()).log_noise.requires_grad


@pytest.mark.parametrize(("share", "precision", "noise"), [(1.0, 8.0, 12.0), (0.5, 4.0, 6.0)])
def test_moving_part_of_the_way_is_in_logarithms(share: float, precision: float, noise: float) -> None:
    made = hyper(lw.Isotropic(2.0), lw.Gaussian(3.0))
    made.move_to(lw.Isotropic(8.0), lw.Gaussian(12.0), share)
    assert made.prior.precisions(LAYOUT).tolist() == pytest.approx([precision])
    assert made.likelihood.precision == pytest.approx(noise)
    fixed = hyper(lw.Isotropic(2.0), lw.Gaussian(3.0), noise=False)
    fixed.move_to(lw.Isotropic(8.0), lw.Gaussian(12.0), share)
    assert fixed.likelihood == lw.Gaussian(3.0)


@pytest.mark.parametrize("value", [math.nan, math.inf, -1e4, 1e4])
def test_a_logarithm_that_went_astray_gets_a_sentence(value: float) -> None:
    made = hyper(lw.Isotropic(), lw.Gaussian())
    stray: Tensor = made.log_precisions.detach()
    stray[0] = value
    with refused(NumericalError, expected="positive and finite", got=f"[{value}]", hint="smaller learning rate"):
        assert made.prior
