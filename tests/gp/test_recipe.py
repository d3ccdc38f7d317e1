"""Where hyper-parameters start."""

from __future__ import annotations

import pytest
import torch

import lapwing as lw
from lapwing.gp.recipe import lengthscales
from lapwing.ground.errors import DataWarning
from tests.posterior_cases import normal


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
