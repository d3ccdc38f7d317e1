"""Parallel Thompson sampling on [0, 1]^8 (Antorán 2024, figure 4.11), scaled down.

The target is drawn from a Gaussian process with a Matérn 3/2 kernel, whose hyper-parameters the model knows. From
``--initial`` uniform observations, ``--steps`` batches of ``--batch`` are acquired: by ``gp.thompson`` with the solver
that is chosen by itself and with stochastic dual descent, at random, and from a variational process with 1,024 inducing
points (GPyTorch), whose functions are drawn on the same candidates; ours are refined by gradients too. Before each
batch it is trained for as many seconds as the first of them has taken for all batches up to then. What is told is the
best value so far less that of the initial observations, in standard deviations of the prior, and differences are
paired over seeds.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

import lapwing as lw
from benchmarks.command import Setting, Study
from benchmarks.data import generator
from benchmarks.report import Row, attempt
from benchmarks.table import summarised
from lapwing.gp import GP, GPPosterior, Matern, PriorFunctions, Search, thompson
from lapwing.gp.thompson import proposals
from lapwing.linear.solvers import SDD

DIMENSIONS, NOISE, TARGET, INDUCING = 8, 1e-3, 5000, 1024
"""The noise is a standard deviation; the target has so many random features."""

SCALES = (0.2, 0.4)
METHODS = ("auto", "SDD", "SVGP", "random")
COLUMNS = ("gain", "seconds")
OPTIONS: Mapping[str, tuple[Any, str]] = {
    "initial": (1000, "uniform observations at the start"),
    "steps": (4, "batches"),
    "batch": (50, "observations in each"),
    "candidates": (2000, "inputs at which drawn functions are looked at"),
}


def rows(setting: Setting) -> Iterator[Row]:
    """A row a length-scale, method and seed; the seconds of the first method are the budget of the variational one."""
    quick = {"initial": 20, "steps": 1, "batch": 3, "candidates": 30}
    sizes: Row = quick if setting.quick else dict(setting.more)
    torch.optim.Adam([torch.zeros(1, requires_grad=True)])  # the first one imports for seconds, which no method owes
    for scale in (0.4,) if setting.quick else SCALES:
        for seed in setting.repeats:
            source = generator(seed)
            x = torch.rand(sizes["initial"], DIMENSIONS, generator=source, dtype=torch.float64)
            target = PriorFunctions.drawn(Matern(scale), x, 1, 50 if setting.quick else TARGET, source)
            budget = 0.0
            for method in setting.among(METHODS):
                found, failure = attempt(partial(searched, method, scale, target, x, sizes, seed, budget))
                budget = budget or (found or {}).get("seconds", 0.0) / sizes["steps"]
                case: Row = {"lengthscale": f"{scale:g}", "method": method, "seed": seed} | sizes
                yield case | (found or {"failure": failure})


def searched(method: str, scale: float, target: PriorFunctions, x: Tensor, sizes: Row, seed: int, budget: float) -> Row:
    """One search; the variational process is trained for ``budget`` seconds and as many more after each batch."""
    source, box = generator(100 + seed), torch.tensor([[0.0], [1.0]], dtype=torch.float64).expand(2, DIMENSIONS)

    def observed(at: Tensor) -> tuple[Tensor, Tensor]:
        return at, target(at) + NOISE * torch.randn(len(at), 1, generator=source, dtype=torch.float64)

    solver: Any = SDD(steps=3000, rtol=1e-2) if method == "SDD" else "auto"
    features = 50 if len(x) < 100 else 2000
    recipe = GP(Matern(scale), lw.Gaussian(NOISE**-2), mean="zero", solver=solver, features=features)
    posterior, seconds, best = recipe.fit(observed(x)), 0.0, list[float]()
    first = float(posterior.data.targets.max())
    for step in range(sizes["steps"]):
        look = Search(sizes["candidates"], starts=2, steps=30, seed=1000 * seed + step)
        begun = time.perf_counter()
        if method == "random":
            at = torch.rand(sizes["batch"], DIMENSIONS, generator=source, dtype=torch.float64)
        elif method == "SVGP":
            places, trained = proposals(posterior, box, look), (step + 1) * budget
            at = variational(posterior, scale, places, sizes["batch"], trained, look.seed)
        else:
            at = thompson(posterior, box, sizes["batch"], search=look, generator=look.seed)
        seconds += time.perf_counter() - begun
        posterior = posterior.updated(observed(at))
        best.append(float(posterior.data.targets.max()) - first)
    return {"gain": best[-1], "gains": best, "seconds": seconds, "start": first}


def variational(
    posterior: GPPosterior, scale: float, candidates: Tensor, batch: int, budget: float, seed: int
) -> Tensor:
    """The best candidates of functions drawn from a variational process that is trained for so many seconds."""
    from benchmarks import gp_sides  # the peer

    x, y = posterior.data.inputs, posterior.data.targets[:, 0]
    source, end = generator(seed), time.perf_counter() + budget
    logs = torch.tensor([1.0, *[scale] * DIMENSIONS, NOISE**2], dtype=torch.float64).log()
    tries = (torch.randint(len(x), (512,), generator=source) for _ in iter(lambda: time.perf_counter() < end, False))
    model, _ = gp_sides.trained(x, y, logs, INDUCING, tries, learn=False)
    with torch.no_grad():
        moments: Any = model(candidates)
        root = torch.linalg.cholesky(moments.covariance_matrix + 1e-6 * torch.eye(len(candidates), dtype=x.dtype))
        drawn = root @ torch.randn(len(candidates), batch, generator=source, dtype=x.dtype) + moments.mean[:, None]
        return candidates[drawn.argmax(0)]


def verdicts(found: Sequence[Row]) -> Iterator[Row]:
    """By how much each method gains more than another on the same seeds, with its standard error."""
    gains = {(row["lengthscale"], row["method"], row["seed"]): row["gain"] for row in found if "gains" in row}
    for scale in dict.fromkeys(scale for scale, _, _ in gains):
        for better, other in (("auto", "random"), ("auto", "SVGP"), ("SDD", "random"), ("SDD", "SVGP")):
            seeds = [s for at, m, s in gains if (at, m) == (scale, better) and (scale, other, s) in gains]
            rows = [{"gain": gains[scale, better, s] - gains[scale, other, s], "seed": s} for s in seeds]
            for mean in summarised(rows):
                error = mean.get("gain_stderr", float("nan"))
                row = {"verdict": f"length-scale {scale}: {better} over {other}", "gain": mean["gain"]}
                yield row | {"gain_stderr": error, "seeds": len(seeds)}


STUDY = Study(rows, COLUMNS, verdict=verdicts, seeds=10, options=OPTIONS)
