"""The figure of a diagnosis."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from lapwing.evaluation.diagnosis import Diagnosis, diagnose_samples
from lapwing.ground.errors import ConfigError
from lapwing.linalg import Diagonal
from lapwing.show.plots.posteriors import plot_diagnosis

matplotlib = pytest.importorskip("matplotlib.figure")
colors = pytest.importorskip("matplotlib.colors")

SIZE, DRAWS = 12, 50


def found(scale: float = 1.0) -> Diagnosis:
    generator = torch.Generator().manual_seed(0)
    precision = Diagonal(torch.linspace(1, 30, SIZE, dtype=torch.float64))
    noise = torch.randn(SIZE, DRAWS, dtype=torch.float64, generator=generator)
    samples = scale * (precision.inverse_root() @ noise).mT
    units = torch.eye(SIZE, dtype=torch.float64)
    directions = {"stiff": units[:, -3:], "sloppy": units[:, :2]}
    return diagnose_samples(samples, torch.zeros(SIZE).double(), precision, directions=directions)


def test_panels_are_drawn_where_asked_and_labelled() -> None:
    panels = matplotlib.Figure().subplots(1, 3)
    assert plot_diagnosis(found(), ax=list(panels)) == tuple(panels)
    own = plot_diagnosis(found())
    assert own[0].figure is not panels[0].figure
    assert own[0].figure.axes == list(own)
    assert all(panel.get_xlabel() and panel.get_ylabel() for panel in own)
    own[0].figure.savefig("/dev/null", format="png")
    with pytest.raises(ConfigError, match=r"three axes\. Got 2"):
        plot_diagnosis(found(), ax=list(panels[:2]))


def test_the_histogram_holds_all_draws_and_the_density_is_that_of_chi2() -> None:
    diagnosis = found()
    ax = plot_diagnosis(diagnosis, color="red")[0]
    bars = ax.containers[0]
    assert sum(bar.get_height() * bar.get_width() for bar in bars) == pytest.approx(1)
    assert min(bar.get_x() for bar in bars) == pytest.approx(float(diagnosis.distances.min()))
    assert bars[0].get_facecolor() == colors.to_rgba("red")
    at, density = ax.lines[0].get_data()
    np.testing.assert_allclose(density, stats.chi2(SIZE).pdf(at))
    assert ax.get_legend().get_title().get_text() == f"Kolmogorov-Smirnov p = {diagnosis['radius'].p_value:.2g}"


def test_the_quantiles_lie_on_the_diagonal_when_draws_are_right_and_off_it_when_not() -> None:
    for scale, off in ((1.0, False), (2.0, True)):
        ax = plot_diagnosis(found(scale))[1]
        expected, drawn = ax.lines[1].get_data()
        np.testing.assert_allclose(drawn, found(scale).distances.sort().values.numpy())
        assert (float(np.median(drawn / expected)) > 3) is off
        assert float(np.median(drawn / expected)) == pytest.approx(scale**2, rel=0.1)


def test_each_family_has_its_distribution_function() -> None:
    diagnosis = found()
    ax = plot_diagnosis(diagnosis)[2]
    for line, family in zip(ax.lines[1:], diagnosis.families, strict=True):
        z, share = line.get_data()
        np.testing.assert_allclose(z, family.z.flatten().sort().values.numpy())
        assert share[0] == pytest.approx(0.5 / len(z)) and share[-1] == pytest.approx(1 - 0.5 / len(z))
        assert line.get_label() == f"{len(family.z)} {family.name}, variance {family.variance:.3g}"
    assert len({line.get_color() for line in ax.lines}) == 3
