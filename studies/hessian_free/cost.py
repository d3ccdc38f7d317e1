"""Cost against accuracy: the variances of 500 points by probed, per-point and pre-trained fits, in one run.

The points are evenly spaced in [-2, 1.65], over Sin-Inbetween, its gap and beyond. Probed fits are run with more and
more probes, other ones for each network. ``error`` is the median over the points of the relative error beside the full
Hessian, ``worst`` its largest; ``fits`` are all that were made, those that chose and checked λ included, and ``share``
is their number, and ``share_of_seconds`` their processor time, over those of the per-point fits of the same network.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from benchmarks.command import Setting
from benchmarks.report import Row, figure, tried
from lapwing.methods.hessian_free import PerPoint, PreTrained, Probed
from studies.hessian_free.methods import METHODS, refitted
from studies.hessian_free.shallow import Fitted, fitted
from studies.hessian_free.table import REFERENCE, variances

NETWORKS = 10
POINTS, LOW, HIGH = 500, -2.0, 1.65
PROBES = ((2, 2), (4, 2), (6, 2), (8, 2), (12, 4), (16, 4), (24, 8))
"""Probes for the approximation and for its rest; the last is the default."""

ENOUGH, SMALL = 0.05, 0.1
"""What must be shown: the median error, at what share of the fits."""

COLUMNS = ("error", "worst", "fits", "share", "cpu_seconds", "share_of_seconds")


def rows(setting: Setting) -> Iterator[Row]:
    """Per-point fits first, then the others as shares of them."""
    points = torch.linspace(LOW, HIGH, 20 if setting.quick else POINTS, dtype=torch.float64)[:, None]
    for network in fitted("Sin-Inbetween", setting, setting.repeats[:NETWORKS]):
        truth = variances(METHODS[REFERENCE](network, points), points)
        whole: Row = {}
        for name, options in variants(setting, network.seed):
            row = measured(network, options, points, truth)
            whole = whole or row
            head: Row = {"method": name, "seed": network.seed, "points": len(points)}
            if "fits" in row and "fits" in whole:
                row |= {"share": row["fits"] / whole["fits"]}
                row |= {"share_of_seconds": row["cpu_seconds"] / whole["cpu_seconds"]}
            yield head | row


def variants(setting: Setting, seed: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Names and options of ``HessianFree``."""
    yield "per point", {"fits": PerPoint(group=POINTS)}
    for probes, residual in PROBES[:2] if setting.quick else PROBES:
        yield f"probed, {probes} + {residual}", {"fits": Probed(probes, residual), "seed": seed}
    yield "pre-trained, mean", {"fits": PreTrained("mean")}
    yield "pre-trained, absolute", {"fits": PreTrained("absolute")}
    yield "pre-trained, in sample", {"fits": PreTrained("in_sample")}
    yield "pre-trained, augmented", {"fits": PreTrained("augmented")}


def measured(network: Fitted, options: dict[str, Any], points: torch.Tensor, truth: torch.Tensor) -> Row:
    """What some fits cost, and how far their variances are from the truth."""
    posterior, row = tried(lambda: refitted(options, network, points), "cpu_seconds", time.process_time)
    if posterior is None:
        return row
    error = (variances(posterior, points) - truth).abs() / truth
    row |= {"error": float(error.median()), "worst": float(error.max()), "fits": posterior.linearity.fits}
    return row | {"linearity": posterior.linearity.change}


def verdict(found: Sequence[Row]) -> Iterator[Row]:
    """The cheapest probed fits of small enough error on the mean over networks and probes, and their share."""
    means = [row for row in found if row.get("summary") and row["method"].startswith("probed")]
    good = min((row for row in means if row["error"] <= ENOUGH), key=lambda row: row["fits"], default=None)
    told = {key: good[key] for key in ("method", "error", "fits", "share", "share_of_seconds")} if good else {}
    yield {"verdict": "cheapest at 5 %"} | told | {"holds": good is not None and good["share"] <= SMALL}


def draw(found: Sequence[Row]) -> Any:
    """Median error against fits and against processor seconds."""
    means = [row for row in found if row.get("summary") and row.get("error") is not None]
    made = figure(10.0, 4.2, 2)
    for panel, key, label in zip(made.axes, ("fits", "cpu_seconds"), ("fits", "processor seconds"), strict=True):
        for kind in dict.fromkeys(row["method"].split(",")[0] for row in means):
            own = [row for row in means if row["method"].split(",")[0] == kind]
            joined = "-" if kind == "probed" else "none"
            panel.plot(
                [row[key] for row in own], [row["error"] for row in own], marker="o", linestyle=joined, label=kind
            )
        panel.axhline(ENOUGH, color="#999999", linestyle="--", label="5 %")
        panel.set(yscale="log", xlabel=label, ylabel="median relative error of the variance")
    made.axes[0].set_xscale("log")
    made.axes[1].set_xlim(left=0)
    made.axes[0].legend(frameon=False)
    return made
