from __future__ import annotations

import numpy as np
import pytest
import torch

from lapwing.ground.errors import DataError, ShapeError
from lapwing.show.plots import plot_intervals, plot_pruning
from tests.posterior_cases import refused

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
    with refused(DataError, expected="at least one method", got="none", hint="std"):
        plot_intervals(torch.ones(2), {})
    with refused(ShapeError, expected="[2]", got="[3] of a", hint="one a weight"):
        plot_intervals(torch.ones(2), {"a": torch.ones(3)})
    with refused(DataError, expected="at least one curve", got="none", hint="name"):
        plot_pruning({})
