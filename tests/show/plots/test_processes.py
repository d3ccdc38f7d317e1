from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import lapwing as lw
from lapwing.gp.diagnosis import spectral_basis
from lapwing.ground.errors import ConfigError, ShapeError
from lapwing.show.plots import plot_maps, plot_process, plot_regions
from tests.checker import unchecked
from tests.posterior_cases import normal, refused

X = normal(30, 1)
LINE = torch.linspace(3, -4, 25).double()
PROCESS = lw.GP(lw.gp.Matern(0.7), lw.Gaussian(50.0), features=100).fit((X, X.sin()))
PLANE = lw.GP(lw.gp.RBF(), lw.Gaussian(50.0)).fit((normal(20, 2), normal(20)))


def test_a_line_has_mean_bands_functions_and_data() -> None:
    ax = plot_process(PROCESS, LINE, samples=2)
    lines = {str(line.get_label()): line for line in ax.lines}
    order = LINE.argsort()
    prediction: Any = PROCESS.predict(LINE[order][:, None])
    np.testing.assert_allclose(lines["mean"].get_ydata(), prediction.mean[:, 0])
    np.testing.assert_allclose(lines["30 observations"].get_xdata(), X[:, 0])
    drawn = PROCESS.sample_functions(LINE[order][:, None], 2, generator=0)[0, :, 0]
    np.testing.assert_allclose(lines["2 functions drawn"].get_ydata(), drawn)
    low, high = prediction.interval(noise=True)
    band = np.asarray(ax.collections[0].get_paths()[0].vertices)[:, 1]
    assert (band.min(), band.max()) == pytest.approx((float(low.min()), float(high.max())), rel=1e-6)


def test_maps_lie_over_the_data() -> None:
    mean, deviation = plot_maps(PLANE, side=5)
    inputs = PLANE.data.inputs
    for panel in (mean, deviation):
        assert panel.dataLim.x0 == pytest.approx(float(inputs[:, 0].min()))
        assert panel.dataLim.y1 == pytest.approx(float(inputs[:, 1].max()))
    grid = torch.cartesian_prod(*(torch.linspace(float(c.min()), float(c.max()), 5).double() for c in inputs.mT))
    drawn: Any = deviation.collections[0]
    assert drawn.zmax == pytest.approx(float(PLANE.outputs(grid).std.max()), rel=1e-6)


def test_regions_show_distance_and_basis() -> None:
    basis = spectral_basis(PROCESS.kernel, X, 3)
    above, below = plot_regions(PROCESS, PROCESS.with_solver(lw.solvers.Cholesky()), basis, LINE)
    np.testing.assert_allclose(above.lines[0].get_ydata(), 0, atol=1e-6)
    np.testing.assert_allclose(below.lines[2].get_ydata(), basis(LINE.sort().values[:, None])[:, 2])


def test_a_line_is_of_one_input_and_a_map_of_two() -> None:
    with refused(ShapeError, "a process of 1 inputs and one output"):
        plot_process(PLANE, LINE)
    with refused(ShapeError, "a process of 2 inputs and one output. Got 1 inputs and 1 outputs. Try plot_process"):
        plot_maps(PROCESS)
    with unchecked(), refused(ShapeError, "places [m] of the one input. Got shape [25, 1]. Try x[:, 0]"):
        plot_process(PROCESS, LINE[:, None])
    classes = lw.GP(lw.gp.RBF(), lw.Bernoulli()).fit((X, X > 0))
    with unchecked(), refused(ConfigError, "process to be of type GPPosterior. Got a LaplaceGPPosterior"):
        plot_process(classes, LINE)  # type: ignore[arg-type]


def test_a_line_may_be_an_array() -> None:
    with unchecked():
        ours = plot_process(PROCESS, LINE.numpy(), samples=0)  # type: ignore[arg-type]
    np.testing.assert_array_equal(
        ours.lines[0].get_ydata(), plot_process(PROCESS, LINE, samples=0).lines[0].get_ydata()
    )
