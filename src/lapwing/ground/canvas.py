"""Where figures are drawn: axes, colours, labels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jaxtyping import Float
from torch import Tensor

from lapwing.ground.errors import ConfigError
from lapwing.ground.version import with_extra

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BLUE = "#0072B2"
SKY = "#56B4E9"
ORANGE = "#D55E00"
GREY = "#999999"
INK = "#333333"
LINES = (BLUE, ORANGE, "#009E73", "#CC79A7", "#E69F00", SKY, INK)
"""Colours of lines that are drawn one after another."""


def colour(number: int) -> str:
    """The colour of a line, which are counted from 0."""
    return LINES[number % len(LINES)]


def axes(ax: Axes | None, width: float, height: float) -> Axes:
    """The axes given, or those of a new figure that pyplot does not know.

    Args:
        ax: Axes to use as they are, or ``None``.
        width: Width of a new figure, inches.
        height: Height of a new figure, inches.

    Raises:
        ConfigError: If ``matplotlib`` is not installed.
    """
    return panels(width, height)[0] if ax is None else ax


def panels(width: float, height: float, columns: int = 1, rows: int = 1) -> list[Axes]:
    """The axes of a new figure of equal panels, which pyplot does not know; ``panels(...)[0].figure`` is the figure.

    Args:
        width: Width of the figure, inches.
        height: Height of the figure, inches.
        columns: Panels side by side.
        rows: Panels below one another.

    Raises:
        ConfigError: If ``matplotlib`` is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError("matplotlib, to draw", str(error), with_extra("plot")) from error
    figure = Figure(figsize=(width, height), layout="constrained", dpi=150)
    made: list[Axes] = list(figure.subplots(rows, columns, squeeze=False).flat)
    for panel in made:
        panel.spines[["top", "right"]].set_visible(False)
    return made


def beside(ax: Axes, *, right: float = 0.0, up: float = 0.0) -> Any:
    """The coordinates of some axes, moved by a length that does not grow with them, as that of labels does not.

    Args:
        ax: The axes.
        right: Inches to the right.
        up: Inches up.
    """
    from matplotlib.transforms import ScaledTranslation

    figure: Any = ax.figure
    return ax.transAxes + ScaledTranslation(right, up, figure.dpi_scale_trans)


def picture(ax: Axes, image: Float[Tensor, "h w"], title: str, **look: Any) -> None:
    """Draw an image from 0 on, its scale beside it.

    Args:
        ax: Where.
        image: The image.
        title: What it is.
        look: Further options of ``imshow``, such as ``cmap`` and ``vmax``.
    """
    drawn = ax.imshow(image.numpy(force=True), vmin=0.0, **look)
    ax.figure.colorbar(drawn, ax=ax, fraction=0.046)
    ax.set(title=title, xticks=[], yticks=[])


def percent_label(value: float, _: object) -> str:
    """A tick label: 0.25 is 25 %."""
    return f"{100 * value:g} %"
