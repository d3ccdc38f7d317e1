from __future__ import annotations

import numpy as np
import pytest

from lapwing.evaluation.corruptions import Sweep
from lapwing.evaluation.scores import Scores
from lapwing.ground.errors import ConfigError
from lapwing.show.plots import plot_sweep

figure = pytest.importorskip("matplotlib.figure")

ROWS = {name: tuple(Scores({"nll": base * s}) for s in (1, 3)) for name, base in (("fog", 1.0), ("jpeg", 2.0))}
SWEEP = Sweep(Scores({"nll": 0.5}), ROWS, (1, 3))


def test_means_and_quartiles_are_drawn_against_the_severity() -> None:
    ax = figure.Figure().subplots()
    assert plot_sweep(SWEEP, ax=ax) is ax
    (line,), (band,) = ax.lines, ax.collections
    np.testing.assert_allclose(line.get_xydata(), [[0, 0.5], [1, 1.5], [3, 4.5]])
    vertices = band.get_paths()[0].vertices
    assert sorted({float(y) for x, y in vertices if x == 3}) == pytest.approx([3.75, 5.25])
    assert ax.get_xlabel() and ax.get_ylabel() == "nll"
    assert ax.get_legend() is None


def test_predictors_share_axes_in_their_own_colours() -> None:
    ax = plot_sweep(SWEEP, label="plain")
    plot_sweep(SWEEP, label="KFAC", ax=ax)
    first, second = ax.lines
    assert first.get_color() != second.get_color()
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["plain", "KFAC"]
    with pytest.raises(ConfigError, match="score="):
        plot_sweep(SWEEP, "accuracy")
