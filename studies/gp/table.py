"""Table 4.3: RMSE, NLL and seconds on UCI sets, with hyper-parameters that the library finds.

Matérn 3/2 with one length-scale a dimension on z-scored data, no mean; hyper-parameters by ``gp.Subset`` on ``--size``
random observations; 64 functions by pathwise conditioning, with 2,000 random features for the prior of each; the NLL's
variance is that of the functions and the noise's. Published beside: stochastic dual descent (Antorán 2024, table 4.3),
five splits, on another machine, with hyper-parameters of the exact evidence of all rows.

A split is saved as soon as it is done; ``--resume FILE`` takes those of an interrupted run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch

import lapwing as lw
from benchmarks.command import Setting, Study
from benchmarks.report import Row, timed
from lapwing.linear.solvers import Cholesky
from lapwing.methods.gp import Process, Subset
from studies.gp.setting import SOLVERS, chosen, drawn_scores, scores, split, start, within

PUBLISHED = {
    "pol": (0.08, -1.18),
    "elevators": (0.35, 0.38),
    "bike": (0.04, -2.49),
    "protein": (0.50, 0.63),
    "keggdirected": (0.08, -0.92),
}
"""RMSE and NLL of the source."""

TOLERANCE = 0.01
COLUMNS = ("rmse", "nll", "nll_exact", "coverage", "noise_variance", "tune_seconds", "solve_seconds")
OPTIONS: Mapping[str, tuple[Any, str]] = {
    "solver": ("auto", "auto, Cholesky, CG or SDD"),
    "size": (4000, "observations whose evidence is climbed"),
    "steps": (10_000, "most steps of SDD"),
}


def rows(setting: Setting) -> Iterator[Row]:
    """A row a set and split; splits are the outer loop, so that an interrupted run has something of every set."""
    for number in setting.repeats:
        for name in setting.among(PUBLISHED, ("pol", "bike") if setting.quick else ()):
            case: Row = {"data": name, "seed": number, "solver": setting.more["solver"]}
            yield setting.resumed(case, partial(measured, setting, name, number))


def measured(setting: Setting, name: str, number: int) -> Row:
    """Tune, solve, draw and predict on one split."""
    data, more = split(setting, name, number), setting.more
    (x, y), (new, truth) = data.train, data.test
    solver: Any = {**SOLVERS, "SDD": lw.SDD(steps=more["steps"])}[more["solver"]]
    dtype = torch.float64 if isinstance(solver, Cholesky) else torch.float32
    quick: dict[str, Any] = {"samples": 8, "features": 50} if setting.quick else {}
    posterior = start(x.shape[1], solver=solver, dtype=dtype, **quick).fit((x.to(dtype), y.to(dtype)))
    process, tuning = timed(lambda: lw.tune(posterior, Subset(40 if setting.quick else more["size"], seed=number)))
    assert isinstance(process, Process)
    _, solving = timed(lambda: process.functions)  # and the mean, in the same block
    found, predicting = timed(lambda: drawn_scores(process, new.to(dtype), truth.to(dtype)))
    row: Row = {"tuned_on": more["size"], "dtype": str(dtype).removeprefix("torch.")}
    row |= found | {"rows": len(x), "dimensions": x.shape[1], "mean_rmse": float(truth.square().mean().sqrt())}
    row |= {"tune_seconds": tuning, "solve_seconds": solving, "predict_seconds": predicting}
    row |= chosen(process) | {"iterations": process.functions.solution.iterations}
    row |= {"residual": float(process.functions.solution.residual.max())}
    if isinstance(process.solver, Cholesky):
        outputs = process.outputs(new.to(dtype)).marginal()
        exact = scores(process, outputs.mean, outputs.variance, truth.to(dtype))
        row |= {"nll_exact": exact["nll"], "log_marginal_per_row": float(process.log_marginal()) / len(x)}
    return row


def verdicts(found: Sequence[Row]) -> Iterator[Row]:
    """Whether the means over the splits are as good as the published ones."""
    for row in found:
        if row.get("summary"):
            rmse, nll = PUBLISHED[row["data"]]
            yield {
                "verdict": f"{row['data']}: within {TOLERANCE} of RMSE {rmse} and NLL {nll}",
                "rmse": within(round(row["rmse"], 2), rmse, TOLERANCE),
                "nll": within(round(row["nll"], 2), nll, TOLERANCE),
                "splits": row["seeds"],
            }


STUDY = Study(rows, COLUMNS, ("rows", "iterations"), verdict=verdicts, seeds=5, needs="the UCI sets", options=OPTIONS)
