"""Figures of a posterior itself: the trace of its tuning, and its draws against the precision they should have."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from lapwing.evaluation.diagnosis import Diagnosis
from lapwing.ground.canvas import BLUE, GREY, INK, LINES, ORANGE, SKY, axes, panels
from lapwing.ground.errors import ConfigError, DataError, check_kind
from lapwing.ground.precision import wide

if TYPE_CHECKING:
    from matplotlib.axes import Axes


Three = tuple["Axes", "Axes", "Axes"]


def plot_evidence(trace: Sequence[Any], *, ax: Axes | None = None, **kw: Any) -> Axes:
    """Evidence trace: log evidence, or its lower bound, at each step of tuning; on a second axis the prior precisions.

    Args:
        trace: Steps with ``log_marginal`` (nats) and ``prior_precision`` (one number, or one a group). Where one has a
            ``bound``, those of all are drawn.
        ax: Where to draw; ``None`` makes a figure.
        **kw: Passed on to ``Axes.plot`` for the evidence.

    Returns:
        The axes of the evidence; those of the precisions are the last of ``ax.figure.axes``.

    Raises:
        DataError: The trace has no steps.
        ConfigError: ``matplotlib`` is not installed.

    Example:
        >>> from types import SimpleNamespace
        >>> trace = [SimpleNamespace(log_marginal=-9.0 + k, prior_precision=1.0 + k) for k in range(3)]
        >>> plot_evidence(trace).get_ylabel()
        'log evidence / nats'
    """
    check_kind("trace", trace, (Sequence,), "plot_evidence(posterior.trace)")
    if not trace:
        raise DataError("a trace of at least one step", "none", "lw.tune(posterior), which records its steps")
    precisions = torch.stack([wide(torch.as_tensor(step.prior_precision)).flatten() for step in trace])
    groups = precisions.shape[1]
    ax = axes(ax, 6.0, 3.6)
    twin = ax.twinx()
    kw = {"color": BLUE, "marker": "o", "markersize": 4, "linewidth": 1.5} | kw
    bounds = [getattr(step, "bound", None) for step in trace]
    bounded = any(value is not None for value in bounds)
    values = bounds if bounded else [step.log_marginal for step in trace]
    ax.plot(range(len(trace)), [math.nan if value is None else float(value) for value in values], **kw)
    twin.plot(precisions.numpy(force=True), color=ORANGE, linestyle="--", marker="s", markersize=3, linewidth=1)
    twin.set_yscale("log")
    twin.spines["top"].set_visible(False)
    twin.set_ylabel("prior precision" if groups == 1 else f"prior precisions, {groups} groups", color=ORANGE)
    label = "lower bound on log evidence / nats" if bounded else "log evidence / nats"
    measured = any(value is not None for value in values)
    ax.set_ylabel(label if measured else "log evidence (not measured)", color=kw["color"])
    ax.set_xlabel("step")
    ax.locator_params(axis="x", integer=True)
    return ax


def plot_diagnosis(diagnosis: Diagnosis, *, ax: Sequence[Axes] | None = None, **kw: Any) -> Three:
    """Distances against χ²(d) as histogram and QQ plot, and projections by family against N(0, 1).

    Args:
        diagnosis: Result of ``lapwing.diagnose``.
        ax: Three axes to draw on; ``None`` makes a figure with a row of three.
        **kw: Passed on to ``Axes.hist`` for the distances.

    Returns:
        The three axes, histogram first.

    Raises:
        ConfigError: ``matplotlib`` is not installed, or there are not three axes.

    Example:
        >>> import torch
        >>> from lapwing.evaluation.diagnosis import diagnose_samples
        >>> from lapwing.linalg import Diagonal
        >>> found = diagnose_samples(torch.randn(20, 5), torch.zeros(5), Diagonal(torch.ones(5)), directions=0)
        >>> [panel.get_xlabel() for panel in plot_diagnosis(found)]
        ['squared distance d²', 'quantiles of χ²(5)', 'standardised projection z']
    """
    ax = panels(13.2, 3.8, 3) if ax is None else ax
    if len(ax) != 3:
        raise ConfigError("three axes", f"{len(ax)}", "figure.subplots(1, 3)")
    histogram, quantiles, projections = ax
    _histogram(diagnosis, histogram, kw)
    _quantiles(diagnosis, quantiles)
    _projections(diagnosis, projections)
    return histogram, quantiles, projections


def _histogram(diagnosis: Diagnosis, ax: Axes, kw: dict[str, Any]) -> None:
    from scipy import stats

    distances = diagnosis.distances.numpy(force=True)
    bars: dict[str, Any] = {"bins": "sqrt", "density": True, "color": SKY, "edgecolor": "white", "linewidth": 0.8}
    bars |= {"label": f"{len(distances)} draws"} | kw
    ax.hist(distances, **bars)
    chi2: Any = stats.chi2(diagnosis.dimension)
    low = min(distances.min(), chi2.ppf(1e-3))
    high = max(distances.max(), chi2.ppf(1 - 1e-3))
    at = np.linspace(low, high, 400)
    ax.plot(at, chi2.pdf(at), color=INK, linewidth=1.5, label=f"χ²({diagnosis.dimension})")
    ax.set(xlabel="squared distance d²", ylabel="density")
    ax.set_ylim(top=1.45 * ax.dataLim.ymax)  # room for the legend
    title = f"Kolmogorov-Smirnov p = {diagnosis['radius'].p_value:.2g}"
    ax.legend(frameon=False, loc="upper left", title=title, alignment="left")


def _quantiles(diagnosis: Diagnosis, ax: Axes) -> None:
    expected, found = (values.numpy(force=True) for values in diagnosis.quantiles())
    ends = [float(min(expected[0], found[0])), float(max(expected[-1], found[-1]))]
    ax.plot(ends, ends, color=INK, linestyle="--", linewidth=1, label="equal")
    ax.plot(expected, found, color=BLUE, linestyle="none", marker="o", markersize=3, label="draws")
    ax.set(xlabel=f"quantiles of χ²({diagnosis.dimension})", ylabel="quantiles of d²")
    ax.legend(frameon=False)


def _projections(diagnosis: Diagnosis, ax: Axes) -> None:
    """Distribution functions: they show an error of mean or variance at any number of draws, and need no bins."""
    from scipy import stats

    at = np.linspace(-3.5, 3.5, 200)
    ax.plot(at, stats.norm.cdf(at), color=GREY, linewidth=4, alpha=0.6, label="N(0, 1)")
    colours = (ORANGE, BLUE, *LINES[2:])
    for number, family in enumerate(diagnosis.families):
        z = np.sort(family.z.flatten().numpy(force=True))
        share = (np.arange(len(z)) + 0.5) / len(z)
        label = f"{len(family.z)} {family.name}, variance {family.variance:.3g}"
        ax.plot(z, share, color=colours[number % len(colours)], linewidth=1.4, label=label)
    failed = f"{len(diagnosis.rejected)} of {len(diagnosis.checks)} checks reject"
    title = f"{failed if diagnosis.rejected else 'no check rejects'} at level {diagnosis.level:g}"
    ax.set(xlabel="standardised projection z", ylabel="share of draws below", ylim=(0, 1), title=title)
    ax.legend(frameon=False, loc="lower right")
