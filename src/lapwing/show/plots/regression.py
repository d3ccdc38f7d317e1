"""Figures of predicted numbers against what came: residuals, coverage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.evaluation.metrics.elements import check_all_positive, scalars
from lapwing.show.plots.canvas import BLUE, INK, SKY, axes, percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_residuals(
    mean: Float[Tensor, "*n"], std: Tensor, targets: Tensor, *, ax: Axes | None = None, **kw: Any
) -> Axes:
    """Residuals in standard deviations against the prediction, and the band that holds 95 % of right ones.

    Args:
        mean: Predictive means.
        std: Predictive standard deviations, noise included, of the same shape.
        targets: Observations of the same shape.
        ax: Where to draw; ``None`` makes a figure.
        **kw: Passed on to ``Axes.plot`` for the points.

    Returns:
        The axes.

    Raises:
        ShapeError: The shapes differ.
        DataError: Empty or not finite, or a standard deviation that is not positive.
        ConfigError: ``matplotlib`` is not installed.

    Example:
        >>> plot_residuals(torch.zeros(5), torch.ones(5), torch.linspace(-2, 2, 5)).get_xlabel()
        'predicted mean'
    """
    numbers = scalars(mean=mean, std=std, targets=targets)
    check_all_positive("std", numbers[1])
    centre, spread, y = (values.numpy(force=True) for values in numbers)
    ax = axes(ax, 5.4, 3.6)
    ax.axhspan(-1.96, 1.96, color=SKY, alpha=0.25, linewidth=0, label="95 %")
    ax.axhline(0, color=INK, linewidth=0.8)
    look: dict[str, Any] = {"linestyle": "none", "marker": "o", "markersize": 2.5, "color": BLUE, "alpha": 0.6}
    look |= {"label": "held-out rows"} | kw
    ax.plot(centre, (y - centre) / spread, **look)
    ax.set(xlabel="predicted mean", ylabel="residual / predicted std")
    ax.legend(frameon=False)
    return ax


def plot_coverage(
    mean: Float[Tensor, "*n"], std: Tensor, targets: Tensor, *, ax: Axes | None = None, **kw: Any
) -> Axes:
    """Calibration of Gaussian intervals: the share of targets inside, against the level of the central interval.

    Args:
        mean: Predictive means.
        std: Predictive standard deviations, noise included, of the same shape.
        targets: Observations of the same shape.
        ax: Where to draw; ``None`` makes a figure.
        **kw: Passed on to ``Axes.plot`` for the curve.

    Returns:
        The axes.

    Raises:
        ShapeError: The shapes differ.
        DataError: Empty or not finite, or a standard deviation that is not positive.
        ConfigError: ``matplotlib`` is not installed.

    Example:
        >>> ax = plot_coverage(torch.zeros(5), torch.ones(5), torch.linspace(-2, 2, 5))
        >>> ax.get_xlabel(), ax.get_ylabel()
        ('level of the interval', 'targets inside')
    """
    centre, spread, y = scalars(mean=mean, std=std, targets=targets)
    check_all_positive("std", spread)
    levels = torch.erf(((y - centre) / spread).abs() / 2**0.5).sort().values.numpy(force=True)
    share = torch.arange(1, len(levels) + 1).numpy() / len(levels)
    ax = axes(ax, 4.4, 4.0)
    ax.plot([0, 1], [0, 1], color=INK, linestyle="--", linewidth=1, label="calibrated")
    look: dict[str, Any] = {"where": "post", "color": BLUE, "linewidth": 1.6, "label": "found"} | kw
    ax.step([0, *levels, 1], [0, *share, 1], **look)
    ax.set(xlim=(0, 1), ylim=(0, 1), xlabel="level of the interval", ylabel="targets inside")
    ax.xaxis.set_major_formatter(percent)
    ax.yaxis.set_major_formatter(percent)
    ax.legend(frameon=False)
    return ax
