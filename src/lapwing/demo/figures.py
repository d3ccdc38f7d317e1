"""The figures of the demo: drawn by ``lapwing.show.plots``, set side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lapwing.comparison import Comparison, Row
from lapwing.demo.digits import Digits
from lapwing.demo.gap import Gap, curve
from lapwing.demo.questions import AT_WEIGHTS
from lapwing.ground import canvas
from lapwing.metrics import auroc, ece, rejection_curve
from lapwing.posteriors import Posterior
from lapwing.predictive import Classification, Regression
from lapwing.show.plots import plot_band, plot_evidence, plot_reliability

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def panels(columns: int, rows: int = 1, *, width: float, height: float) -> tuple[Any, list[Axes]]:
    """A figure of equal panels.

    Args:
        columns: Panels side by side.
        rows: Panels below one another.
        width: Of a panel, inches.
        height: Of a panel, inches.
    """
    axes = canvas.panels(columns * width, rows * height, columns, rows)
    return axes[0].figure, axes


def name(row: Row) -> str:
    """A row, as a figure calls it."""
    return f"{row.method}, {row.tuned_by}" if row.values("fit_seconds") else row.method


def scores(comparison: Comparison) -> Figure:
    """NLL, ECE and OOD AUROC of every method with standard errors, the plain network's as a line."""
    shown = (("nll", "NLL / nats", True), ("ece", "ECE", True), ("ood_auroc", "OOD AUROC", False))
    figure, axes = panels(3, width=3.6, height=0.34 * len(comparison.rows) + 0.9)
    rows = comparison.rows[::-1]
    colors = {"": "#333333", "validation": "#0072B2", "default": "#D55E00", AT_WEIGHTS: "#E69F00"}
    for ax, (column, label, logarithmic) in zip(axes, shown, strict=True):
        for place, row in enumerate(rows):
            estimate = row.estimate(column)
            if estimate is not None:
                error = estimate.stderr if estimate.samples > 1 else 0.0
                ax.errorbar(estimate.value, place, xerr=error, fmt="o", color=colors[row.tuned_by], capsize=3)
                if place == len(rows) - 1:
                    ax.axvline(estimate.value, color="#999999", linestyle=":", linewidth=1)
        ax.set(yticks=range(len(rows)), yticklabels=[name(row) for row in rows], xlabel=label)
        ax.tick_params(axis="y", length=0, labelleft=ax is axes[0])
        ax.grid(axis="y", color="#eeeeee")
        ax.set_axisbelow(True)
        if logarithmic:
            _plain_log(ax)
    return figure


def reliability(rows: Sequence[Row], data: Digits) -> Figure:
    """A reliability diagram a method."""

    def draw(row: Row, ax: Axes) -> str:
        predicted = probs(row, data.test[0])
        plot_reliability(predicted, data.test[1], ax=ax)
        return f"ECE {100 * ece(predicted, data.test[1]):.1f} %"

    return _each(rows, draw, 3.3, 3.9)


def confidence(rows: Sequence[Row], data: Digits) -> Figure:
    """Confidence on known and on unseen digits, a method a panel."""

    def draw(row: Row, ax: Axes) -> str:
        inside, outside = (probs(row, images).amax(-1) for images in (data.test[0], data.unseen[0]))
        for label, values, color in (("known", inside, canvas.BLUE), ("unseen", outside, canvas.ORANGE)):
            share = torch.full_like(values, 1 / len(values))
            look: dict[str, Any] = {"facecolor": (color, 0.3), "edgecolor": color, "label": f"{label} digits"}
            ax.hist(values.clamp(max=1), 20, range=(0, 1), weights=share, histtype="stepfilled", **look)
        ax.set(xlim=(0, 1), xlabel="confidence", ylabel="share of examples")
        ax.yaxis.set_major_formatter(canvas.percent_label)
        return f"AUROC {auroc(-inside, -outside):.3f}"

    return _each(rows, draw, 3.3, 2.9)


def rejection(rows: Sequence[Row], data: Digits) -> Figure:
    """Rejection curves of known and unseen digits together: every unseen digit is a mistake if kept."""
    figure, (ax,) = panels(1, width=6.4, height=4.0)
    images = torch.cat([data.test[0], data.unseen[0]])
    for number, row in enumerate(rows):
        predicted = probs(row, images)
        wrong = predicted[len(data.test[0]) :].argmin(-1)  # any class but the predicted one
        found = rejection_curve(predicted, torch.cat([data.test[1], wrong]))
        label = f"{name(row)}, area {found.area:.3f}"
        ax.plot(found.fraction, found.accuracy, color=canvas.colour(number), linewidth=1.6, label=label)
    ax.set(xlim=(0, 1), xlabel="least confident examples rejected", ylabel="accuracy of the others")
    ax.xaxis.set_major_formatter(canvas.percent_label)
    ax.yaxis.set_major_formatter(canvas.percent_label)
    ax.legend(frameon=False)
    return figure


def evidence(rows: Sequence[Row]) -> Figure:
    """The steps of tuning by evidence, a method a panel."""

    def draw(row: Row, ax: Axes) -> str:
        steps = posterior(row).trace
        plot_evidence(steps, ax=ax)
        ax.figure.axes[-1].set_yscale("linear")  # few steps, within a decade: powers of ten say less
        return f"prior precision {steps[-1].prior_precision[0]:.3g}"

    return _each(rows, draw, 3.6, 2.9)


def choice(row: Row, default: Row) -> Figure:
    """Log evidence and validation NLL over the prior precision: what each way of tuning sees.

    Args:
        row: A posterior tuned by validation, whose trace has both.
        default: The posterior tuned without validation data.
    """
    figure, (ax,) = panels(1, width=6.4, height=3.6)
    steps = sorted(posterior(row).trace, key=lambda step: step.prior_precision)
    x = [step.prior_precision[0] for step in steps]
    ax.plot(x, [step.log_marginal or 0.0 for step in steps], color="#D55E00", marker="o", markersize=3)
    ax.set_yscale("symlog", linthresh=10)
    ax.set(xscale="log", xlabel="prior precision")
    ax.set_ylabel("log evidence at the weights / nats", color="#D55E00")
    ax.axvline(posterior(default).prior_precisions.item(), color="#333333", linestyle=":", linewidth=1.2)
    twin = ax.twinx()
    twin.plot(x, [step.validation_nll or 0.0 for step in steps], color="#0072B2", marker="s", markersize=3)
    twin.set_ylabel("validation NLL / nats", color="#0072B2")
    twin.spines["top"].set_visible(False)
    return figure


def bands(rows: Sequence[Row], data: Gap) -> Figure:
    """The curve with a gap: mean and 95 % band of each method."""
    x = torch.linspace(-5.5, 5.5, 300, dtype=torch.float64)[:, None]
    figure, axes = panels(2, -(-len(rows) // 2), width=5.6, height=3.1)
    for ax in axes[len(rows) :]:
        ax.remove()
    for row, ax in zip(rows, axes, strict=False):
        prediction = predict(row, x)
        assert isinstance(prediction, Regression)
        noise = prediction.noise.expand_as(prediction.mean).sqrt()[:, 0]
        plot_band(x[:, 0], prediction.mean[:, 0], prediction.outputs.std[:, 0], noise_std=noise, ax=ax)
        ax.plot(x, curve(x), color="#D55E00", linestyle=":", linewidth=1.2, label="truth")
        ax.plot(*(column[:, 0].numpy() for column in data.train), "k.", markersize=4, label="training data")
        ax.set_title(name(row), fontsize=11)
        ax.set_ylim(-4.5, 4.5)
        legend = ax.get_legend()
        if legend is not None:
            legend.remove()
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=5, frameon=False)
    return figure


def predict(row: Row, x: Tensor) -> Any:
    """Predictive distribution of a row's method."""
    assert row.predictor is not None
    return row.predictor.predict(x)


def probs(row: Row, x: Tensor) -> Tensor:
    """Class probabilities of a row's method."""
    prediction = predict(row, x)
    assert isinstance(prediction, Classification)
    return prediction.probs


def posterior(row: Row) -> Posterior:
    """The posterior of a row."""
    assert isinstance(row.predictor, Posterior)
    return row.predictor


def _each(rows: Sequence[Row], draw: Callable[[Row, Axes], str], width: float, height: float) -> Figure:
    """A panel a method, each with a word from ``draw`` under its name; one legend for all."""
    figure, axes = panels(len(rows), width=width, height=height)
    for row, ax in zip(rows, axes, strict=True):
        ax.set_title(f"{name(row)}\n{draw(row, ax)}", fontsize=10)
        legend = ax.get_legend()
        if legend is not None:
            legend.remove()
    handles, labels = axes[0].get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), frameon=False)
    return figure


def _plain_log(ax: Axes) -> None:
    """A logarithmic axis with round numbers on it."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    low, high = ax.get_xlim()
    ax.set_xscale("log")
    ticks = [base * 10.0**power for power in range(-4, 4) for base in (1, 2, 5)]
    ax.xaxis.set_major_locator(FixedLocator([tick for tick in ticks if low < tick < high]))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.xaxis.set_minor_locator(NullLocator())
