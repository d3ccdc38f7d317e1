"""The validation loss while data come in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from lapwing.ground.errors import DataError
from lapwing.show.plots.canvas import LINES, axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Trace: TypeAlias = Sequence[tuple[int, float]]
"""Examples, and the validation loss in nats with so many."""


def plot_stopping(traces: Trace | Mapping[str, Trace], *, ax: Axes | None = None, **kw: Any) -> Axes:
    """Validation loss against the number of training examples in the posterior, each minimum marked.

    Args:
        traces: ``posterior.report.trace`` of a ``Nystrom`` posterior that was fitted with ``EarlyStopping``, or several
            by name. Its first point, without data, is the prior's.
        ax: Where to draw; ``None`` makes a figure.
        **kw: Passed on to ``Axes.plot`` for the lines.

    Returns:
        The axes.

    Raises:
        DataError: A trace has no point with data.
        ConfigError: ``matplotlib`` is not installed.

    Example:
        >>> plot_stopping([(0, 1.2), (100, 0.4), (200, 0.3), (300, 0.5)]).get_ylabel()
        'validation NLL / nats'
    """
    named = traces if isinstance(traces, Mapping) else {"": traces}
    if not named or not all(any(examples > 0 for examples, _ in trace) for trace in named.values()):
        raise DataError(
            "traces with at least one point",
            "none",
            "posterior.report.trace, of a fit with stopping=EarlyStopping(...)",
        )
    ax = axes(ax, 5.0, 3.4)
    kw = {"linewidth": 1.5, "marker": ".", "markersize": 4} | kw
    for i, (name, trace) in enumerate(named.items()):
        best, smallest = min((point for point in trace if point[0] > 0), key=lambda point: point[1])
        options: dict[str, Any] = {
            "color": LINES[i % len(LINES)],
            "label": f"{name}: {best}" if name else f"{best} examples",
        } | kw
        (line,) = ax.plot([examples for examples, _ in trace], [loss for _, loss in trace], **options)
        ax.plot([best], [smallest], marker="o", markersize=8, markerfacecolor="none", color=line.get_color())
    ax.set_xlabel("training examples")
    ax.set_ylabel("validation NLL / nats")
    ax.legend(frameon=False)
    return ax
