"""The four data sets in and out of distribution: PICP, CRPS and NLL of every method over the seeds.

The NLL is the sum over the test points, nats, as the source has it; PICP is the coverage of the 95 % interval. The
predictions of all methods have the same mean, the network's, and the same noise: only the variance of f differs.
``variance_error`` is the median relative error of that variance beside the full Hessian's. The fits and the processor
seconds are those of one posterior: of the test points in and out of distribution together, but for the pre-trained fits
whose reward depends on where they are evaluated, and which are fitted for each.

*Cost against accuracy*: the variances of 500 points by probed, per-point and pre-trained fits, in one run. The points
are evenly spaced in [-2, 1.65], over Sin-Inbetween, its gap and beyond. Probed fits are run with more and more probes,
other ones for each network. ``error`` is the median over the points of the relative error beside the full Hessian,
``worst`` its largest; ``fits`` are all that were made, those that chose and checked λ included, and ``share`` is their
number, and ``share_of_seconds`` their processor time, over those of the per-point fits of the same network.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

import lapwing as lw
from benchmarks.command import Setting
from benchmarks.report import Row, figure, grouped, tried
from lapwing.methods.hessian_free import HessianFreePosterior, PerPoint, Probed
from studies.hessian_free.curves import CURVES
from studies.hessian_free.methods import METHODS, VARIANTS, Method, refitted
from studies.hessian_free.shallow import Fitted, fitted

COLUMNS = ("nll", "crps", "picp", "variance_error", "fits", "cpu_seconds")
DEFAULT, REFERENCE = "probed", "full Hessian"
APART = ("pre-trained, mean", "pre-trained, absolute")
"""What is fitted anew for other test points."""


def rows(setting: Setting) -> Iterator[Row]:
    """Every method on every seed of every data set, in and out of distribution."""
    for name in setting.among(tuple(CURVES)):
        for network in fitted(name, setting):
            exact = METHODS[REFERENCE](network, network.data.inside[0])
            truth = {shift: variances(exact, pair[0]) for shift, pair in network.data.tests.items()}
            for method in setting.among(METHODS):
                for shift, row in scored(network, METHODS[method], truth, apart=method in APART).items():
                    head: Row = {"part": f"{name}, {shift}", "data": name, "shift": shift}
                    head |= {"method": method, "seed": network.seed, "noise": network.noise}
                    yield head | {"smallest": network.smallest} | row


def scored(network: Fitted, method: Method, truth: Mapping[str, Tensor], *, apart: bool) -> dict[str, Row]:
    """A method on both sets of test points.

    Args:
        network: The network.
        method: The method.
        truth: Variances of the outputs at each set.
        apart: Whether it is fitted for each set.
    """
    tests, found = network.data.tests, dict[str, Row]()
    everywhere = torch.cat([pair[0] for pair in tests.values()])
    for shift, pair in tests.items():
        if apart or not found:
            points = pair[0] if apart else everywhere
            predictor, cost = tried(lambda at=points: method(network, at), "cpu_seconds", time.process_time)
        row: Row = dict(cost)
        if predictor is not None:
            scores = lw.evaluate(predictor, pair)
            row |= {"nll": scores["nll"] * len(pair[0]), "crps": scores["crps"], "picp": scores["picp"]}
            row |= {"variance_error": relative_error(variances(predictor, pair[0]), truth[shift])}
            row["fits"] = predictor.linearity.fits if isinstance(predictor, HessianFreePosterior) else None
        found[shift] = row
    return found


def variances(predictor: Any, x: Tensor) -> Tensor:
    """Of the outputs, without noise."""
    return predictor.predict(x).outputs.variance[:, 0]


def relative_error(values: Tensor, truth: Tensor) -> float:
    """The median."""
    return float(((values - truth).abs() / truth).median())


def verdict(found: Sequence[Row]) -> Iterator[Row]:
    """Whether the default is within a standard error of the full Hessian on NLL, column by column, and in how many."""
    means = {(row["part"], row["method"]): row for row in found if row.get("summary")}
    seeds, within = grouped((row for row in found if "seed" in row), "part", "method"), list[bool]()
    for part in dict.fromkeys(part for part, _ in means):
        default, reference = means[part, DEFAULT], means[part, REFERENCE]
        pairs = zip(seeds[part, DEFAULT], seeds[part, REFERENCE], strict=True)
        paired = [ours["nll"] - theirs["nll"] for ours, theirs in pairs]
        difference = default["nll"] - reference["nll"]
        within.append(abs(difference) <= reference["nll_stderr"])
        row: Row = {"verdict": part, "difference": difference, "stderr": reference["nll_stderr"]}
        row["paired_stderr"] = statistics.stdev(paired) / math.sqrt(len(paired))
        yield row | {"within": within[-1]}
    yield {"verdict": "all", "within": sum(within), "columns": len(within)}


NETWORKS = 10
POINTS, LOW, HIGH = 500, -2.0, 1.65
PROBES = ((2, 2), (4, 2), (6, 2), (8, 2), (12, 4), (16, 4), (24, 8))
"""Probes for the approximation and for its rest; the last is the default."""

ENOUGH, SMALL = 0.05, 0.1
"""What must be shown: the median error, at what share of the fits."""

COST = ("error", "worst", "fits", "share", "cpu_seconds", "share_of_seconds")


def cost(setting: Setting) -> Iterator[Row]:
    """Per-point fits first, then the others as shares of them."""
    points = torch.linspace(LOW, HIGH, 8 if setting.quick else POINTS, dtype=torch.float64)[:, None]
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
    yield from ((name, options) for name, options in VARIANTS.items() if name.startswith("pre-trained"))


def measured(network: Fitted, options: dict[str, Any], points: Tensor, truth: Tensor) -> Row:
    """What some fits cost, and how far their variances are from the truth."""
    posterior, row = tried(lambda: refitted(options, network, points), "cpu_seconds", time.process_time)
    if posterior is None:
        return row
    error = (variances(posterior, points) - truth).abs() / truth
    row |= {"error": float(error.median()), "worst": float(error.max()), "fits": posterior.linearity.fits}
    return row | {"linearity": posterior.linearity.change}


def cost_verdict(found: Sequence[Row]) -> Iterator[Row]:
    """The cheapest probed fits of small enough error on the mean over networks and probes, and their share."""
    means = [row for row in found if row.get("summary") and row["method"].startswith("probed")]
    good = min((row for row in means if row["error"] <= ENOUGH), key=lambda row: row["fits"], default=None)
    told = {key: good[key] for key in ("method", "error", "fits", "share", "share_of_seconds")} if good else {}
    yield {"verdict": "cheapest at 5 %"} | told | {"holds": good is not None and good["share"] <= SMALL}


def draw_cost(found: Sequence[Row]) -> Any:
    """Median error against fits and against processor seconds."""
    means = [row for row in found if row.get("summary") and row.get("error") is not None]
    made = figure(10.0, 4.2, 2)
    for panel, key, label in zip(made.axes, ("fits", "cpu_seconds"), ("fits", "processor seconds"), strict=True):
        for kind, own in grouped((row | {"kind": row["method"].split(",")[0]} for row in means), "kind").items():
            points = [(row[key], row["error"]) for row in own]
            panel.plot(*zip(*points, strict=True), "-" if kind == "probed" else "", marker="o", label=kind)
        panel.axhline(ENOUGH, color="#999999", linestyle="--", label="5 %")
        panel.set(yscale="log", xlabel=label, ylabel="median relative error of the variance")
    made.axes[0].set_xscale("log")
    made.axes[1].set_xlim(left=0)
    made.axes[0].legend(frameon=False)
    return made
