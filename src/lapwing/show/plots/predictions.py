"""Figures of predictions: reliability, a band, and predicted numbers against what came."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.canvas import BLUE, GREY, INK, ORANGE, SKY, axes, beside, percent_label
from lapwing.ground.errors import check_fraction
from lapwing.metrics import ece_floor, reliability
from lapwing.metrics.elements import check_all_positive, scalars

if TYPE_CHECKING:
    from matplotlib.axes import Axes


_FIFTHS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)


def plot_reliability(
    probs: Float[Tensor, "*n c"], targets: Tensor, *, bins: int = 15, ax: Axes | None = None, **kw: Any
) -> Axes:
    """Reliability diagram: accuracy in each bin of confidence, its gap to the confidence, and the examples.

    Args:
        probs: Class probabilities.
        targets: Labels ``[*n]``; -100 is ignored.
        bins: Number of equal-width bins.
        ax: Where to draw; ``None`` makes a figure.
        **kw: Passed on to ``Axes.bar`` for the accuracies.

    Returns:
        The axes; the counts are on its inset, ``ax.child_axes[-1]``.

    Raises:
        ShapeError: The shapes do not match.
        DataError: Nothing to draw, or not probabilities, or labels outside the classes.
        ConfigError: ``matplotlib`` is not installed, or fewer than one bin.

    Example:
        >>> import torch
        >>> ax = plot_reliability(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([0, 1]))
        >>> ax.get_xlabel(), ax.get_ylabel()
        ('confidence', 'accuracy')
    """
    r = reliability(probs, targets, bins)
    full = r.count > 0
    left, confidence, accuracy, count = (
        values[full].numpy(force=True) for values in (r.edges[:-1], r.confidence, r.accuracy, r.count)
    )
    ax = axes(ax, 4.2, 4.8)
    place: dict[str, Any] = {"x": left, "width": 1 / bins, "align": "edge"}
    kw = {"color": SKY, "edgecolor": "white", "linewidth": 0.8, "label": "accuracy"} | kw
    gap: dict[str, Any] = {"facecolor": "none", "edgecolor": ORANGE, "hatch": "////", "linewidth": 0.8}
    ax.bar(**place, height=accuracy, **kw)
    ax.bar(**place, **gap, height=confidence - accuracy, bottom=accuracy, label="gap to confidence")
    ax.plot([0, 1], [0, 1], color=INK, linestyle="--", linewidth=1, label="calibrated")
    ax.axhline(0, color=INK, linewidth=0.8)
    ax.set(xlim=(0, 1), ylim=(-0.34, 1.02), xticks=_FIFTHS, yticks=_FIFTHS)
    ax.set(xlabel="confidence", ylabel="accuracy")
    floor = ece_floor(probs, targets, bins)
    title = f"ECE {100 * r.error:.1f} % (calibrated {100 * floor:.1f} %)\nn = {int(count.sum()):,}"
    look: dict[str, Any] = {"frameon": False, "title": title, "alignment": "left", "fontsize": 8, "title_fontsize": 8}
    below = beside(ax, up=-0.45)  # inside it would hide bars, and be wider than a narrow panel
    ax.legend(loc="upper left", bbox_to_anchor=(0.0, 0.0), bbox_transform=below, borderaxespad=0.0, **look)
    inset = ax.inset_axes((0.0, 0.0, 1.0, 0.2), facecolor="none")
    inset.bar(**place, height=count, color=GREY, edgecolor="white", linewidth=0.8)
    inset.set(xlim=(0, 1), ylim=(0, 1.05 * count.max()), xticks=[], yticks=[count.max()], ylabel="examples")
    inset.spines[["top", "right"]].set_visible(False)
    ax.yaxis.set_label_coords(0.0, 0.62, transform=beside(ax, right=-0.45))
    inset.yaxis.set_label_coords(0.0, 0.5, transform=beside(inset, right=-0.45))
    return ax


def plot_band(
    x: Float[Tensor, "*n"],
    mean: Tensor,
    std: Tensor,
    *,
    noise_std: float | Tensor | None = None,
    level: float = 0.95,
    ax: Axes | None = None,
    **kw: Any,
) -> Axes:
    """Regression band: mean and central interval of a Gaussian prediction along one input.

    Args:
        x: Inputs, in any order.
        mean: Predictive means, of the same shape.
        std: Standard deviations of the function, without observation noise, of the same shape.
        noise_std: Standard deviation of the noise; adds the interval of observations, mean ± z √(std²
            + noise²).
        level: Probability of the interval.
        ax: Where to draw; ``None`` makes a figure.
        **kw: Passed on to ``Axes.plot`` for the mean.

    Returns:
        The axes.

    Raises:
        ShapeError: The shapes differ.
        DataError: Empty or not finite.
        ConfigError: ``matplotlib`` is not installed, or a level outside (0, 1).

    Example:
        >>> x = torch.linspace(0, 1, 5)
        >>> len(plot_band(x, x**2, x, noise_std=0.1).collections)
        2
    """
    check_fraction("level", level, "level=0.95")
    noise = torch.as_tensor(0.0 if noise_std is None else noise_std).to(x).expand_as(x)
    numbers = scalars(x=x, mean=mean, std=std, noise_std=noise)
    order = numbers[0].argsort()
    at, centre, spread, extra = (values[order].numpy(force=True) for values in numbers)
    z = float(torch.special.ndtri(torch.tensor(0.5 + level / 2, dtype=torch.float64)))
    bands = {"functions": (spread, 0.4)}
    if noise_std is not None:
        bands = {"observations": ((spread**2 + extra**2) ** 0.5, 0.15)} | bands
    ax = axes(ax, 6.0, 3.6)
    for name, (deviation, alpha) in bands.items():
        low = centre - z * deviation
        high = centre + z * deviation
        label = f"{100 * level:g} % of {name}"
        ax.fill_between(at, low, high, color=BLUE, alpha=alpha, linewidth=0, label=label)
    kw = {"color": INK, "linewidth": 1.5, "label": "mean"} | kw
    ax.plot(at, centre, **kw)
    ax.set(xlabel="x", ylabel="y")
    ax.margins(x=0)
    ax.legend(frameon=False)
    return ax


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
    ax.xaxis.set_major_formatter(percent_label)
    ax.yaxis.set_major_formatter(percent_label)
    ax.legend(frameon=False)
    return ax
