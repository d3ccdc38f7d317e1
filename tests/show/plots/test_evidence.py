"""Curves of stopping."""

from __future__ import annotations

import numpy as np
import pytest

from lapwing.ground.errors import DataError
from lapwing.show.plots import plot_stopping
from tests.posterior_cases import refused

figure = pytest.importorskip("matplotlib.figure")


FIRST, SECOND = ((0, 0.1), (50, 0.9), (100, 0.4), (150, 0.5)), ((0, 1.1), (100, 0.3))


def test_every_trace_is_a_line_with_the_minimum_of_the_data_marked() -> None:
    ax = figure.Figure().subplots()
    assert plot_stopping({"a": FIRST, "b": SECOND}, ax=ax) is ax
    lines, marks = ax.lines[::2], ax.lines[1::2]
    np.testing.assert_allclose(lines[0].get_xydata(), FIRST)
    np.testing.assert_allclose([mark.get_xydata()[0] for mark in marks], [(100, 0.4), (100, 0.3)])
    assert lines[0].get_color() == marks[0].get_color() != lines[1].get_color()
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["a: 100", "b: 100"]
    assert ax.get_xlabel() == "training examples" and "nats" in ax.get_ylabel()


def test_a_single_trace_needs_no_name_and_takes_a_style() -> None:
    ax = plot_stopping(list(FIRST), color="red")
    assert ax.lines[0].get_color() == "red" and ax.get_legend().get_texts()[0].get_text() == "100 examples"


@pytest.mark.parametrize("traces", [(), {}, {"a": FIRST, "b": ((0, 1.0),)}])
def test_no_trace_is_refused(traces: object) -> None:
    with refused(DataError, "at least one point"):
        plot_stopping(traces)  # pyright: ignore[reportArgumentType]
