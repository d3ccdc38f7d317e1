"""How hyper-parameters are found: evidence reached, and seconds, on some rows of a UCI set.

The exact optimum by ``gp.Evidence`` on ``--train`` rows; then, on the same rows, ``gp.Pathwise`` by conjugate gradients
from the usual start and from where ``gp.Subset`` came to, ``gp.Subset`` alone, and ``gp.Centroids``. The evidence of
each is exact. The share is how much of the way from the start to the optimum was gone; the gap is relative to the
optimum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from benchmarks.command import Setting, Study
from benchmarks.report import Row, tried
from lapwing.gp import Centroids, Evidence, GPPosterior, Pathwise, Subset
from lapwing.linear.solvers import Cholesky
from studies.gp.setting import SOLVERS, chosen, drawn_scores, split, start

ROWS = 2000
COLUMNS = ("log_marginal", "gap", "share", "rmse", "nll", "noise_variance", "seconds")
OPTIONS: Mapping[str, tuple[Any, str]] = {"steps": (50, "steps of the pathwise gradient")}


def ways(setting: Setting, rows: int) -> dict[str, Callable[[GPPosterior], GPPosterior]]:
    """From the posterior at the start to the tuned one."""
    steps = 5 if setting.quick else setting.more["steps"]
    part, pathwise = Subset(max(2, rows // 4)), Pathwise(steps=steps)

    def by_products(posterior: GPPosterior) -> GPPosterior:
        return pathwise.tune(posterior.with_solver(SOLVERS["CG"]))  # type: ignore[arg-type]

    return {
        "optimum": lambda posterior: Evidence(steps=5 if setting.quick else 200).tune(posterior),
        "pathwise": by_products,
        "subset": part.tune,
        "subset, pathwise": lambda posterior: by_products(part.tune(posterior)),
        "neighbourhoods": (Centroids(1, 10) if setting.quick else Centroids(3, rows // 4)).tune,
    }


def rows(setting: Setting) -> Iterator[Row]:
    """A row a way and split; the start and the optimum first."""
    exact = Cholesky(max_bytes=2**33)
    for name in setting.among(("pol", "elevators", "bike", "protein", "keggdirected"), ("pol",)):
        for number in setting.repeats:
            data = split(setting, name, number, ROWS)
            (x, y), (new, truth) = data.train, data.test
            quick: dict[str, Any] = {"samples": 8, "features": 50} if setting.quick else {}
            begun = start(x.shape[1], solver=exact, **quick).fit((x, y))
            low, high = float(begun.log_marginal()), float("nan")
            for way, tune in ways(setting, len(x)).items():
                found, row = tried(lambda tune=tune, begun=begun: tune(begun))
                case = {"data": name, "rows": len(x), "way": way, "seed": number} | row
                if found is None:
                    yield case
                    continue
                process = found.with_solver(exact)
                value = float(process.log_marginal())
                high = value if way == "optimum" else high
                case |= {"start": low, "log_marginal": value, "gap": (high - value) / abs(high)}
                case |= {"share": (value - low) / (high - low)} | chosen(process)
                yield case | drawn_scores(process, new, truth)


STUDY = Study(rows, COLUMNS, seeds=1, needs="the UCI sets", options=OPTIONS)
