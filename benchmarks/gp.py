"""Gaussian processes: seconds, memory and scores beside GPyTorch, cost against rows, and the search.

    python -m benchmarks.gp --data DIR --json FILE [--only pol growth search ...] [--splits 1]

Of each set both sides get the same hyper-parameters, found by ours on some rows, in single precision, and predict a
held-out tenth: ours by ``solver="auto"``; GPyTorch by conjugate gradients with its pivoted Cholesky preconditioner,
with ``fast_pred_var``, whose variances are of low rank, and without, solved further, and in double precision, where
their mean is not ours yet; and its variational process, whose time is that of training. Each is in a process of its
own, in turn; a side that runs out of memory is a row that says so. ``--only`` may name some of the sides too.
"""

from __future__ import annotations

import math
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import torch
from torch import Tensor

import lapwing as lw
from benchmarks import gp_sides as sides
from benchmarks.command import Setting, Study, main
from benchmarks.data import standardised
from benchmarks.measure import Step, run_isolated
from benchmarks.report import Row, timed

SETS = ("pol", "elevators", "bike", "protein", "keggdirected")
PARTS = ("growth", "search")
SIZES = (1_000, 3_000, 10_000, 30_000, 49_000, 100_000, 200_000)
LEAST = 1e-3
"""Noise variance that both sides have at least, for targets of variance 1."""

COLUMNS = ("seconds", "cpu_seconds", "peak_mib", "rmse", "nll", "residual", "iterations", "evidence", "gap")
OURS, PEER, EXACT = "lapwing subset, then pathwise", "GPyTorch Adam", "lapwing exact, from the best of both"
"""Sides of the search."""

NEAR = 0.01
"""The gap that is sought."""

SEARCH = lw.solvers.CG(rtol=1e-2, max_iterations=20, preconditioner=lw.preconditioners.PivotedCholesky(500))
"""Solves of our search: stopped early, for each starts from the last one."""

Split = dict[str, Tensor]


def rows(setting: Setting) -> Iterator[Row]:
    """The sets, or the parts, that were asked for; all where none was."""
    for name in setting.among((*SETS, *PARTS)):
        if name == "growth":
            yield from grown(setting)
        elif name == "search":
            yield from searched(setting)
        else:
            yield from beside_peers(name, setting)


def split(name: str, number: int, setting: Setting) -> Split:
    """Standardised training and test parts of a set, single precision; generated where a quick run has no data.

    ``--train`` leaves so many of the training rows, at random.
    """
    if setting.quick:
        source = torch.Generator().manual_seed(SETS.index(name))
        x = torch.rand(300, 3, generator=source)
        y = torch.sin(6 * x[:, 0]) + 0.1 * torch.randn(300, generator=source)
        test = torch.arange(300) % 10 == 0
    else:
        with np.load(setting.folder / "uci" / f"{name}.npz") as held:
            x, y, test = (torch.as_tensor(held[key]) for key in ("x", "y", "test_mask"))
        x, y, test = x.float(), y.float(), test[:, number]
    x, y = (standardised(part, part[~test]) for part in (x, y))
    seen = (~test).nonzero()[:, 0]
    kept = seen[torch.randperm(len(seen), generator=torch.Generator().manual_seed(number))[: setting.images]]
    return {"x": x[kept], "y": y[kept], "new": x[test], "truth": y[test]}


def initial(data: Split) -> Tensor:
    """Where searches start: length-scales of the square root of the dimensions, a noise of a tenth of the variance."""
    p = data["x"].shape[1]
    return torch.tensor([1.0, *[p**0.5] * p, 0.1], dtype=torch.float64).log()


def tuned(data: Split, setting: Setting) -> tuple[Tensor, float]:
    """Hyper-parameters by the evidence of some rows, with a noise that single precision bears, and the seconds."""
    method = lw.gp.Subset(setting.more["tuned"])
    start = sides.process(data["x"], data["y"], initial(data))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        process, seconds = timed(lambda: method.tune(start))
    logs = process.log_hyperparameters()
    logs[-1] = logs[-1].clamp_min(math.log(LEAST))
    return logs, seconds


def beside_peers(name: str, setting: Setting) -> Iterator[Row]:
    """Every side on the splits of a set."""
    points, epochs = (20, 1) if setting.quick else (1024, setting.epochs or 50)
    works = {
        "lapwing auto": (sides.ours, {}),
        "GPyTorch CG": (sides.exact, {"fast": False}),
        "GPyTorch CG, fast_pred_var": (sides.exact, {"fast": True}),
        "GPyTorch CG, fast_pred_var, to 1e-3": (sides.exact, {"fast": True, "tolerance": 1e-3}),
        "GPyTorch CG, float64": (sides.exact, {"fast": False, "tolerance": 1e-3, "double": True}),
        "GPyTorch CG, fast_pred_var, float64": (sides.exact, {"fast": True, "tolerance": 1e-3, "double": True}),
        f"GPyTorch SVGP {points}, {epochs} epochs": (sides.variational, {"points": points, "epochs": epochs}),
    }
    for number in setting.repeats:
        data = split(name, number, setting)
        logs, seconds = tuned(data, setting)
        with tempfile.TemporaryDirectory() as folder:
            case = Path(folder) / "case.pt"
            torch.save(data | {"logs": logs}, case)
            about = {"part": "peers", "data": name, "observations": len(data["x"]), "seed": number}
            yield about | {"side": "tuning of both", "seconds": seconds}
            for side in setting.among(works):
                work, options = works[side]
                limits = {"timeout": setting.more["limit"], "limit_gib": 64.0}
                step, *_ = run_isolated(work, **limits, case=str(case), **options)
                yield about | {"side": side} | cost(step) | step.facts


def cost(step: Step) -> Row:
    """Seconds and memory of a step, or why it has none."""
    if step.seconds is None:
        return {"failure": step.note or "no number"}
    return {"seconds": step.seconds, "peak_mib": step.peak_mib}


def grown(setting: Setting) -> Iterator[Row]:
    """Seconds and peak memory of a product and of a step against the number of generated rows."""
    for n in (500, 1000) if setting.quick else SIZES:
        for step in run_isolated(sides.growth, timeout=setting.more["limit"], n=n):
            yield {"part": "growth", "observations": n, "work": step.name} | cost(step)


def searched(setting: Setting) -> Iterator[Row]:
    """The evidence that searches reach, ours and GPyTorch's, against seconds; the gap is relative to the highest."""
    steps, limit, exactly = (setting.more[name] for name in ("search_steps", "limit", "exact"))
    name = setting.among(SETS, ("pol",))[0]
    for number in setting.repeats:
        data = split(name, number, setting)
        order = torch.randperm(len(data["x"]), generator=torch.Generator().manual_seed(0))
        kept = order[: setting.more["rows"] or None]
        x, y, first = data["x"][kept], data["y"][kept], initial(data)
        model = sides.Regression(x, y)
        sides.given(model.covar_module, model.likelihood, first)
        exact = sides.process(x.double(), y.double(), first, solver=lw.solvers.Cholesky(max_bytes=2**33))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            start = sides.process(x, y, first, solver=SEARCH)
            paths = {OURS: sides.descended(start, max(1, steps // 10), min(len(x) // 4, 2000))}
            paths[PEER] = sides.climbed(model, x, y, steps, limit)
            paths = {side: thinned(path) for side, path in paths.items()}
            values = {
                side: [float(exact.with_log_hyperparameters(logs).log_marginal()) for _, logs in path]
                for side, path in paths.items()
            }
            nearest = max(paths, key=lambda side: max(values[side]))
            _, logs = paths[nearest][int(np.argmax(values[nearest]))]
            best, seconds = timed(partial(lw.gp.Evidence(steps=exactly).tune, exact.with_log_hyperparameters(logs)))
        paths[EXACT] = [(seconds, best.log_hyperparameters())]
        values[EXACT] = [float(best.log_marginal())]
        high = max(map(max, values.values()))
        for side, path in paths.items():
            for point, ((seconds, _), value) in enumerate(zip(path, values[side], strict=True)):
                about = {"part": "search", "data": name, "observations": len(x), "seed": number, "side": side}
                about |= {"point": point, "seconds": seconds, "evidence": value / len(x)}
                yield about | {"gap": (high - value) / abs(high)}


def thinned(path: list[tuple[float, Tensor]], most: int = 6) -> list[tuple[float, Tensor]]:
    """The last places of a search, and a few between."""
    step = max(1, len(path) // most)
    return path[::-1][::step][::-1]


def verdict(found: Sequence[Row]) -> Iterator[Row]:
    """Of the splits both ran on: the median ratio of seconds, ours to the peer's, and how far scores are off."""
    by: dict[tuple[str, int, str], dict[int, Row]] = {}
    for row in found:
        if row.get("part") == "peers" and "cpu_seconds" in row and not row.get("summary"):
            by.setdefault((row["data"], row["observations"], row["side"]), {})[row["seed"]] = row
    for (data, size, side), theirs in by.items():
        mine = by.get((data, size, "lapwing auto"), {}) if side.startswith("GPyTorch") else {}
        both = [(mine[seed], theirs[seed]) for seed in sorted(mine.keys() & theirs.keys())]
        if both:
            ratios = {k: median(our[k] / peer[k] for our, peer in both) for k in ("seconds", "cpu_seconds")}
            apart = {f"{k}_apart": median(our[k] - peer[k] for our, peer in both) for k in ("rmse", "nll")}
            about = {"verdict": f"{data}, {size} rows: lapwing over {side}", "splits": len(both)}
            yield about | ratios | apart
    points = [row for row in found if row.get("part") == "search" and not row.get("summary")]
    for number in sorted({row["seed"] for row in points}):
        paths = {side: [row for row in points if (row["seed"], row["side"]) == (number, side)] for side in (OURS, PEER)}
        soonest = {
            side: min((row["seconds"] for row in path if row["gap"] <= NEAR), default=None)
            for side, path in paths.items()
        }
        told = {"verdict": f"split {number}: seconds to an evidence within {NEAR:.0%} of the highest", **soonest}
        yield told | {"peer_took": max(row["seconds"] for row in paths[PEER])}


STUDY = Study(
    rows,
    columns=COLUMNS,
    verdict=verdict,
    seeds=1,
    needs="uci/*.npz",
    options={
        "tuned": (1000, "rows hyper-parameters are found on", 100),
        "search_steps": (100, "steps of the peer's search; a tenth as many are pathwise", 5),
        "exact": (100, "most steps of the exact search from the best found", 5),
        "rows": (5000, "rows of the search, 0 for all"),
        "limit": (1800.0, "seconds a side may take"),
    },
)

if __name__ == "__main__":
    main({"gp": STUDY})
