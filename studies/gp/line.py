"""One dimension: where solvers err, infill against large domain (Antorán 2024, figures 3.3, 3.4, 4.1, 4.7 and 4.10).

``sin 2x + cos 5x`` with noise of variance ½ and a squared exponential kernel. Infill has x from N(0, 1), large domain
an even grid. Each solver's mean and drawn functions are held against the exact marginals by their Wasserstein distance,
``(Δμ² + Δσ²)^½``: in the interior, at the edges of the data, and far away, where the prior is all there is. Beside
them the collapsed posterior with evenly spaced inducing points (Titsias), which is exact algebra. The starvation of
variance (figure 2.6) is that of inference with 500 random features instead of the kernel: its standard deviation over
the exact one, in a gap between clusters of data.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

import lapwing as lw
from benchmarks.command import Setting, Study
from benchmarks.data import generator
from benchmarks.report import Row, timed
from lapwing.gp import GP, RBF, GPPosterior
from lapwing.linear.solvers import SDD, Cholesky, PrimalSGD, Solver

SCALE, VARIANCE, SPACING, FEATURES = 0.5, 0.5, 0.05, 500
"""Length-scale, noise variance, distance of the grid's points, and random features that starve."""

COLUMNS = ("interior", "edges", "far", "residual", "seconds")
OPTIONS: Mapping[str, tuple[Any, str]] = {
    "points": (2000, "observations"),
    "products": (30, "products with the kernel matrix that iterative solvers may take"),
}
Marginals = tuple[Tensor, Tensor]


def inputs(regime: str, points: int, source: torch.Generator) -> tuple[Tensor, dict[str, Tensor]]:
    """Observed inputs, and those of each region."""
    if regime == "infill":
        x, reach = torch.randn(points, generator=source, dtype=torch.float64), 2.0
    else:
        x, reach = SPACING * (torch.arange(points).double() - points / 2), SPACING * points / 2 - 1.0
    edge = float(x.abs().max())
    regions = {"interior": (0.0, reach), "edges": (reach, edge + SCALE), "far": (edge + 6 * SCALE, edge + 10 * SCALE)}
    places = {name: torch.linspace(low, high, 100, dtype=torch.float64) for name, (low, high) in regions.items()}
    return x[:, None], {name: torch.cat([-part, part])[:, None] for name, part in places.items()}


def solvers(points: int, products: int, quick: bool) -> dict[str, Solver]:
    """By name, each with about as many products with the matrix."""
    steps = max(200, products * points // 128)
    return {
        "CG": lw.solvers.CG(
            rtol=1e-8, max_iterations=products, preconditioner=lw.preconditioners.PivotedCholesky(5 if quick else 100)
        ),
        "CG, plain": lw.solvers.CG(rtol=1e-8, max_iterations=products),
        "SDD": SDD(steps=steps, rtol=1e-8),
        "SGD": PrimalSGD(steps=steps, rtol=1e-8),
    }


def regimes(setting: Setting) -> Iterator[Row]:
    """A row a regime, method and seed."""
    points, products = (setting.more[name] for name in OPTIONS)
    points, quick = 60 if setting.quick else points, setting.quick
    for regime in setting.among(("infill", "large domain")):
        for seed in setting.repeats:
            source = generator(seed)
            x, places = inputs(regime, points, source)
            noise = VARIANCE**0.5 * torch.randn(len(x), 1, generator=source, dtype=torch.float64)
            data = (x, torch.sin(2 * x) + torch.cos(5 * x) + noise)
            options: dict[str, Any] = {"mean": "zero", "seed": seed} | ({"features": 50} if quick else {})
            recipe = GP(RBF(SCALE), lw.Gaussian(1 / VARIANCE), solver=Cholesky(max_bytes=2**33), **options)
            exact = recipe.fit(data)
            truth = {name: _marginals(exact, at) for name, at in places.items()}
            case: Row = {"regime": regime, "points": points, "products": products, "seed": seed}
            for name, solver in solvers(points, products, quick).items():
                process = replace(exact.with_solver(solver), start=())  # not from what is exact
                _, seconds = timed(lambda process=process: process.functions)
                found = {at: _marginals(process, places[at]) for at in places}
                left = float(process.functions.solution.residual.max())
                yield case | {"method": name} | _distances(found, truth) | {"seconds": seconds, "residual": left}
            for count in (20,) if quick else (20, 200):
                found, seconds = timed(partial(_collapsed, data, places, count))
                yield case | {"method": f"{count} inducing points"} | _distances(found, truth) | {"seconds": seconds}


def _marginals(process: GPPosterior, at: Tensor) -> Marginals:
    """Means and standard deviations; a small one of drawn functions is as they have it."""
    outputs = process.outputs(at).marginal()
    return outputs.mean[:, 0], outputs.variance[:, 0].sqrt()


def _distances(found: dict[str, Marginals], truth: dict[str, Marginals]) -> Row:
    """The mean Wasserstein distance in each region."""
    row: Row = {}
    for name, (mean, std) in truth.items():
        other, spread = found[name]
        row[name] = float(((mean - other).square() + (std - spread).square()).sqrt().mean())
    return row


def _collapsed(data: tuple[Tensor, Tensor], places: dict[str, Tensor], count: int) -> dict[str, Marginals]:
    """The posterior with the best distribution of evenly spaced inducing values (equations 3.12 and 3.13)."""
    (x, y), kernel = data, RBF(SCALE)
    z = torch.linspace(float(x.min()), float(x.max()), count, dtype=torch.float64)[:, None]
    within = kernel(z, z) + 1e-8 * torch.eye(count, dtype=torch.float64)
    across = kernel(z, x)
    whole = within + across @ across.mT / VARIANCE
    found: dict[str, Marginals] = {}
    for name, at in places.items():
        k = kernel(z, at)
        solved = torch.linalg.solve(whole, k)
        variance = 1 - (k * torch.linalg.solve(within, k)).sum(0) + (k * solved).sum(0)
        found[name] = ((solved.mT @ (across @ y) / VARIANCE)[:, 0], variance.clamp_min(0).sqrt())
    return found


def starvation(setting: Setting) -> Iterator[Row]:
    """Standard deviations in a gap between two clusters: of random features over exact ones."""
    points, features = (100, 20) if setting.quick else (setting.more["points"], FEATURES)
    gap = torch.linspace(-1, 1, 101, dtype=torch.float64)[:, None]
    for seed in setting.repeats:
        source = generator(seed)
        x = torch.cat([-3 + 0.5 * torch.randn(points // 2, 1, generator=source, dtype=torch.float64) for _ in range(2)])
        x[points // 2 :] += 6
        y = torch.sin(2 * x) + torch.cos(5 * x) + 0.1 * torch.randn(len(x), 1, generator=source, dtype=torch.float64)
        exact = GP(RBF(SCALE), lw.Gaussian(100.0), mean="zero", seed=seed, solver=Cholesky(max_bytes=2**33)).fit((x, y))
        mean, std = _marginals(exact, gap)
        phi = RBF(SCALE).features(features, x, source)
        precision = 100 * phi(x).mT @ phi(x) + torch.eye(features, dtype=torch.float64)
        starved = (phi(gap) * torch.linalg.solve(precision, phi(gap).mT).mT).sum(1).sqrt()
        far = (phi(gap) @ torch.linalg.solve(precision, 100 * phi(x).mT @ y))[:, 0]
        with torch.no_grad():
            paths = exact.sample_functions(gap, 64, generator=seed)[..., 0]
        case: Row = {"points": points, "features": features, "seed": seed}
        spread = (paths - mean).square().mean(0).sqrt()
        for method, centre, width in (("features", far, starved), ("functions", paths.mean(0), spread)):
            row: Row = {"std_ratio": float((width / std).mean()), "mean_error": float((centre - mean).abs().mean())}
            yield case | {"method": method} | row


REGIMES = Study(regimes, COLUMNS, seeds=3, options=OPTIONS)
STARVATION = Study(starvation, ("std_ratio", "mean_error"), seeds=5, options={"points": OPTIONS["points"]})
