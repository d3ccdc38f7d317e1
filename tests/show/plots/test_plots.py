from __future__ import annotations

import copy
import itertools
import sys
from collections.abc import Generator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from lapwing.evaluation.diagnosis import diagnose_samples
from lapwing.ground.canvas import panels
from lapwing.ground.errors import ConfigError, DataError, ShapeError
from lapwing.linalg import Diagonal
from lapwing.metrics import ece, ece_floor, reliability
from lapwing.show.plots import (
    plot_band,
    plot_diagnosis,
    plot_evidence,
    plot_reliability,
)

matplotlib = pytest.importorskip("matplotlib")
figure = pytest.importorskip("matplotlib.figure")
colors = pytest.importorskip("matplotlib.colors")

PROBS = (2 * torch.randn(300, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)).softmax(-1)
TARGETS = torch.randint(0, 4, (300,), generator=torch.Generator().manual_seed(2))
X = torch.linspace(-1, 1, 9, dtype=torch.float64)
TRACE = [SimpleNamespace(log_marginal=-10.0 + k, prior_precision=2.0**k) for k in range(4)]
FIGURES = [
    (plot_reliability, (PROBS, TARGETS)),
    (plot_band, (X, X**2, 0.1 + X.abs())),
    (plot_evidence, (TRACE,)),
]


def heights(container: Any) -> np.ndarray:
    return np.array([bar.get_height() for bar in container])


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    """No setting of matplotlib is changed, and pyplot, which keeps figures for all, cannot be imported."""
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    before = copy.deepcopy(settings())
    yield
    assert settings() == before


def settings() -> dict[str, Any]:
    """But for the backend, which would be chosen by being read."""
    return {name: matplotlib.rcParams[name] for name in matplotlib.rcParams if name != "backend"}


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(("plot", "arguments"), FIGURES)
def test_every_figure_is_drawn_where_asked_and_labelled(plot, arguments) -> None:
    ax = figure.Figure().subplots()
    assert plot(*arguments, ax=ax) is ax
    own = plot(*arguments)
    assert own.figure is not ax.figure
    assert own.get_xlabel() and own.get_ylabel()
    own.figure.savefig("/dev/null", format="png")


@pytest.mark.usefixtures("alone")
def test_a_diagnosis_is_drawn(generator: torch.Generator) -> None:
    draws = torch.randn(9, 3, generator=generator)
    found = diagnose_samples(draws, torch.zeros(3), Diagonal(torch.ones(3)), directions=0)
    panels = plot_diagnosis(found)
    panels[0].figure.savefig("/dev/null", format="png")
    assert all(panel.get_xlabel() for panel in panels)


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ConfigError, match=r"pip install '\.\[plot\]'"):
        plot_evidence(TRACE)


def test_reliability_bars_are_the_accuracies_the_gaps_and_the_counts() -> None:
    r = reliability(PROBS, TARGETS, bins=10)
    full = (r.count > 0).numpy()
    ax = plot_reliability(PROBS, TARGETS, bins=10)
    accuracy, gap = ax.containers
    np.testing.assert_allclose(heights(accuracy), r.accuracy.numpy()[full])
    np.testing.assert_allclose([bar.get_x() for bar in accuracy], r.edges.numpy()[:-1][full])
    np.testing.assert_allclose([bar.get_width() for bar in accuracy], 0.1)
    np.testing.assert_allclose([bar.get_y() for bar in gap], r.accuracy.numpy()[full])
    np.testing.assert_allclose(heights(gap), (r.confidence - r.accuracy).numpy()[full])
    counts = ax.child_axes[-1]
    np.testing.assert_array_equal(heights(counts.containers[0]), r.count.numpy()[full])
    assert counts.get_xlim() == ax.get_xlim() == (0, 1)
    title = ax.get_legend().get_title().get_text()
    floor = 100 * ece_floor(PROBS, TARGETS, 10)
    assert title == f"ECE {100 * ece(PROBS, TARGETS, 10):.1f} % (calibrated {floor:.1f} %)\nn = 300"


def test_labels_and_legends_of_narrow_panels_lie_beside_one_another() -> None:
    axes: list[Any] = list(panels(9.9, 3.9, 3))
    for ax in axes:
        plot_reliability(PROBS, TARGETS, ax=ax)
    drawn: Any = axes[0].figure
    drawn.draw_without_rendering()
    boxes = list[Any]()
    for ax in axes:
        for part in (ax, ax.child_axes[-1]):
            labels = [part.yaxis.label, *part.get_yticklabels()]
            boxes += [label.get_window_extent() for label in labels if label.get_text() and label.get_visible()]
        boxes += [ax.xaxis.label.get_window_extent(), ax.get_legend().get_window_extent(), ax.get_window_extent()]
    apart = [one.overlaps(other) for one, other in itertools.combinations(boxes, 2)]
    assert len(boxes) > 24 and not any(apart)
    assert all(box.x0 >= 0 and box.x1 <= drawn.bbox.x1 and box.y0 >= 0 for box in boxes)


def test_options_reach_the_main_artist() -> None:
    red = colors.to_rgba("red")
    assert plot_reliability(PROBS, TARGETS, color="red").containers[0][0].get_facecolor() == red
    assert colors.to_rgba(plot_band(X, X, X.abs(), color="red").lines[0].get_color()) == red
    assert colors.to_rgba(plot_evidence(TRACE, color="red").lines[0].get_color()) == red


def band_at(band: Any, x: float) -> tuple[float, float]:
    vertices = band.get_paths()[0].vertices
    values = vertices[np.isclose(vertices[:, 0], x), 1]
    return float(values.min()), float(values.max())


@pytest.mark.parametrize("noise", [0.3, torch.full_like(X, 0.3)])
def test_bands_are_the_central_intervals(noise: float | Tensor, generator: torch.Generator) -> None:
    shuffled = torch.randperm(9, generator=generator)
    mean, std = X**2, 0.1 + X.abs()
    ax = plot_band(X[shuffled], mean[shuffled], std[shuffled], noise_std=noise, level=0.9)
    np.testing.assert_allclose(ax.lines[0].get_xdata(), X.numpy())
    np.testing.assert_allclose(ax.lines[0].get_ydata(), mean.numpy())
    observations, functions = ax.collections
    z = 1.6448536269514722
    for x, m, s in zip(X.tolist(), mean.tolist(), std.tolist(), strict=True):
        assert band_at(functions, x) == pytest.approx((m - z * s, m + z * s))
        total = (s**2 + 0.09) ** 0.5
        assert band_at(observations, x) == pytest.approx((m - z * total, m + z * total))
    assert [text.get_text() for text in ax.get_legend().get_texts()] == [
        "90 % of observations",
        "90 % of functions",
        "mean",
    ]


def test_without_noise_there_is_one_band_and_columns_are_accepted() -> None:
    ax = plot_band(X[:, None], X[:, None], X[:, None].abs())
    assert len(ax.collections) == 1
    np.testing.assert_allclose(ax.lines[0].get_ydata(), X.numpy())


def test_evidence_and_precisions_are_drawn_step_by_step() -> None:
    ax = plot_evidence(TRACE)
    twin = ax.figure.axes[-1]
    np.testing.assert_allclose(ax.lines[0].get_ydata(), [-10, -9, -8, -7])
    np.testing.assert_allclose(twin.lines[0].get_ydata(), [1, 2, 4, 8])
    assert (twin.get_yscale(), twin.get_ylabel()) == ("log", "prior precision")


@pytest.mark.parametrize("precision", [(1.0, 3.0), torch.tensor([1.0, 3.0])])
def test_each_group_has_its_line(precision: object) -> None:
    trace = [SimpleNamespace(log_marginal=0.0, prior_precision=precision)] * 3
    twin = plot_evidence(trace).figure.axes[-1]
    assert [line.get_ydata()[0] for line in twin.lines] == [1, 3]
    assert twin.get_ylabel() == "prior precisions, 2 groups"


@pytest.mark.parametrize(
    ("plot", "arguments", "options", "error", "message"),
    [
        (plot_reliability, (PROBS, TARGETS), {"bins": 0}, ConfigError, "bins of at least 1"),
        (plot_reliability, (PROBS.log(), TARGETS), {}, DataError, "sum to 1"),
        (plot_band, (X, X[:3], X), {}, ShapeError, r"mean of the shape of x, \[9\]"),
        (plot_band, (X, X, X), {"level": 95.0}, ConfigError, "level between 0 and 1. Got level=95.0"),
        (plot_evidence, ([],), {}, DataError, "at least one step. Got none"),
    ],
)
def test_bad_input_costs_a_sentence(plot, arguments, options, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        plot(*arguments, **options)


def test_a_bound_is_drawn_as_one_and_nothing_measured_is_said() -> None:
    steps = [SimpleNamespace(log_marginal=None, bound=-3.0 - k, prior_precision=2.0) for k in range(3)]
    ax = plot_evidence(steps)
    assert ax.get_ylabel() == "lower bound on log evidence / nats"
    np.testing.assert_allclose(ax.lines[0].get_ydata(), [-3.0, -4.0, -5.0])
    unknown = [SimpleNamespace(log_marginal=None, prior_precision=2.0)]
    assert plot_evidence(unknown).get_ylabel() == "log evidence (not measured)"
