"""The figure of choosing: the trace of tuning."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from lapwing.ground.errors import DataError, check_kind
from lapwing.show.plots.canvas import BLUE, ORANGE, axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes


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
    precisions = torch.stack([torch.as_tensor(step.prior_precision).double().flatten() for step in trace])
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
