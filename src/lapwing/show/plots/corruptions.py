"""The corruption sweep."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from torch import Tensor

from lapwing.show.plots.canvas import LINES, axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@runtime_checkable
class Sweep(Protocol):
    """What a sweep over corruptions must know to be drawn."""

    def by_severity(self, score: str = "nll") -> dict[int, float]:
        """One score, averaged over the corruptions, for each severity; 0 is the clean data."""
        ...

    def values(self, score: str = "nll") -> Tensor:
        """One score of every corruption (rows) at every severity (columns)."""
        ...


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
        >>> from types import SimpleNamespace
        >>> import torch
        >>> values = torch.tensor([[0.3, 0.7], [0.5, 0.9]])
        >>> sweep = SimpleNamespace(by_severity=lambda score: {0: 0.2, 1: 0.4, 5: 0.8}, values=lambda score: values)
        >>> plot_sweep(sweep, label="KFAC").get_ylabel()
        'nll'
    """
    means, values = sweep.by_severity(score), sweep.values(score).double().cpu()
    ax = axes(ax, 4.8, 3.6)
    look: dict[str, Any] = {"color": LINES[len(ax.lines) % len(LINES)], "marker": "o", "markersize": 4} | kw
    ax.plot(list(means), list(means.values()), **look)
    low, high = values.quantile(0.25, 0).numpy(), values.quantile(0.75, 0).numpy()
    ax.fill_between(list(means)[1:], low, high, color=look["color"], alpha=0.15, linewidth=0)
    ax.set(xlabel="severity of the corruption (0: clean)", ylabel=score)
    ax.locator_params(axis="x", integer=True)
    if "label" in kw:
        ax.legend(frameon=False)
    return ax
