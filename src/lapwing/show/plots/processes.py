"""Figures of Gaussian processes: the posterior on a line and on a plane, where its solves are wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.gp import GPPosterior
from lapwing.gp.diagnosis import SpectralBasis
from lapwing.ground.canvas import GREY, INK, ORANGE, colour, panels
from lapwing.ground.errors import ShapeError, check_count, check_kind
from lapwing.metrics import gaussian_wasserstein
from lapwing.predictive import Moments
from lapwing.show.plots.predictions import plot_band

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_process(
    process: GPPosterior, x: Float[Tensor, " m"], *, samples: int = 3, ax: Axes | None = None, **kw: Any
) -> Axes:
    """The posterior along one input: mean, 95 % bands of function and observations, functions drawn, and the data.

    Args:
        process: A posterior of one input and one output.
        x: Where.
        samples: Functions to draw; 0 for none.
        ax: Where to draw; ``None`` makes a figure.
        **kw: Passed on to ``Axes.plot`` for the mean.

    Returns:
        The axes.

    Raises:
        ShapeError: The process has several inputs or outputs, or x another shape.
        ConfigError: ``matplotlib`` is not installed, or it is no process.

    Example:
        >>> import lapwing as lw
        >>> x = torch.linspace(0, 6, 20)[:, None]
        >>> plot_process(lw.GP().fit((x, x.sin())), torch.linspace(-1, 7, 50)).get_xlabel()
        'x'
    """
    x = _line(process, x)
    check_count("samples", samples, 0)
    grid = x.to(process.data.inputs)[:, None]
    prediction: Any = process.predict(grid)
    noise = process.likelihood.noise**-0.5
    mean = prediction.mean[:, 0]
    std = prediction.outputs.std[:, 0]
    ax = plot_band(x, mean.to(x), std.to(x), noise_std=noise, ax=ax, **kw)
    if samples:
        with torch.no_grad():
            drawn = process.sample_functions(grid, samples, generator=process.settings.seed)[..., 0]
        order = x.argsort()
        for number, values in enumerate(drawn):
            label = f"{samples} functions drawn" if not number else None
            ax.plot(
                x[order].numpy(force=True), values[order].numpy(force=True), color=ORANGE, linewidth=0.9, label=label
            )
    inputs, targets = (part[:, 0].numpy(force=True) for part in (process.data.inputs, process.data.targets))
    ax.plot(inputs, targets, color=INK, linestyle="none", marker=".", markersize=3, label=f"{len(inputs)} observations")
    ax.legend(frameon=False)
    return ax


def plot_maps(
    process: GPPosterior, *, side: int = 60, ax: Sequence[Axes] | None = None, **kw: Any
) -> tuple[Axes, Axes]:
    """The posterior over two inputs, as far as the data reach: mean, and standard deviation of the function.

    Args:
        process: A posterior of two inputs and one output.
        side: Points to a side of the grid.
        ax: Two axes to draw on; ``None`` makes a figure with a row of two.
        **kw: Passed on to ``Axes.contourf`` for both.

    Returns:
        The two axes.

    Raises:
        ShapeError: The process has other inputs or several outputs.
        ConfigError: ``matplotlib`` is not installed, or there is no grid.

    Example:
        >>> import lapwing as lw
        >>> x = torch.rand(30, 2)
        >>> [panel.get_title() for panel in plot_maps(lw.GP().fit((x, x.prod(1))), side=8)]
        ['mean', 'standard deviation']
    """
    _check(process, 2)
    check_count("side", side, 2, usual=60)
    inputs = process.data.inputs
    low = inputs.amin(0)
    high = inputs.amax(0)
    lines = [torch.linspace(float(a), float(b), side).to(inputs) for a, b in zip(low, high, strict=True)]
    outputs = process.outputs(torch.cartesian_prod(*lines))
    first, second = panels(9.6, 3.8, 2) if ax is None else ax
    for panel, values, title in ((first, outputs.mean, "mean"), (second, outputs.std, "standard deviation")):
        heights = values[:, 0].view(side, side).mT.numpy(force=True)
        look: dict[str, Any] = {"levels": 15, "cmap": "viridis"} | kw
        drawn = panel.contourf(*(line.numpy(force=True) for line in lines), heights, **look)
        panel.figure.colorbar(drawn, ax=panel)
        panel.plot(*inputs.mT.numpy(force=True), color="white", linestyle="none", marker=".", markersize=2)
        panel.set(title=title, xlabel="first input", ylabel="second input")
    return first, second


def plot_regions(
    process: GPPosterior,
    exact: GPPosterior,
    basis: SpectralBasis,
    x: Float[Tensor, " m"],
    *,
    ax: Sequence[Axes] | None = None,
    **kw: Any,
) -> tuple[Axes, Axes]:
    """Where an inexact solve is wrong along one input: Wasserstein distance to exact marginals, and basis functions.

    Iterative solves are exact far from the data and amid them, and err at their edges, where the basis functions of
    small eigenvalues live (Antorán 2024, figure 4.10).

    Args:
        process: A posterior of one input and one output.
        exact: The same by ``Cholesky()``.
        basis: Of ``gp.diagnosis.spectral_basis``.
        x: Where.
        ax: Two axes to draw on; ``None`` makes a figure with a column of two.
        **kw: Passed on to ``Axes.plot`` for the distance.

    Returns:
        The axes of the distance, and those of the basis functions.

    Raises:
        ShapeError: A process has several inputs or outputs.
        ConfigError: ``matplotlib`` is not installed.
    """
    x = _line(process, x)
    order = x.argsort()
    grid = x[order].to(process.data.inputs)[:, None]
    found, reference = (each.outputs(grid).marginal() for each in (process, exact))
    assert isinstance(found, Moments) and isinstance(reference, Moments)  # a process has covariances of all outputs
    distance = gaussian_wasserstein(found, reference)
    first, second = panels(6.0, 5.0, 1, 2) if ax is None else ax
    places = x[order].numpy(force=True)
    look: dict[str, Any] = {"color": ORANGE, "linewidth": 1.5} | kw
    first.plot(places, distance.numpy(force=True), **look)
    first.set(ylabel="W₂ to exact marginals")
    with torch.no_grad():
        values = basis(grid).numpy(force=True)
    for number in range(values.shape[1]):
        label = f"λ = {float(basis.values[number]):.2g}"
        second.plot(places, values[:, number], color=colour(number), linewidth=1, label=label)
    second.set(xlabel="x", ylabel="basis functions")
    second.legend(frameon=False, fontsize=6, ncols=3)
    inputs = process.data.inputs[:, 0].numpy(force=True)
    for panel in (first, second):
        panel.plot(inputs, 0 * inputs, "|", color=GREY)
    return first, second


def _line(process: GPPosterior, x: Tensor) -> Float[Tensor, " m"]:
    """Where to draw a process of one input; NumPy's arrays are taken too."""
    _check(process, 1)
    x = torch.as_tensor(x)
    if x.ndim != 1:
        raise ShapeError("places [m] of the one input", f"shape {list(x.shape)}", "x[:, 0]")
    return x


def _check(process: GPPosterior, width: int) -> None:
    check_kind("process", process, (GPPosterior,), "lw.GP().fit((x, y))")
    p = process.data.inputs.shape[1]
    c = process.data.outputs
    if (p, c) != (width, 1):
        hint = "plot_process for one input, plot_maps for two, of a process of one output"
        raise ShapeError(f"a process of {width} inputs and one output", f"{p} inputs and {c} outputs", hint)
