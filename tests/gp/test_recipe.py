"""Where hyper-parameters start."""

from __future__ import annotations

import pytest
import torch

import lapwing as lw
from lapwing.gp.recipe import lengthscales, near_variance
from lapwing.ground.errors import ConfigError, DataWarning
from tests.posterior_cases import normal, refused


def test_length_scales_are_those_of_median_distances() -> None:
    x = normal(400, 3) * torch.tensor([1.0, 10.0, 0.1], dtype=torch.float64)
    apart = (x[:, None] - x).abs()[torch.triu(torch.ones(400, 400), 1) > 0]
    expected = 3**0.5 * apart.median(0).values
    torch.testing.assert_close(torch.tensor(lengthscales(x)).double(), expected, rtol=0.15, atol=0)


def test_dimensions_in_which_most_inputs_are_alike_have_a_scale() -> None:
    x = torch.zeros(100, 2, dtype=torch.float64)
    x[:10, 0] = 1.0
    assert lengthscales(x) == pytest.approx((2**0.5 * 0.3, 1.0))


@pytest.mark.parametrize("count", [3, 7])
def test_what_is_alike_has_no_spread_though_its_mean_is_rounded(count: int) -> None:
    alike = torch.full((count, 1), 0.1, dtype=torch.float64)
    assert lengthscales(alike) == (1.0,)
    with pytest.warns(DataWarning):
        process = lw.GP().fit((normal(count, 2), alike))
    assert process.likelihood.noise == pytest.approx(10.0)


def test_a_process_without_a_kernel_follows_the_units_of_the_data() -> None:
    x, new = normal(40, 2), normal(5, 2, seed=1)
    y = torch.sin(x[:, :1])
    plain, units = (lw.GP(likelihood=lw.Gaussian(0.01**-2 / s**2)).fit((x * s, y * s)) for s in (1.0, 50.0))
    torch.testing.assert_close(units.predict(new * 50.0).mean, 50.0 * plain.predict(new).mean)


def test_the_variance_of_near_targets_is_that_of_a_gaussian_and_leaves_far_ones_out() -> None:
    y = 3.0 * normal(4001, 1) + 7.0
    assert near_variance(y) == pytest.approx(9.0, rel=0.1)
    y[:200] = 1e20
    assert near_variance(y) == pytest.approx(9.0, rel=0.3)
    assert near_variance(torch.ones(5, 1)) == 1.0
    kernel = lw.GP(likelihood=lw.StudentT()).fit((normal(4001, 2), y - 7.0)).kernel
    assert kernel == near_variance(y) * lw.gp.Matern(lengthscales(normal(4001, 2)))


def test_a_weight_of_gaussian_noise_is_refused() -> None:
    """The solves know none; what it would mean is a relative noise."""
    with refused(ConfigError, "Got Gaussian(weight=3). Try fit((x, y), relative_noise=1 / w)"):
        lw.GP(lw.gp.RBF(), lw.Gaussian(4.0, weight=3.0))
    x, y = normal(9, 1), normal(9, 1, seed=1)
    thrice = lw.GP(lw.gp.RBF(), lw.Gaussian(4.0)).fit((x.repeat(3, 1), y.repeat(3, 1)))
    weighted = lw.GP(lw.gp.RBF(), lw.Gaussian(4.0)).fit((x, y), relative_noise=torch.full((9,), 1 / 3))
    torch.testing.assert_close(weighted.mean(x), thrice.mean(x))  # type: ignore[union-attr]
