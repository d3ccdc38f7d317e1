"""The four data sets in and out of distribution: PICP, CRPS and NLL of every method over the seeds.

The NLL is the sum over the test points, nats, as the source has it; PICP is the coverage of the 95 % interval. The
predictions of all methods have the same mean, the network's, and the same noise: only the variance of f differs.
``variance_error`` is the median relative error of that variance beside the full Hessian's. The fits and the processor
seconds are those of one posterior: of the test points in and out of distribution together, but for the pre-trained fits
whose reward depends on where they are evaluated, and which are fitted for each.
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
from benchmarks.report import Row, tried
from lapwing.methods.hessian_free import HessianFreePosterior
from studies.hessian_free.curves import CURVES
from studies.hessian_free.methods import METHODS, Method
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
            for method, made in METHODS.items():
                for shift, row in scored(network, made, truth, apart=method in APART).items():
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
    within = list[bool]()
    for part in dict.fromkeys(part for part, _ in means):
        default, reference = means[part, DEFAULT], means[part, REFERENCE]
        each = [
            [row["nll"] for row in found if (row["part"], row["method"]) == (part, name) and "seed" in row]
            for name in (DEFAULT, REFERENCE)
        ]
        paired = [a - b for a, b in zip(*each, strict=True)]
        difference = default["nll"] - reference["nll"]
        within.append(abs(difference) <= reference["nll_stderr"])
        row: Row = {"verdict": part, "difference": difference, "stderr": reference["nll_stderr"]}
        row["paired_stderr"] = statistics.stdev(paired) / math.sqrt(len(paired))
        yield row | {"within": within[-1]}
    yield {"verdict": "all", "within": sum(within), "columns": len(within)}
