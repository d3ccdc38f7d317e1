"""What figures of a comparison draw: differences in pairs, calibration with intervals, risk against coverage, cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, final

from jaxtyping import Float
from torch import Tensor

from lapwing.comparison.paired import NOISE, Difference
from lapwing.ground.canvas import BLUE, GREY, INK, ORANGE, axes, colour
from lapwing.metrics import RejectionCurve, equal_mass

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Answers: TypeAlias = tuple[Float[Tensor, " m"], Float[Tensor, " m"]]
"""Confidence of every example, and whether it was right, 1 or 0."""


def draw_differences(
    differences: Mapping[str, Difference], what: str, *, higher_is_better: bool, ax: Axes | None = None
) -> Axes:
    """Differences from a reference with two standard errors to either side.

    Those beyond noise are filled, blue where they are better and orange where they are worse; those within are open.

    Args:
        differences: By the name of the method.
        what: Of what, with its unit.
        higher_is_better: Whether a positive difference is better.
        ax: Where to draw; ``None`` makes a figure.

    Example:
        >>> ax = draw_differences({"KFAC": Difference(-0.1, 0.01)}, "NLL, nats", higher_is_better=False)
        >>> [label.get_text() for label in ax.get_yticklabels()]
        ['KFAC']
    """
    ax = axes(ax, 5.6, 0.8 + 0.3 * len(differences))
    better = 1 if higher_is_better else -1
    colours = {0: GREY, better: BLUE, -better: ORANGE}
    for place, difference in enumerate(differences.values()):
        _point(
            ax,
            difference.value,
            float(place),
            colours[difference.sign],
            filled=difference.sign != 0,
            x=difference.error,
        )
    ax.axvline(0, color=INK, linestyle="--", linewidth=1)
    ax.set_yticks(range(len(differences)), labels=list(differences))
    ax.set(ylim=(len(differences) - 0.5, -0.5), xlabel=what)
    return ax


def draw_equal_mass(answers: Mapping[str, Answers], *, bins: int = 10, ax: Axes | None = None) -> Axes:
    """Accuracy less confidence in bins of equally many examples, with binomial intervals of 95 %.

    Args:
        answers: By the name of the method.
        bins: Number of bins.
        ax: Where to draw; ``None`` makes a figure.

    Example:
        >>> import torch
        >>> draw_equal_mass({"KFAC": (torch.linspace(0.4, 1, 40), torch.ones(40))}).get_xlabel()
        'confidence'
    """
    ax = axes(ax, 5.6, 3.8)
    for number, (name, (confidence, correct)) in enumerate(answers.items()):
        found = equal_mass(confidence, correct, bins)
        aside = 0.003 * (number - (len(answers) - 1) / 2)  # intervals of methods would hide one another
        middle = found.confidence.numpy(force=True) + aside
        gap = (found.accuracy - found.confidence).numpy(force=True)
        below = (found.accuracy - found.low).numpy(force=True)
        above = (found.high - found.accuracy).numpy(force=True)
        look: dict[str, Any] = {"color": colour(number), "marker": "o", "markersize": 4, "linewidth": 1, "capsize": 2}
        ax.errorbar(middle, gap, yerr=[below, above], label=name, **look)
    ax.axhline(0, color=INK, linestyle="--", linewidth=1)
    ax.set(xlabel="confidence", ylabel="accuracy − confidence")
    ax.legend(frameon=False)
    return ax


def draw_risks(answers: Mapping[str, Answers], *, ax: Axes | None = None) -> Axes:
    """The share of errors among what is kept against the share that is kept, the surest first.

    Args:
        answers: By the name of the method.
        ax: Where to draw; ``None`` makes a figure.

    Example:
        >>> import torch
        >>> draw_risks({"KFAC": (torch.linspace(0.4, 1, 40), torch.ones(40))}).get_xlabel()
        'share of examples kept'
    """
    ax = axes(ax, 5.6, 3.8)
    for number, (name, pair) in enumerate(answers.items()):
        curve = RejectionCurve.of(*pair)
        kept = (1 - curve.fraction).numpy(force=True)
        ax.plot(kept, curve.risk.numpy(force=True), color=colour(number), label=name)
    ax.set(xlim=(0, 1), xlabel="share of examples kept", ylabel="share of errors among them")
    ax.legend(frameon=False)
    return ax


@final
@dataclass(frozen=True)
class Cost:
    """What a method costs and is worth.

    Args:
        name: Of the method.
        seconds: To fit, tune and predict.
        nll: Its NLL.
        error: Standard error of the difference from the reference; 0 where there is none.
        sign: Of that difference, 0 where it is noise.
    """

    name: str
    seconds: float
    nll: float
    error: float
    sign: int


def draw_cost(costs: Sequence[Cost], what: str, reference: float | None, *, ax: Axes | None = None) -> Axes:
    """NLL against seconds, with two standard errors of the difference from the reference; filled beyond noise.

    Blue is better than the reference, orange worse.

    Args:
        costs: One a method.
        what: The NLL, with its unit.
        reference: That of the reference; ``None`` without one.
        ax: Where to draw; ``None`` makes a figure.

    Example:
        >>> draw_cost([Cost("KFAC", 2.0, 0.5, 0.01, sign=-1)], "NLL, nats", 0.6).get_xscale()
        'log'
    """
    ax = axes(ax, 7.2, 4.4)
    for cost in costs:
        shade = {0: GREY, -1: BLUE, 1: ORANGE}[cost.sign]
        _point(ax, cost.seconds, cost.nll, shade, filled=cost.sign != 0, y=cost.error)
        where: dict[str, Any] = {"textcoords": "offset points", "xytext": (6, 3), "fontsize": 7, "color": INK}
        ax.annotate(cost.name, (cost.seconds, cost.nll), **where)
    if reference is not None:
        ax.axhline(reference, color=INK, linestyle="--", linewidth=1)
    ax.set(xscale="log", xlabel="seconds to fit, tune and predict", ylabel=what)
    ax.margins(x=0.15)
    return ax


def _point(ax: Axes, left: float, up: float, shade: str, *, filled: bool, x: float = 0.0, y: float = 0.0) -> None:
    """A point with two standard errors to either side, open where it says nothing."""
    look: dict[str, Any] = {"color": shade, "marker": "o", "markersize": 5, "capsize": 2, "linewidth": 1.2}
    look["markerfacecolor"] = shade if filled else "white"
    ax.errorbar([left], [up], xerr=[NOISE * x] if x else None, yerr=[NOISE * y] if y else None, **look)
