"""Low noise: root mean square errors at the noise that was found, and at a variance of 1e-6 (Antorán 2024, table 4.2).

The same hyper-parameters, from ``gp.Subset``, on ``--train`` rows; targets are solved for by stochastic dual descent
and by conjugate gradients with a pivoted Cholesky preconditioner of rank 100, at most ``--iterations`` of them, beside
the exact solution. Where the noise is small, the condition of ``K + N`` is large.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

import lapwing as lw
from benchmarks.command import Setting, Study
from benchmarks.report import Row, grouped, timed
from lapwing.gp import Subset
from lapwing.linear.solvers import SDD, Cholesky, Solver
from studies.gp.setting import split, start

ROWS, LOW = 4000, 1e-6
COLUMNS = ("rmse", "rmse_to_exact", "residual", "seconds")
OPTIONS: Mapping[str, tuple[Any, str]] = {
    "steps": (20_000, "steps of stochastic dual descent"),
    "iterations": (100, "iterations of conjugate gradients"),
}


def solvers(setting: Setting) -> dict[str, Solver]:
    """By name."""
    steps, iterations = (setting.more[name] for name in OPTIONS)
    pivoted = lw.preconditioners.PivotedCholesky(5 if setting.quick else 100)
    return {
        "exact": Cholesky(),
        "SDD": SDD(steps=200 if setting.quick else steps, rtol=1e-9),
        "CG": lw.solvers.CG(rtol=1e-2, max_iterations=5 if setting.quick else iterations, preconditioner=pivoted),
    }


def rows(setting: Setting) -> Iterator[Row]:
    """A row a noise and solver."""
    for name in setting.among(("pol", "elevators", "bike", "protein", "keggdirected"), ("pol", "elevators")):
        for number in setting.repeats:
            data = split(setting, name, number, ROWS)
            (x, y), (new, truth) = data.train, data.test
            tuned = Subset(40 if setting.quick else 2000, seed=number).tune(start(x.shape[1]).fit((x, y)))
            for noise, precision in (("found", tuned.likelihood.noise), (f"{LOW:g}", 1 / LOW)):
                exact = torch.zeros(0)
                for method, solver in solvers(setting).items():
                    process = replace(tuned.with_solver(solver), likelihood=lw.Gaussian(precision), start=())
                    with torch.no_grad():
                        mean, seconds = timed(partial(process.mean, new))
                    exact = mean if method == "exact" else exact
                    row: Row = {"data": name, "rows": len(x), "noise": noise, "method": method, "seed": number}
                    row |= {"rmse": float((mean - truth).square().mean().sqrt()), "seconds": seconds}
                    row |= {"rmse_to_exact": float((mean - exact).square().mean().sqrt())}
                    yield row | {"noise_variance": 1 / precision, "residual": float(process.solution.residual.max())}


def verdicts(found: Sequence[Row]) -> Iterator[Row]:
    """How much larger each solver's error is at the low noise than at the one found."""
    for (data, method), (first, second) in grouped((r for r in found if r.get("summary")), "data", "method").items():
        ratio = second["rmse"] / first["rmse"]
        yield {"verdict": f"{data}, {method}: RMSE at noise {LOW:g} over that at the noise found", "ratio": ratio}


STUDY = Study(rows, COLUMNS, verdict=verdicts, seeds=3, needs="the UCI sets", options=OPTIONS)
