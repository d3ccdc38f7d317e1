"""Quadrature points against the quality and the cost of draws (Brack 2023, section 5.2, table 5.1).

The source draws 200 samples of a digit CNN with 15 thousand weights at α = 0.1. Rows with ``solves`` "exact" have the
error of the quadrature alone: in the eigenbasis of Λ a draw is ``r(λ) ε`` with ``r(λ) = Σ w / (λ + t)``, for which the
eigenvalues suffice. The others are what a user gets and what it costs: "MINRES" is the source's solver, "CG" the one
of ``lapwing.Contour``, each with and without a preconditioner where that is affordable.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

import lapwing as lw
from benchmarks.command import Setting
from benchmarks.data import generator
from benchmarks.report import Row, attempt, figure, grouped, tried
from benchmarks.tasks import matrix_free
from lapwing.evaluation.diagnosis import Diagnosis, diagnose_samples, directions_of
from lapwing.ground.probes import gaussian
from lapwing.ground.results import Solution
from lapwing.linalg import Diagonal
from lapwing.linalg.contour import contour_inverse_root, inverse_root_rule, spectral_interval
from lapwing.linalg.shifted import Method
from lapwing.linear.preconditioners import Preconditioner, approximation
from lapwing.posteriors import MatrixFreePosterior
from studies.full_laplace.setting import ALPHA, Digits
from studies.full_laplace.spectrum import EXACT, spectrum

IMAGES = 500
"""Training images the curvature is summed over; the source does not say how many it used."""

FAMILY = 16
LEVEL = 0.01
RTOL = 1e-4
SOLVERS: dict[str, Method] = {"MINRES": "minres", "CG": "cg"}


def rows(setting: Setting) -> Iterator[Row]:
    """One row for each way to solve and each number of points."""
    draws = 50 if setting.quick else 200
    exact = (1, 3, 8) if setting.quick else tuple(range(1, 21))
    digits = Digits(setting)
    model, data = digits.network(), digits.head(IMAGES, quick=15)
    posterior = matrix_free(model, data, ALPHA)
    head = digits.facts(model, len(data[1])) | {"draws": draws}
    if len(data[1]) * 10 <= EXACT:
        values = spectrum(model, data, whole=True)
        precision = Diagonal(ALPHA + torch.nn.functional.pad(values, (0, posterior.network.size - len(values))))
        for points in exact:
            own = head | {"solves": "exact", "preconditioner": "none", "points": points}
            yield own | ideal(precision, points, draws)
    else:
        yield head | {"solves": "exact", "failure": f"{len(data[1])} images make a Gram matrix beyond {EXACT} rows"}
    directions = directions_of(posterior.precision_operator, FAMILY, generator=generator())
    for name, recipe, cases in plan(setting.quick):
        interval, cost = tried(lambda by=recipe: spectrum_within(posterior, by), "seconds_preparing")
        own = head | {"preconditioner": name} | cost
        if interval is None:
            yield own
            continue
        own |= {"condition": interval[1] / interval[0]}
        for solver, several in cases.items():
            for points in several:
                row = drawn(posterior, points, draws, recipe, SOLVERS[solver], interval, directions)
                yield own | {"solves": solver, "points": points} | row


def plan(quick: bool) -> list[tuple[str, Preconditioner | None, dict[str, tuple[int, ...]]]]:
    """Preconditioners, and for each the solvers and their points."""
    if quick:
        return [("none", None, {"MINRES": (1,)}), ("top 16 eigenpairs", lw.LowRank(16), {"MINRES": (8,), "CG": (1, 8)})]
    most, some = (1, 2, 3, 4, 5, 6, 8, 10, 15, 20), (3, 5, 10, 20)
    return [
        ("none", None, {"MINRES": most, "CG": some}),
        ("top 50 eigenpairs", lw.LowRank(50), {"CG": most, "MINRES": some}),
        ("top 300 eigenpairs", lw.LowRank(300), {"CG": (1, 2, 3, 5, 10)}),
    ]


def ideal(precision: Diagonal, points: int, draws: int) -> Row:
    """Draws with exact solves, diagnosed.

    Args:
        precision: Λ in its eigenbasis.
        points: Q.
        draws: Samples.
    """
    values = precision.values
    rule = inverse_root_rule(float(values.min()), float(values.max()), points)
    root = (rule.weights / (values[:, None] + rule.shifts)).sum(1)
    noise = torch.randn(draws, len(values), dtype=torch.float64, generator=generator(1))
    order = values.argsort(descending=True)
    directions = {"stiff": units(order[:FAMILY], len(values)), "sloppy": units(order[-FAMILY:], len(values))}
    start = time.perf_counter()
    found = diagnose_samples(noise * root, torch.zeros_like(values), precision, directions=directions, level=LEVEL)
    relative = float((root * values.sqrt() - 1).abs().max())
    return judged(found) | {"root_error": relative, "seconds": time.perf_counter() - start, "failure": ""}


def units(entries: Int[Tensor, " k"], size: int) -> Float[Tensor, "d k"]:
    """Unit vectors."""
    return torch.nn.functional.one_hot(entries, size).double().mT


def spectrum_within(posterior: MatrixFreePosterior, recipe: Preconditioner | None) -> tuple[float, float]:
    """An interval around the spectrum of Λ, whose lower end is known, or of ``P⁻¹ Λ``; makes P."""
    precision = posterior.precision_operator
    if recipe is None:
        return ALPHA, spectral_interval(precision, generator=generator())[1]
    return spectral_interval(precision, preconditioner=approximation(posterior.problem, recipe), generator=generator())


def drawn(
    posterior: MatrixFreePosterior,
    points: int,
    draws: int,
    recipe: Preconditioner | None,
    solver: Method,
    interval: tuple[float, float],
    directions: dict[str, Tensor],
) -> Row:
    """Draws by the contour integral, diagnosed.

    Args:
        posterior: Whose.
        points: Q.
        draws: Samples.
        recipe: Preconditioner; made before the clock starts.
        solver: Of the shifted systems.
        interval: Around the spectrum of ``P⁻¹ Λ``.
        directions: To look along, the same for all rows.
    """
    prepared = None if recipe is None else approximation(posterior.problem, recipe)
    size = posterior.network.size if prepared is None else prepared.root().shape[1]
    noise = gaussian((size, draws), like=posterior.network.like, generator=generator(1))
    options: dict[str, Any] = {"points": points, "interval": interval, "preconditioner": prepared, "method": solver}
    options |= {"rtol": RTOL, "max_iterations": 3000}
    precision = posterior.precision_operator
    solution, cost = tried(lambda: contour_inverse_root(precision, noise, **options))
    if solution is None:
        return cost
    zeros = torch.zeros_like(posterior.network.weights)
    draw = lambda: diagnose_samples(solution.value.mT, zeros, precision, directions=directions, level=LEVEL)  # noqa: E731
    found, failure = attempt(draw)
    return cost | ({} if found is None else judged(found)) | solved(solution) | {"failure": failure}


def solved(solution: Solution) -> Row:
    """What solving took."""
    row: Row = {"iterations": solution.iterations, "matvecs": solution.matvecs, "stopped": solution.stopped}
    return row | {"residual": float(solution.residual.max())}


def judged(found: Diagnosis) -> Row:
    """What the tests say; of a family the p-value of its three tests together, by Bonferroni."""
    row: Row = {"ks_p": found["radius"].p_value, "variance": float(found.distances.mean()) / found.dimension}
    for family in found.families:
        row[f"{family.name}_p"] = min(1.0, 3 * min(check.p_value for check in family.checks))
        row[f"{family.name}_variance"] = family.variance
    return row | {"passed": found.passed, "said": str(found)}


def draw(found: Sequence[Row]) -> Any:
    """P-values and seconds against points."""
    made = figure(11.0, 4.6, 2)
    left, right = made.axes
    judged_rows = [row for row in found if "ks_p" in row]
    for (solves, name), own in grouped(judged_rows, "solves", "preconditioner").items():
        at = [row["points"] for row in own]
        seen = {key: [max(row[key], 1e-12) for row in own] for key in ("ks_p", "stiff_p")}
        label = f"{solves} solves, preconditioner: {name}"
        (line,) = left.plot(at, seen["ks_p"], marker="o", markersize=4, label=label)
        left.plot(at, seen["stiff_p"], marker="^", markersize=4, linestyle=":", color=line.get_color())
        if solves != "exact":
            right.plot(at, [row["seconds"] for row in own], marker="o", markersize=4, color=line.get_color())
    left.axhline(LEVEL, color="#999999", linestyle="--")
    left.set(yscale="log", ylim=(5e-13, 2), xlabel="quadrature points", ylabel="p-value, not below 1e-12")
    left.set_title("distances (circles), stiff directions (triangles)", fontsize=10)
    right.set(xlabel="quadrature points", ylabel="seconds for all draws")
    right.set_ylim(bottom=0)
    made.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    return made
