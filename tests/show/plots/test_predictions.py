from __future__ import annotations

import pytest
import torch

from lapwing.ground.errors import DataError, ShapeError
from lapwing.show.plots import plot_coverage, plot_residuals
from tests.checker import unchecked
from tests.posterior_cases import normal, refused

MEAN, STD, Y = normal(9), normal(9, seed=1).abs() + 0.1, normal(9, seed=2)


def test_residuals_are_in_standard_deviations() -> None:
    ax = plot_residuals(MEAN, STD, Y)
    (points,) = [line for line in ax.lines if line.get_label() == "held-out rows"]
    torch.testing.assert_close(torch.as_tensor(points.get_ydata()), (Y - MEAN) / STD)
    torch.testing.assert_close(torch.as_tensor(points.get_xdata()), MEAN)


def test_coverage_is_the_share_inside_each_interval() -> None:
    ax = plot_coverage(MEAN, STD, Y)
    levels, share = (torch.as_tensor(values) for values in ax.lines[-1].get_data())
    for level in (0.31, 0.5, 0.83):
        z = torch.special.ndtri(torch.tensor(0.5 + level / 2).double())
        inside = ((Y - MEAN).abs() <= z * STD).double().mean()
        assert float(share[(levels <= level).sum() - 1]) == pytest.approx(float(inside))


@pytest.mark.parametrize("plot", [plot_residuals, plot_coverage])
def test_what_cannot_be_drawn(plot: object) -> None:
    with unchecked(), refused(ShapeError, "shape"):
        plot(MEAN, STD[:3], Y)  # type: ignore[operator]
    with refused(DataError, "std"):
        plot(MEAN, 0 * STD, Y)  # type: ignore[operator]
