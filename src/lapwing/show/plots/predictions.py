"""Figures of predictions: reliability, confidence, rejection, a band, a sweep over corruptions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.evaluation.corruptions import Sweep
from lapwing.evaluation.metrics import RejectionCurve, auroc, ece_floor, reliability
from lapwing.evaluation.metrics.elements import scalars
from lapwing.ground.errors import DataError, check_fraction
from lapwing.show.plots.canvas import BLUE, GREY, INK, ORANGE, SKY, axes, colour, percent

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
    title = f"ECE {100 * r.error:.1f} % (calibrated {100 * floor:.1f} %), n = {int(count.sum()):,}"
    ax.legend(loc="upper left", frameon=False, title=title, alignment="left")
    inset = ax.inset_axes((0.0, 0.0, 1.0, 0.2), facecolor="none")
    inset.bar(**place, height=count, color=GREY, edgecolor="white", linewidth=0.8)
    inset.set(xlim=(0, 1), ylim=(0, 1.05 * count.max()), xticks=[], yticks=[count.max()], ylabel="examples")
    inset.spines[["top", "right"]].set_visible(False)
    ax.yaxis.set_label_coords(-0.15, 0.62)
    inset.yaxis.set_label_coords(-0.15, 0.5)
    return ax


def plot_rejection(curve: RejectionCurve, *, ax: Axes | None = None, **kw: Any) -> Axes:
    """Rejection curve: accuracy of the examples kept against the share rejected; call again to add another.

    Args:
        curve: Result of ``metrics.rejection_curve``.
        ax: Where to draw; ``None`` makes a figure.
        **kw: Passed on to ``Axes.plot``; the legend shows the ``label`` and the area under the curve.

    Returns:
        The axes.

    Raises:
        ConfigError: ``matplotlib`` is not installed.

    Example:
        >>> curve = RejectionCurve(torch.tensor([0.0, 0.5]), torch.tensor([0.5, 1.0]))
        >>> plot_rejection(curve, label="KFAC").get_legend_handles_labels()[1]
        ['KFAC, area 0.750']
    """
    ax = axes(ax, 4.8, 3.6)
    label = ", ".join([*([kw["label"]] if "label" in kw else []), f"area {curve.area:.3f}"])
    kw = {"color": colour(len(ax.lines)), "linewidth": 1.6} | kw | {"label": label}
    ax.plot(curve.fraction.numpy(force=True), curve.accuracy.numpy(force=True), **kw)
    ax.set(xlim=(0, 1), xlabel="least confident examples rejected", ylabel="accuracy of the others")
    ax.xaxis.set_major_formatter(percent)
    ax.yaxis.set_major_formatter(percent)
    ax.legend(frameon=False, loc="best")
    return ax


def plot_confidence(
    in_conf: Float[Tensor, "*n"],
    out_conf: Float[Tensor, "*m"],
    *,
    bins: int = 30,
    ax: Axes | None = None,
    **kw: Any,
) -> Axes:
    """Confidence histograms: how sure the network is in distribution and out of it, and the AUROC of the two.

    Args:
        in_conf: Confidences of in-distribution examples, the largest probability of each.
        out_conf: Confidences of out-of-distribution examples.
        bins: Number of equal-width bins over [0, 1].
        ax: Where to draw; ``None`` makes a figure.
        **kw: Passed on to both calls of ``Axes.hist``.

    Returns:
        The axes.

    Raises:
        DataError: A side is empty, or has a number outside [0, 1].
        ConfigError: ``matplotlib`` is not installed.

    Example:
        >>> ax = plot_confidence(torch.tensor([0.9, 1.0]), torch.tensor([0.5]))
        >>> ax.get_legend().get_title().get_text()
        'AUROC 1.000'
    """
    separation = auroc(-in_conf, -out_conf)
    ax = axes(ax, 5.4, 3.6)
    sides = (("in distribution", in_conf, BLUE, None), ("out of distribution", out_conf, ORANGE, "////"))
    for name, confidences, color, hatch in sides:
        values = confidences.detach().double().flatten().cpu()
        low, high = float(values.min()), float(values.max())
        if low < 0 or high > 1 + 1e-3:
            raise DataError("confidences in [0, 1]", f"{low:.3g} to {high:.3g} {name}", "probs.amax(-1)")
        label = f"{name}, n = {values.numel():,}"
        look = {"facecolor": (color, 0.3), "edgecolor": color, "hatch": hatch, "label": label}
        share = torch.full_like(values, 1 / values.numel()).numpy()
        bars: dict[str, Any] = {"histtype": "stepfilled", "range": (0, 1), "weights": share} | look | kw
        ax.hist(values.clamp(max=1).numpy(), bins, **bars)
    ax.set(xlim=(0, 1), xlabel="confidence", ylabel="share of examples")
    ax.set_ylim(top=1.4 * ax.dataLim.ymax)  # room for the legend
    ax.yaxis.set_major_formatter(percent)
    ax.legend(frameon=False, loc="upper center", title=f"AUROC {separation:.3f}", alignment="left")
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
        low, high = centre - z * deviation, centre + z * deviation
        label = f"{100 * level:g} % of {name}"
        ax.fill_between(at, low, high, color=BLUE, alpha=alpha, linewidth=0, label=label)
    kw = {"color": INK, "linewidth": 1.5, "label": "mean"} | kw
    ax.plot(at, centre, **kw)
    ax.set(xlabel="x", ylabel="y")
    ax.margins(x=0)
    ax.legend(frameon=False)
    return ax


def plot_sweep(sweep: Sweep, score: str = "nll", *, ax: Axes | None = None, **kw: Any) -> Axes:
    """Corruption sweep: one score against the severity, its mean and its quartiles over the corruptions.

    Call again with the same axes to add another predictor.

    Args:
        sweep: Result of ``corruptions.corruption_sweep``.
        score: Which of its scores.
        ax: Where to draw; ``None`` makes a figure.
        **kw: Passed on to ``Axes.plot``, such as ``label``.

    Returns:
        The axes.

    Raises:
        ConfigError: There is no such score, or ``matplotlib`` is not installed.

    Example:
        >>> from lapwing.evaluation.scores import Scores
        >>> sweep = Sweep(Scores({"nll": 0.2}), {"fog": (Scores({"nll": 0.3}), Scores({"nll": 0.7}))}, (1, 5))
        >>> plot_sweep(sweep, label="KFAC").get_ylabel()
        'nll'
    """
    means, values = sweep.by_severity(score), sweep.values(score).double().cpu()
    ax = axes(ax, 4.8, 3.6)
    look: dict[str, Any] = {"color": colour(len(ax.lines)), "marker": "o", "markersize": 4} | kw
    ax.plot(list(means), list(means.values()), **look)
    low, high = values.quantile(0.25, 0).numpy(), values.quantile(0.75, 0).numpy()
    ax.fill_between(list(means)[1:], low, high, color=look["color"], alpha=0.15, linewidth=0)
    ax.set(xlabel="severity of the corruption (0: clean)", ylabel=score)
    ax.locator_params(axis="x", integer=True)
    if "label" in kw:
        ax.legend(frameon=False)
    return ax
