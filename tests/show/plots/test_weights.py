"""Figures of weights: draws, intervals, pruning."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from lapwing.evaluation.diagnosis import Diagnosis, diagnose_samples
from lapwing.ground.errors import ConfigError, DataError, ShapeError
from lapwing.linalg import Diagonal
from lapwing.show.plots import plot_intervals, plot_pruning
from lapwing.show.plots.weights import plot_diagnosis
from tests.posterior_cases import refused

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


figure = pytest.importorskip("matplotlib.figure")


def test_intervals_of_every_method_stand_side_by_side() -> None:
    weights, ax = torch.tensor([1.0, -2.0, 3.0]), figure.Figure().subplots()
    deviations = {"a": torch.tensor([0.1, 0.2, 0.3]), "b": torch.tensor([1.0, 2.0, 3.0])}
    assert plot_intervals(weights, deviations, which=[2, 0], ax=ax) is ax
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["a", "b"]
    for bars, std in zip(ax.containers, deviations.values(), strict=True):
        np.testing.assert_allclose(bars[0].get_ydata(), [3.0, 1.0])
        ends = [segment[:, 1] for segment in bars[2][0].get_segments()]
        np.testing.assert_allclose(ends, [[3.0 - std[2], 3.0 + std[2]], [1.0 - std[0], 1.0 + std[0]]], rtol=1e-6)
    assert ax.containers[0][0].get_xdata()[0] < 0 < ax.containers[1][0].get_xdata()[0]
    assert [label.get_text() for label in ax.get_xticklabels()] == ["2", "0"]


def test_thirty_weights_are_shown() -> None:
    ax = plot_intervals(torch.ones(40), {"a": torch.ones(40)})
    assert len(ax.containers[0][0].get_xdata()) == 30


def test_pruning_curves() -> None:
    ax = plot_pruning({"a": ([0.0, 0.5], [0.1, 0.2]), "b": ([0.1], [0.3])}, linestyle=":")
    assert [list(line.get_ydata()) for line in ax.lines] == [[0.1, 0.2], [0.3]]
    assert ax.lines[0].get_linestyle() == ":" and ax.lines[0].get_color() != ax.lines[1].get_color()


def test_nothing_to_draw() -> None:
    with refused(DataError, "at least one method"):
        plot_intervals(torch.ones(2), {})
    with refused(ShapeError, "one a weight"):
        plot_intervals(torch.ones(2), {"a": torch.ones(3)})
    with refused(DataError, "at least one curve"):
        plot_pruning({})
