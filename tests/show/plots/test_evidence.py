"""Curves of evidence, and of stopping."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from lapwing.ground.errors import ConfigError, DataError
from lapwing.show.plots import plot_evidence_curves, plot_stopping
from lapwing.tuning.curve import EvidenceCurve
from tests.checker import unchecked
from tests.posterior_cases import refused

figure = pytest.importorskip("matplotlib.figure")


def curve(best: float, largest: float, error: float = 0.0) -> EvidenceCurve:
    """A parabola, its points in no order."""
    precisions = torch.tensor([1.0, 100.0, 0.01, 10.0, 0.1]).double()
    values = largest - 50 * (precisions / best).log().square()
    return EvidenceCurve(precisions, values, torch.full_like(values, error), "weights")


def test_every_curve_is_a_line_with_its_optimum_marked() -> None:
    curves, ax = {"exact": curve(3.0, -20.0), "KFAC": curve(0.4, -30.0)}, figure.Figure().subplots()
    assert plot_evidence_curves(curves, ax=ax) is ax
    lines, marks = ax.lines[::2], ax.lines[1::2]
    for line, mark, one in zip(lines, marks, curves.values(), strict=True):
        order = one.precisions.argsort()
        np.testing.assert_allclose(line.get_xdata(), one.precisions[order])
        np.testing.assert_allclose(line.get_ydata(), one.log_marginal[order])
        assert line.get_color() == mark.get_color()
        assert mark.get_marker() == "o" and line.get_marker() == "None"
    np.testing.assert_allclose([mark.get_xydata()[0] for mark in marks], [[3.0, -20.0], [0.4, -30.0]])
    assert lines[0].get_color() != lines[1].get_color()
    assert lines[0].get_linestyle() != lines[1].get_linestyle()
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["exact: 3", "KFAC: 0.4"]
    assert ax.get_xscale() == "log" and ax.get_xlabel() == "prior precision" and "nats" in ax.get_ylabel()
    assert not ax.collections


def test_two_standard_errors_are_shaded() -> None:
    one = curve(3.0, -20.0, error=4.0)
    ax = plot_evidence_curves({"draws": one})
    (band,) = ax.collections
    heights = band.get_paths()[0].vertices
    at = heights[np.isclose(heights[:, 0], 10.0), 1]
    middle = float(one.log_marginal[3])
    assert (at.min(), at.max()) == pytest.approx((middle - 8, middle + 8))


def test_what_is_far_below_may_be_left_out_but_no_optimum() -> None:
    near = plot_evidence_curves({"a": curve(3.0, -20.0), "b": curve(1.0, -30.0)}, nats=100.0)
    assert near.get_ylim() == pytest.approx((-120.0, -15.0))
    far = plot_evidence_curves({"a": curve(3.0, -20.0), "b": curve(1.0, -300.0)}, nats=100.0)
    assert far.get_ylim() == pytest.approx((-305.0, -15.0))
    assert plot_evidence_curves({"a": curve(3.0, -20.0)}).get_ylim()[0] < -600


def test_lines_take_options() -> None:
    ax = plot_evidence_curves({"a": curve(3.0, -20.0)}, color="red", linewidth=3)
    assert ax.lines[0].get_linewidth() == 3 and ax.lines[1].get_color() == "red"


def test_nothing_to_draw_is_refused() -> None:
    with refused(DataError, "at least one evidence curve"):
        plot_evidence_curves({})
    with pytest.raises(ConfigError, match="positive nats"):
        plot_evidence_curves({"a": curve(3.0, -20.0)}, nats=-1.0)


@pytest.mark.parametrize("several", [False, True])
def test_curves_have_names(several: bool) -> None:
    one = curve(3.0, -20.0)
    bad: Any = [one] if several else one
    with unchecked(), refused(ConfigError, "curves to be one of Mapping"):
        plot_evidence_curves(bad)


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
