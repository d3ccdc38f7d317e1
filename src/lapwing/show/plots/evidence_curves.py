"""Evidence curves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from torch import Tensor

from lapwing.ground.errors import DataError, check_kind, check_positive
from lapwing.show.plots.canvas import LINES, axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DASHES = ("-", "--", "-.", ":")
"""Line styles, in turn: curves lie on each other."""


@runtime_checkable
class Curve(Protocol):
    """What a curve over the prior precision must know to be drawn."""

    @property
    def precisions(self) -> Tensor:
        """Prior precisions."""
        ...

    @property
    def log_marginal(self) -> Tensor:
        """Log evidence at each, nats."""
        ...

    @property
    def stderr(self) -> Tensor:
        """Its standard error, nats."""
        ...

    @property
    def best(self) -> float:
        """The precision of largest evidence."""
        ...

    @property
    def largest(self) -> float:
        """The log evidence there, nats."""
        ...


def plot_evidence_curves(
    curves: Mapping[str, Curve], *, nats: float | None = None, ax: Axes | None = None, **kw: Any
) -> Axes:
    """Evidence curves: log evidence against the prior precision, two standard errors shaded, each optimum marked.

    Args:
        curves: Curves by name, such as those of ``lapwing.tuning.curve.evidence_curve`` for several structures.
        nats: How far below the highest of the maxima to look, nats; the lowest of the maxima is shown whatever it is.
            ``None`` shows all.
        ax: Where to draw; ``None`` makes a figure.
        **kw: Passed on to ``Axes.plot`` for the curves.

    Returns:
        The axes.

    Raises:
        ConfigError: The curves have no names, ``nats`` is not positive, or ``matplotlib`` is not installed.
        DataError: There are no curves.

    Example:
        >>> from types import SimpleNamespace
        >>> import torch
        >>> values = torch.tensor([1.0, 10.0, 100.0])
        >>> curve = SimpleNamespace(precisions=values, log_marginal=-values, stderr=0 * values, best=1.0, largest=-1.0)
        >>> plot_evidence_curves({"KFAC": curve}).get_xscale()
        'log'
    """
    check_kind("curves", curves, (Mapping,), "{'KFAC': evidence_curve(posterior, precisions)}")
    if not curves:
        raise DataError("at least one evidence curve", "none", "{'KFAC': evidence_curve(posterior, precisions)}")
    if nats is not None:
        check_positive("nats", nats, "10.0")
    ax = axes(ax, 5.6, 3.8)
    for number, (name, curve) in enumerate(curves.items()):
        order = curve.precisions.argsort()
        x, y, error = (part[order].numpy(force=True) for part in (curve.precisions, curve.log_marginal, curve.stderr))
        look = {"color": LINES[number % len(LINES)], "linestyle": DASHES[number % len(DASHES)], "linewidth": 1.5}
        own: dict[str, Any] = look | kw
        ax.plot(x, y, label=f"{name}: {curve.best:.3g}", **own)
        if (error > 0).any():
            ax.fill_between(x, y - 2 * error, y + 2 * error, color=own["color"], alpha=0.15, linewidth=0)
        ax.plot([curve.best], [curve.largest], color=own["color"], marker="o", markersize=6, linestyle="none")
    if nats is not None:
        peaks = [curve.largest for curve in curves.values()]
        top = max(peaks)
        ax.set_ylim(min(top - nats, min(peaks) - 0.05 * nats), top + 0.05 * nats)
    ax.set_xscale("log")
    ax.set(xlabel="prior precision", ylabel="log evidence / nats")
    ax.legend(frameon=False, title="largest at")
    return ax
