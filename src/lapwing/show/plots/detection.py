"""Figures of what an uncertainty finds: rejection curve and confidence histograms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.evaluation.metrics import RejectionCurve, auroc
from lapwing.ground.errors import DataError
from lapwing.show.plots.canvas import BLUE, LINES, ORANGE, axes, percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes


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
    kw = {"color": LINES[len(ax.lines) % len(LINES)], "linewidth": 1.6} | kw | {"label": label}
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
