"""The reliability diagram."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jaxtyping import Float
from torch import Tensor

from lapwing.evaluation.metrics import ece_floor, reliability
from lapwing.show.plots.canvas import GREY, INK, ORANGE, SKY, axes

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
