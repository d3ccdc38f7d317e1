"""The page of a Gaussian process: scores on rows held out, residuals, coverage, length-scales by column."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing import metrics
from lapwing.comparison import Column, Comparison, Row
from lapwing.gp import GPPosterior
from lapwing.ground.files.atomic import replacing
from lapwing.ground.precision import wide
from lapwing.show.plots.predictions import plot_coverage, plot_residuals
from lapwing.show.report.page import render

LEVELS = (0.5, 0.8, 0.95)
"""Intervals whose coverage is told."""

SCORES = (
    Column("rmse", "RMSE", "lower", ".4g", "root mean squared error, in the unit of the target"),
    Column("nll", "NLL", "lower", ".3f", "mean negative log likelihood of the held-out targets, nats"),
    *(Column(f"in{q:g}", f"in {100 * q:g} %", "neither", ".3f", "part inside the interval") for q in LEVELS),
)

SCALES = (
    Column(
        "lengthscale",
        "length-scale",
        "neither",
        ".4g",
        "distance over which the target changes, in the unit of the column",
    ),
    Column("spread", "spread", "neither", ".4g", "standard deviation of the column"),
    Column("ratio", "spread / length-scale", "neither", ".3g", "how much of the change there is along the column"),
)


def write_regression_report(
    posterior: GPPosterior,
    held_out: tuple[Float[Tensor, "m p"], Float[Tensor, " m"]],
    names: Sequence[str],
    target: str,
    out: Path,
) -> Path:
    """Write the page of a process with one output.

    Args:
        posterior: The posterior.
        held_out: Inputs and targets it has not seen.
        names: Of the columns of the inputs.
        target: Name of the target.
        out: Where to.

    Returns:
        Where the page is.

    Raises:
        ConfigError: If ``jinja2`` or ``matplotlib`` is not installed.
    """
    x, y = held_out
    prediction: Any = posterior.predict(x)
    mean = prediction.mean[:, 0]
    std = prediction.std[:, 0]
    n = len(posterior.data)
    text = [
        f"A Gaussian process of '{target}' from {len(names)} columns, fitted to {n:,} rows and scored on {len(y):,}.",
        f"Log evidence {float(posterior.log_marginal()):.6g} nats; standard deviation of the noise "
        f"{posterior.likelihood.noise**-0.5:.4g}, in the unit of the target; solved by "
        f"{type(posterior.solver).__name__}.",
    ]
    figures = [
        {"file": "residuals.svg", "title": "Residuals", "caption": "In standard deviations, against the prediction."},
        {"file": "coverage.svg", "title": "Coverage", "caption": "Targets inside central intervals of every level."},
    ]
    rows = (_scores("Gaussian process", "evidence", mean, std, y), _plain(posterior, y))
    results: dict[str, Any] = {"title": f"Gaussian process of {target}", "text": text, "figures": figures}
    results |= Comparison(rows, SCORES).to_dict() | {"about": {"kernel": f"{posterior.kernel!r:.400}"}}
    if scales := _scales(posterior, names):
        words = {"title": "Length-scales", "heading": "By column", "rows_are": "column"}
        results["sections"] = [words | Comparison(scales, SCALES).to_dict()]
    with TemporaryDirectory() as folder:
        for plot, figure in zip((plot_residuals, plot_coverage), figures, strict=True):
            ax: Any = plot(mean, std, y)
            ax.figure.savefig(Path(folder) / figure["file"])
        page = render(results, Path(folder))
    with replacing(out) as draft:
        draft.write_text(page, encoding="utf-8")
    return out


def _scores(method: str, tuned_by: str, mean: Tensor, std: Tensor, y: Tensor) -> Row:
    """Each with its name of ``SCORES``."""
    found = {"rmse": metrics.rmse(mean, y), "nll": metrics.gaussian_nll(mean, std.square(), y)}
    for level in LEVELS:
        reach = float(torch.special.ndtri(wide(torch.tensor(0.5 + level / 2)))) * std
        found[f"in{level:g}"] = metrics.picp(mean - reach, mean + reach, y)
    return Row(method, tuned_by, (found,))


def _plain(posterior: GPPosterior, y: Tensor) -> Row:
    """What the mean and the spread of the training targets alone score."""
    seen = posterior.data.targets[:, 0]
    spread = seen.std(correction=0).clamp_min(1e-12)
    return _scores("mean of the target", "", seen.mean().expand_as(y), spread.expand_as(y), y)


def _scales(posterior: GPPosterior, names: Sequence[str]) -> tuple[Row, ...]:
    """A row a column of the inputs, the most telling first; none where the kernel has not one length-scale a column."""
    labels = posterior.kernels[0].labels()
    values = posterior.kernels[0].hyper.exp().tolist()
    found = [value for label, value in zip(labels, values, strict=True) if "lengthscale" in label]
    if len(found) != len(names):
        return ()
    spread = wide(posterior.data.inputs).std(0, correction=0).tolist()
    rows = sorted(zip(names, found, spread, strict=True), key=lambda row: row[1] / max(row[2], 1e-300))
    return tuple(
        Row(name, "", ({"lengthscale": scale, "spread": width, "ratio": width / scale},)) for name, scale, width in rows
    )
