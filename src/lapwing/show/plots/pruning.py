"""Uncertain weights: their intervals, and what a network loses without them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.errors import DataError, ShapeError
from lapwing.show.plots.canvas import INK, LINES, axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_intervals(
    weights: Float[Tensor, " d"],
    deviations: Mapping[str, Tensor],
    *,
    which: Sequence[int] | None = None,
    ax: Axes | None = None,
    **kw: Any,
) -> Axes:
    """Intervals of single weights, one standard deviation to each side, side by side for several methods.

    Args:
        weights: The trained weights.
        deviations: Standard deviations by name of the method.
        which: Which weights to show; ``None`` shows the first 30.
        ax: Where to draw; ``None`` makes a figure.
        **kw: Passed on to ``Axes.errorbar``.

    Returns:
        The axes.

    Raises:
        ConfigError: ``matplotlib`` is not installed.
        DataError: There is no method.
        ShapeError: A method has not one standard deviation a weight.

    Example:
        >>> import torch
        >>> ax = plot_intervals(torch.tensor([1.0, -1.0]), {"full Hessian": torch.tensor([0.5, 2.0])})
        >>> ax.get_ylabel()
        'weight ± std'
    """
    if not deviations:
        raise DataError("standard deviations of at least one method", "none", "{'name': weight_uncertainty(...).std}")
    for name, std in deviations.items():
        if std.shape != weights.shape:
            raise ShapeError(
                f"{list(weights.shape)} standard deviations", f"{list(std.shape)} of {name}", "one a weight"
            )
    chosen = list(range(min(30, len(weights)))) if which is None else list(which)
    ax = axes(ax, 8.4, 3.6)
    ax.axhline(0, color=INK, linewidth=0.8)
    places = np.arange(len(chosen))
    for number, (name, std) in enumerate(deviations.items()):
        shift = (number - (len(deviations) - 1) / 2) * 0.8 / len(deviations)
        look: dict[str, Any] = {
            "fmt": "o",
            "markersize": 2.5,
            "linewidth": 1.2,
            "color": LINES[number % len(LINES)],
            "label": name,
        }
        values, errors = (part[chosen].numpy(force=True) for part in (weights, std))
        ax.errorbar(places + shift, values, errors, **(look | kw))
    ax.set(xlabel="weight number", ylabel="weight ± std", xticks=places, xticklabels=[str(i) for i in chosen])
    ax.tick_params(axis="x", labelsize=6)
    ax.legend(frameon=False)
    return ax


def plot_pruning(
    curves: Mapping[str, tuple[Sequence[float], Sequence[float]]], *, ax: Axes | None = None, **kw: Any
) -> Axes:
    """Error against the share of weights removed, the most uncertain first.

    Args:
        curves: By name of the method: shares of weights removed, and the error of the pruned network at each.
        ax: Where to draw; ``None`` makes a figure.
        **kw: Passed on to ``Axes.plot``.

    Returns:
        The axes.

    Raises:
        ConfigError: ``matplotlib`` is not installed.
        DataError: There is no curve.

    Example:
        >>> plot_pruning({"Hessian-free": ([0.0, 0.5], [0.1, 0.12])}).get_xlabel()
        'share of weights removed'
    """
    if not curves:
        raise DataError("at least one curve", "none", "{'name': ([0.0, 0.5], [0.10, 0.12])}")
    ax = axes(ax, 5.2, 3.6)
    for number, (name, (shares, errors)) in enumerate(curves.items()):
        look: dict[str, Any] = {
            "marker": "o",
            "markersize": 3,
            "linewidth": 1.4,
            "color": LINES[number % len(LINES)],
            "label": name,
        }
        ax.plot(shares, errors, **(look | kw))
    ax.set(xlabel="share of weights removed", ylabel="mean absolute error")
    ax.legend(frameon=False)
    return ax
