"""The regression band."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.evaluation.metrics.elements import scalars
from lapwing.ground.errors import check_level
from lapwing.show.plots.canvas import BLUE, INK, axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes


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
    check_level(level)
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
